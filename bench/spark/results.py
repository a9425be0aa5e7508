"""What the Spark benchmark found, and what it says of the targets.

Ratios of rates and of median times are paired by round, as everywhere in this benchmark.  A round
has too few times for a 95th percentile, so that one is taken over all rounds together.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from bench.measure import Sample, percentile, ratio
from bench.workloads import size_text
from millrace.limits import KIB


class Source(Enum):
    MILLRACE = "millrace"
    MEMORY = "memory"
    PARQUET = "parquet"
    CLIENT = "client"  # Of writes: no Spark at all.


class Mode(Enum):
    BATCH = "batch read"
    STREAM = "stream, AvailableNow"
    WRITE = "batch write"
    STREAM_WRITE = "stream write"
    UNTOLD_WRITE = "batch write, size untold"  # Spark measures every row.


@dataclass(slots=True)
class Rates:
    """How fast one source was read, or written, in one mode; a sample for each round."""

    mode: Mode
    source: Source
    payload_bytes: int
    samples: list[Sample] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)  # Of a stream: with start and stop.

    @property
    def name(self) -> str:
        return f"{self.mode.value}, {size_text(self.payload_bytes)}"


@dataclass(slots=True)
class Times:
    """What each record or trigger of one source took."""

    name: str
    source: Source
    rounds_ms: list[list[float]] = field(default_factory=list)
    parts_ms: dict[str, list[float]] = field(default_factory=dict)  # Of a trigger, by Spark's name.

    def at(self, share: float) -> float | None:
        """A percentile over all rounds; None if nothing was measured."""
        values = sorted(itertools.chain(*self.rounds_ms))
        return percentile(values, share) if values else None


@dataclass(slots=True)
class SparkRun:
    description: str
    rates: list[Rates] = field(default_factory=list)
    triggers: list[Times] = field(default_factory=list)
    latencies: list[Times] = field(default_factory=list)
    writes: list[Rates] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that was set as a goal; `found` is None if a figure is missing."""

    name: str
    found: float | None
    bound: float
    is_ceiling: bool  # Whether `found` must stay below the bound.

    @property
    def is_met(self) -> bool:
        if self.found is None:
            return False
        return self.found <= self.bound if self.is_ceiling else self.found >= self.bound


def rate_ratio(ours: Rates, all_rates: Sequence[Rates], mode: Mode, source: Source) -> float | None:
    """The rate against that of another mode or source with records of the same size."""
    for theirs in all_rates:
        if (theirs.mode, theirs.source, theirs.payload_bytes) == (mode, source, ours.payload_bytes):
            return ratio(ours.samples, theirs.samples).rate
    return None


def median_ratio(ours: Times, all_times: Sequence[Times]) -> float | None:
    """How many times as long as from memory it took, by medians: below 1 is better."""
    memory = _from_memory(ours, all_times)
    if memory is None:
        return None
    pairs = zip(ours.rounds_ms, memory.rounds_ms, strict=False)
    ratios = [median(mine) / median(other) for mine, other in pairs]
    return median(ratios) if ratios else None


def p95_ratio(ours: Times, all_times: Sequence[Times]) -> float | None:
    memory = _from_memory(ours, all_times)
    mine, other = ours.at(0.95), None if memory is None else memory.at(0.95)
    return mine / other if mine and other else None


def _from_memory(ours: Times, all_times: Sequence[Times]) -> Times | None:
    for theirs in all_times:
        if theirs.source is Source.MEMORY and theirs.name == ours.name:
            return theirs
    return None


def targets(run: SparkRun) -> list[Target]:
    """What was promised for Millrace as a source and sink of Spark, of all that was measured."""
    found = []
    for rates in run.rates:
        if rates.source is not Source.MILLRACE:
            continue
        if rates.mode is Mode.BATCH and rates.payload_bytes == 1 * KIB:
            against = rate_ratio(rates, run.rates, Mode.BATCH, Source.MEMORY)
            found.append(Target(f"{rates.name}: rate against memory", against, 0.5, False))
        if rates.mode is Mode.STREAM:
            against = rate_ratio(rates, run.rates, Mode.BATCH, Source.MILLRACE)
            found.append(Target(f"{rates.name}: rate against batch read", against, 0.8, False))
    for times in run.triggers:
        if times.source is Source.MILLRACE:
            against = median_ratio(times, run.triggers)
            found.append(Target(f"{times.name}: time against memory", against, 1.3, True))
    for rates in run.writes:
        if rates.source is Source.MILLRACE and rates.mode is not Mode.UNTOLD_WRITE:
            against = rate_ratio(rates, run.writes, Mode.WRITE, Source.CLIENT)
            found.append(Target(f"{rates.name}: rate against the client", against, 0.5, False))
    return found


def times_text(times: Times) -> str:
    """A line that says how far the run is."""
    found = [times.at(share) for share in (0.5, 0.95)]
    median_ms, p95_ms = ("-" if value is None else f"{value:,.1f} ms" for value in found)
    return f"  {times.source.value:9}{median_ms:>12}, p95 {p95_ms}"


def part_medians_ms(times: Times) -> dict[str, float]:
    return {name: median(values) for name, values in times.parts_ms.items() if values}
