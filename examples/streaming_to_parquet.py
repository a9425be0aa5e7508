"""Counts the records of a log by key and minute, as they come, into Parquet files.

    python streaming_to_parquet.py --log views --out counts             # what is there now
    python streaming_to_parquet.py --log views --out counts --follow    # until Ctrl-C

The folder holds the files and a checkpoint.  However a run ends, the next one goes on where it
stopped, and each minute is written once.
"""

import argparse
import os

from pyspark.sql import functions as f

import millrace.spark


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts a log by key and minute into Parquet.")
    parser.add_argument("--cluster", default=os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701"))
    parser.add_argument("--log", default="views")
    parser.add_argument("--out", default="counts", help="folder of the files and the checkpoint")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    arguments = parser.parse_args()

    spark = millrace.spark.session("streaming_to_parquet", spark_sql_session_timeZone="UTC")
    records = (
        spark.readStream.format("millrace")
        .option("cluster", arguments.cluster)
        .option("startingOffsets", "earliest")  # Of the first run; later, the checkpoint decides.
        .schema("key string, timestamp timestamp")  # The columns that the nodes send.
        .load(arguments.log)
    )
    counts = (
        # A minute is complete, and is written, when a record a minute younger than it was seen.
        records.withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 minute"), "key")
        .count()
        .select(f.col("window.start").alias("minute"), "key", "count")
    )
    query = (
        counts.writeStream.format("parquet")
        .option("path", f"{arguments.out}/minutes")
        .option("checkpointLocation", f"{arguments.out}/checkpoint")
        .trigger(**({"processingTime": "1 second"} if arguments.follow else {"availableNow": True}))
        .start()
    )
    with millrace.spark.progress.watch(spark):  # Rate and lag, on stderr.
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()

    written = spark.read.parquet(f"{arguments.out}/minutes")
    minutes = written.groupBy("minute").agg(f.sum("count").alias("records"))
    print(f"{minutes.count()} minutes are complete, the last of them:")
    minutes.orderBy(f.desc("minute")).limit(3).show()
    spark.stop()


if __name__ == "__main__":
    main()
