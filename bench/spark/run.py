"""Runs the Spark benchmark: one cluster, one session, the parts one after another.

A part that fails is named in the result, and the others go on.
"""

from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from bench.peer import PeerFailure
from bench.progress import progress
from bench.spark import latency, sink, throughput, triggers
from bench.spark.profile import SparkProfile
from bench.spark.results import SparkRun
from bench.spark.stage import open_stage
from millrace.errors import MillraceError

FAILURES: Final = (PeerFailure, MillraceError, PySparkException, Py4JError)
FAILURE_CHARS: Final = 300  # What Java says of an error fills a screen.


def measure(profile: SparkProfile) -> SparkRun:
    run = SparkRun("")

    def part(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except FAILURES as failure:
            run.failures[name] = str(failure)[:FAILURE_CHARS]
            progress(f"  failed: {run.failures[name]}")

    def parts() -> None:
        with open_stage() as stage:
            run.description = stage.describe()
            part(
                "Spark, throughput",
                lambda: throughput.measure(stage, profile, run.rates),
            )
            part(
                "Spark, writing",
                lambda: sink.measure(stage, profile, run.writes),
            )
            part(
                "Spark, triggers",
                lambda: triggers.measure(stage, profile, run.triggers),
            )
            part(
                "Spark, latency",
                lambda: latency.measure(stage, profile, run.latencies),
            )

    part("Spark", parts)
    return run
