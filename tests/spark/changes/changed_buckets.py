"""Queries of a bucket's changes into a table that is merged by key, and what it must hold."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import sync
from millrace.local import LocalCluster

WAIT_S = 120


class MergedQuery:
    """A query that can be run again from its checkpoint; of each key the row with the largest
    version stays in the table."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LocalCluster,
        folder: Path,
        through: Callable[[DataFrame], DataFrame] = lambda batch: batch,
        **options: object,
    ) -> None:
        self.rows: list[Row] = []  # All that ever came.
        self.table: dict[bytes, Row] = {}
        self._spark = spark
        self._through = through
        self._checkpoint = folder / "checkpoint"
        self._options = {
            "cluster": ",".join(cluster.addresses),
            **{name: str(value) for name, value in options.items()},
        }

    def start(self, *, trigger: dict[str, Any] | None = None) -> StreamingQuery:
        frame = self._spark.readStream.format("millrace-changes").options(**self._options).load()
        return (
            frame.writeStream.foreachBatch(self._merge)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )

    def run_once(self) -> list[Row]:
        """All that is available now; the rows that came."""
        before = len(self.rows)
        query = self.start(trigger={"availableNow": True})
        assert query.awaitTermination(WAIT_S)
        return self.rows[before:]

    def _merge(self, batch: DataFrame, number: int) -> None:
        for row in self._through(batch).collect():
            self.rows.append(row)
            known = self.table.get(bytes(row.key))
            if known is None or row._commit_version >= known._commit_version:
                self.table[bytes(row.key)] = row

    def documents(self) -> dict[bytes, bytes]:
        return {
            key: bytes(row.value) for key, row in self.table.items() if row._change_type != "delete"
        }


def stored(bucket: sync.SyncBucket, keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """What the masters have of these keys."""
    found = bucket.get_many(list(keys), timeout_ms=60_000)
    return {key: each.value for key, each in found.items()}
