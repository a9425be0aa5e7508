"""A driver program that tests kill: each record of one log into several others, in small
micro-batches.

Rows are shuffled on the way, so that a task that is repeated has others, in another order; and the
scheduler runs second copies of whatever takes a little longer than its neighbours.

python -m tests.spark.sink.sink_driver MASTER ADDRESSES SOURCE TARGETS FOLDER TRIGGER
"""

import sys
from pathlib import Path

from millrace.spark import session
from tests.support.spark import quick_settings

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    # The test kills more executors than a cluster would forgive.
    "spark.task.maxFailures": "50",
    "spark.stage.maxConsecutiveAttempts": "50",
}


def main(master: str, cluster: str, source: str, targets: str, folder: str, records: str) -> None:
    spark = session("sink-driver", master, **quick_settings(Path(folder) / "spark"), **SETTINGS)
    reader = (
        spark.readStream.format("millrace")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .option("minPartitions", "2")
    )
    if records != "all":
        reader = reader.option("maxRecordsPerTrigger", records)
    logs = ", ".join(f"'{target}'" for target in targets.split(","))
    rows = reader.load(source).selectExpr("key", "value", f"explode(array({logs})) AS log")
    trigger = {"availableNow": True} if records == "all" else {"processingTime": "0 seconds"}
    query = (
        rows.repartition(2)
        .writeStream.format("millrace")
        .option("cluster", cluster)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(**trigger)  # type: ignore[arg-type]
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
