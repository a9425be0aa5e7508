"""Spark's own cluster, as the tests start it: every worker works."""

import json

from tests.support.spark import StandaloneCluster, run_driver

# A barrier runs its tasks at the same time or not at all, and a worker has one core.
BOTH_WORKERS = """
import json, os, sys
from pyspark import BarrierTaskContext
import millrace.spark
from tests.support.spark import wait_for_executors

spark = millrace.spark.session(master=sys.argv[1], spark_executor_memory="512m")
wait_for_executors(spark, 2)

def work(numbers):
    told = BarrierTaskContext.get().allGather(os.environ["SPARK_EXECUTOR_DIRS"])
    yield sum(numbers), told

tasks = spark.sparkContext.parallelize(range(100), 2).barrier().mapPartitions(work).collect()
print(json.dumps(tasks))
"""


def test_a_job_runs_on_both_workers(standalone: StandaloneCluster) -> None:
    said = run_driver(BOTH_WORKERS, standalone.master)
    (first, told), (second, same) = json.loads(said)
    assert first + second == sum(range(100))
    assert told == same and len(set(told)) == 2
