"""A driver program for Spark's own cluster: one log into Parquet files, and who did the work.

spark-submit --py-files millrace.zip standalone_driver.py ADDRESSES LOG FOLDER found|registered
"""

import importlib
import json
import os
import sys
from typing import Any

from pyspark import SparkContext

import millrace.spark
from pyspark_millrace import DefaultSource


def main(cluster: str, log: str, folder: str, source: str) -> None:
    spark = millrace.spark.session("standalone")
    if source == "registered":
        spark.dataSource.register(DefaultSource)
    query = (
        spark.readStream.format("millrace")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", 2_000)
        .option("minPartitions", 4)
        .load(log)
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    tasks = tasks_by_executor(spark.sparkContext)
    workers = spark.sparkContext.parallelize(range(4), 4).map(about_worker).collect()
    print(json.dumps({"batches": batches, "tasks": tasks, "workers": workers}))
    spark.stop()


def tasks_by_executor(context: SparkContext) -> dict[str, int]:
    """The driver is listed as well, and runs none."""
    executors: Any = context._jsc.sc().statusStore().executorList(True)
    listed = [executors.apply(index) for index in range(executors.size())]
    return {each.id(): each.completedTasks() for each in listed if each.id() != "driver"}


def about_worker(_: int) -> tuple[str, str]:
    """The Python that runs a task, and where it has the package from."""
    package = importlib.import_module("millrace")
    return sys.executable, os.path.abspath(str(package.__file__))


if __name__ == "__main__":
    main(*sys.argv[1:])
