"""Joins a log, as it grows, with a table, and counts by minute and a column of the table.

    python windowed_join.py --log views --pages pages.csv             # what is there now
    python windowed_join.py --log views --pages pages.csv --follow    # until Ctrl-C

Without a checkpoint, each run begins at the log's first record.
"""

import argparse
import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import millrace.spark


def main() -> None:
    parser = argparse.ArgumentParser(description="Joins a log with a table, minute by minute.")
    parser.add_argument("--cluster", default=os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701"))
    parser.add_argument("--log", default="views")
    parser.add_argument("--pages", default=str(Path(__file__).with_name("pages.csv")))
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    arguments = parser.parse_args()

    spark = millrace.spark.session("windowed_join", spark_sql_session_timeZone="UTC")
    pages = spark.read.csv(arguments.pages, header=True)
    views = (
        spark.readStream.format("millrace")
        .option("cluster", arguments.cluster)
        .option("startingOffsets", "earliest")
        .schema("key string, value string, timestamp timestamp")
        .load(arguments.log)
        .withColumn("ms", f.get_json_object("value", "$.ms").cast("int"))
        .withWatermark("timestamp", "1 minute")  # How long a minute waits for late views.
    )
    teams = (
        views.join(f.broadcast(pages), views.key == pages.page, "left")
        .groupBy(
            f.window("timestamp", "1 minute"), f.coalesce("team", f.lit("nobody")).alias("team")
        )
        .agg(f.count("*").alias("views"), f.avg("ms").alias("ms"))
    )
    query = (
        teams.writeStream.foreachBatch(show)
        .outputMode("update")  # Each batch brings the minutes that changed in it.
        .trigger(**({"processingTime": "1 second"} if arguments.follow else {"availableNow": True}))
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    spark.stop()


def show(changed: DataFrame, batch: int) -> None:
    """The newest counts of a batch."""
    newest = changed.orderBy(f.desc("window"), "team").limit(6)
    minute = f.date_format("window.start", "HH:mm").alias("minute")
    for row in newest.select(minute, "team", "views", "ms").collect():
        print(f"batch {batch}  {row.minute}  {row.team:10}{row.views:5} views{row.ms:7.1f} ms")


if __name__ == "__main__":
    main()
