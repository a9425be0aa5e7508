"""A driver program that tests kill: one log into Parquet files, in small micro-batches.

python -m tests.spark.logs.parquet_driver ADDRESSES LOG FOLDER RECORDS_PER_TRIGGER now|follow
"""

import sys
from pathlib import Path

from millrace.spark import session
from tests.support.spark import quick_settings


def main(cluster: str, log: str, folder: str, records: str, mode: str) -> None:
    spark = session("parquet-driver", "local[1,3]", **quick_settings(Path(folder) / "spark"))
    query = (
        spark.readStream.format("millrace")
        .option("cluster", cluster)
        .option("log", log)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", records)
        .load()
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(**({"availableNow": True} if mode == "now" else {"processingTime": "0 seconds"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
