"""Counts the records of a log by key.

    python batch_count.py --log views
    python batch_count.py --log views --since 2026-01-01T00:05:00

The nodes send keys and timestamps, from the first record of the time `--since` on.
"""

import argparse
import os

from pyspark.sql import functions as f

import millrace.spark


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the records of a log by key.")
    parser.add_argument("--cluster", default=os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701"))
    parser.add_argument("--log", default="views")
    parser.add_argument("--since", help="from the first record of this time, in UTC")
    arguments = parser.parse_args()

    spark = millrace.spark.session("batch_count", spark_sql_session_timeZone="UTC")
    reader = (
        spark.read.format("millrace")
        .option("cluster", arguments.cluster)
        .schema("key string, timestamp timestamp")  # Keys are bytes; these are text.
    )
    if arguments.since:
        reader = reader.option("startingTimestamp", arguments.since)
    records = reader.load(arguments.log)

    counts = records.groupBy("key").agg(
        f.count("*").alias("records"),
        f.min("timestamp").alias("first"),
        f.max("timestamp").alias("last"),
    )
    counts.orderBy(f.desc("records"), "key").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
