"""What the benchmark of pipelines found, and what it says of the targets."""

from dataclasses import dataclass, field
from typing import Final

from bench.measure import Sample, ratio, summarise
from bench.spark.results import Mode, Rates, Source, Target

CHANGES: Final = "changes of a bucket"
CONSUMER: Final = "client, Arrow"
STREAM: Final = "Spark, stream"
SNAPSHOT: Final = "Spark, batch read"
VIEW: Final = "view, count by key"
OFFERED: Final = "offered"
KEPT: Final = "in the view"
VIEW_CHANGES_PER_S: Final = 20_000
SHARE_MIN: Final = 0.5


@dataclass(slots=True)
class Measured:
    """How fast one peer did one workload; a sample for each round."""

    workload: str
    peer: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        return summarise(self.samples).records_per_second if self.samples else None


@dataclass(slots=True)
class PipelinesRun:
    description: str = ""
    writes: list[Rates] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Measured]:
        """All that was measured, what the sink wrote first."""
        sink = [Measured(f"log, {each.name}", _writer(each), each.samples) for each in self.writes]
        return [*sink, *self.measured]

    def against(self, measured: Measured) -> float | None:
        """Its rate against the plain client's, paired by round."""
        if measured.peer in REFERENCES:
            return None
        for other in self.rows:
            if other.peer in REFERENCES and _is_beside(measured, other) and other.samples:
                return ratio(measured.samples, other.samples).rate
        return None


REFERENCES: Final = (Source.CLIENT.value, CONSUMER, OFFERED)


def targets(run: PipelinesRun) -> list[Target]:
    found = [
        Target(f"{each.workload}: Spark against the client", run.against(each), SHARE_MIN, False)
        for each in run.rows
        if each.peer not in (*REFERENCES, SNAPSHOT)
        and each.workload != VIEW
        and Mode.UNTOLD_WRITE.value not in each.workload
    ]
    for each in run.measured:
        if each.workload == VIEW and each.peer == KEPT:
            name = f"{VIEW}: thousands of changes/s that it keeps up with"
            rate = None if each.rate is None else each.rate / 1000
            found.append(Target(name, rate, VIEW_CHANGES_PER_S / 1000, False))
    return found


def _writer(rates: Rates) -> str:
    return rates.source.value if rates.source is Source.CLIENT else "Spark"


def _is_beside(measured: Measured, other: Measured) -> bool:
    """All writes of one size are held against the same appends."""
    name = measured.workload
    for mode in (Mode.STREAM_WRITE, Mode.UNTOLD_WRITE):
        name = name.replace(mode.value, Mode.WRITE.value)
    return other.workload == name
