"""Streaming queries from logs into Parquet files."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.local import LocalCluster
from tests.spark.filled_logs import rows

WAIT_S = 60


class Pipeline:
    """A query from a log into Parquet files, which can be run again from its checkpoint."""

    def __init__(
        self, spark: SparkSession, cluster: LocalCluster, folder: Path, **options: object
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {
            "cluster": ",".join(cluster.addresses),
            "startingOffsets": "earliest",
            **{name: str(value) for name, value in options.items()},
        }

    def start(self, *, trigger: dict[str, Any] | None = None) -> StreamingQuery:
        frame = self._spark.readStream.format("millrace").options(**self._options).load()
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )

    def run_once(self) -> list[dict[str, Any]]:
        """All that is available now; the progress of each micro-batch that had rows."""
        query = self.start(trigger={"availableNow": True})
        assert query.awaitTermination(WAIT_S)
        return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]

    def rows(self) -> list[tuple[int, bytes | None, bytes]]:
        return rows(self.frame())

    def frame(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "rows"))

    def offsets(self) -> list[str]:
        """Of each micro-batch, as the checkpoint has them."""
        folder = self._folder / "checkpoint" / "offsets"
        names = sorted(
            (path for path in folder.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
        )
        return [path.read_text().splitlines()[-1] for path in names]
