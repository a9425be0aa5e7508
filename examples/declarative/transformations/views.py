"""A log becomes a table, the table a summary, and some of its rows another log."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
cluster = os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701")


@dp.table
def views() -> DataFrame:
    """Every page view, as it comes: a run adds what the log has got since the one before."""
    return (
        spark.readStream.format("millrace")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .load("views")
        .selectExpr(
            "lsn",
            "CAST(key AS STRING) AS page",
            "from_json(CAST(value AS STRING), 'user INT, ms INT') AS view",
            "timestamp",
        )
        .select("lsn", "page", "view.*", "timestamp")
    )


@dp.materialized_view
def pages() -> DataFrame:
    """How often each page was seen."""
    return spark.read.table("views").groupBy("page").count()


dp.create_sink("slow_views", "millrace", {"cluster": cluster, "log": "slow_views"})


@dp.append_flow(target="slow_views")
def find_slow_views() -> DataFrame:
    """Views that took long go to a log of their own, each exactly once."""
    return (
        spark.readStream.table("views")
        .where("ms >= 390")
        .selectExpr("page AS key", "to_json(struct(lsn, user, ms)) AS value", "timestamp")
    )
