"""How thorough a run of the Spark benchmark is, and when its rounds end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bench.progress import progress
from bench.runner import ROUNDS_MIN
from bench.workloads import SIZES
from millrace.limits import KIB

LOW_RATE_BYTES: Final = 1 * KIB  # Size of the records that come one by one.


@dataclass(frozen=True, slots=True)
class SparkProfile:
    """Each `..._seconds_max` is a time after which no further round begins."""

    name: str
    rows: tuple[int, ...]  # In each log, by SIZES; 0 leaves the size out.
    warm_up_rounds: int  # Before the first size; each further size has one.
    rounds: int
    size_seconds_max: float  # Of the rounds of one size.
    bursts: int  # Of records for each source, to be read one in a trigger.
    burst_records: int
    burst_seconds_max: float
    latency_rounds: int
    latency_records: int  # Of one round for each source, one at a time.
    latency_seconds_max: float

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Bytes of a record and how many records, of each size that is measured."""
        return [(size, rows) for size, rows in zip(SIZES, self.rows, strict=True) if rows]


SPARK_FULL: Final = SparkProfile(
    name="full",
    rows=(4_000_000, 400_000, 40_000),
    warm_up_rounds=2,
    rounds=5,
    size_seconds_max=60.0,
    bursts=8,
    burst_records=10,
    burst_seconds_max=30.0,
    latency_rounds=6,
    latency_records=5,
    latency_seconds_max=30.0,
)
SPARK_QUICK: Final = SparkProfile(
    name="quick",
    rows=(0, 200_000, 0),
    warm_up_rounds=1,
    rounds=3,
    size_seconds_max=18.0,
    bursts=4,
    burst_records=8,
    burst_seconds_max=12.0,
    latency_rounds=2,
    latency_records=5,
    latency_seconds_max=10.0,
)


class Cell(Protocol):
    """One way to read or write, measured in rounds."""

    def round(self, *, is_kept: bool) -> None: ...


def measure_in_turns(cells: Sequence[Cell], profile: SparkProfile, *, is_first: bool) -> None:
    """Of one size: rounds to warm up, then those that count, each begun by another cell."""
    for _ in range(profile.warm_up_rounds if is_first else 1):
        for cell in cells:
            cell.round(is_kept=False)
    deadline = time.perf_counter() + profile.size_seconds_max
    for turn in rounds(profile.rounds, deadline):
        first = turn % len(cells)
        for cell in [*cells[first:], *cells[:first]]:
            cell.round(is_kept=True)


def rounds(count: int, deadline: float) -> Iterator[int]:
    """The numbers of rounds; the clock may end them early, but one round has no median."""
    for number in range(count):
        if number >= ROUNDS_MIN and time.perf_counter() > deadline:
            progress(f"  stopped after {number} rounds: its time is used up")
            return
        yield number
