"""The changes of a bucket become a table, and the table its documents as they are now."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
cluster = os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701")


@dp.table
def user_changes() -> DataFrame:
    """Every change of a user, deletions too."""
    return (
        spark.readStream.format("millrace-changes")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .load("users")
        .selectExpr(
            "CAST(key AS STRING) AS user",
            "CAST(value AS STRING) AS document",
            "_change_type",
            "_commit_version",
        )
    )


@dp.materialized_view
def users() -> DataFrame:
    """The last version of each user who was not deleted."""
    return (
        spark.read.table("user_changes")
        .groupBy("user")
        .agg(f.expr("max(struct(_commit_version, _change_type, document))").alias("last"))
        .where("last._change_type <> 'delete'")
        .selectExpr("user", "get_json_object(last.document, '$.name') AS name")
    )
