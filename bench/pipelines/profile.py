"""How thorough a run of the benchmark of pipelines is."""

from dataclasses import dataclass
from typing import Final

from bench.spark.profile import SPARK_FULL, SPARK_QUICK, SparkProfile


@dataclass(frozen=True, slots=True)
class PipelinesProfile:
    name: str
    sink: SparkProfile  # Its sizes and rounds are those of the log sink.
    rounds: int
    changes: int  # Read in a round.
    view_seconds: float  # For how long a view has to keep up.


PIPELINES_FULL: Final = PipelinesProfile("full", SPARK_FULL, 5, 1_000_000, 60.0)
PIPELINES_QUICK: Final = PipelinesProfile("quick", SPARK_QUICK, 3, 300_000, 15.0)
