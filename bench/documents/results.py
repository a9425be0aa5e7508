"""What the benchmark of documents found, and what it says of the targets.

Rates are medians over rounds, ratios are paired by round, as everywhere in this benchmark.
Processor time is summed over all rounds: one short round is below the clock's resolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

MILLRACE: Final = "millrace"  # One node: what the targets are about.
MILLRACE_3: Final = "millrace-3"
MEMCACHED: Final = "memcached"
LOOPBACK: Final = "loopback"
REFERENCES: Final = (MEMCACHED, LOOPBACK)

BACKFILL: Final = "change stream, from disk"
LIVE: Final = "change stream, while they are written"
BUCKET_SETS: Final = "multi-set, Bucket.set_many"

RATE_FLOORS: Final = {"set": 15_000, "get": 25_000, "multi-set": 60_000, BACKFILL: 100_000}
TEN_SNAPSHOTS_MAX: Final = 1.05  # Of the memory of one.
SNAPSHOT_TIME_MAX: Final = 2.0  # Of a large queue against a small one; the rest is noise.


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one workload on one peer.  The server's time goes on until it has nothing left
    to do for it; `settled_seconds` is until then, `seconds` until the last answer."""

    documents: int
    value_bytes: int
    seconds: float
    settled_seconds: float
    server_cpu_seconds: float | None
    client_cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.documents / self.seconds

    @property
    def settled_rate(self) -> float:
        return self.documents / self.settled_seconds


@dataclass(slots=True)
class Measured:
    workload: str
    peer: str
    rounds: list[Round] = field(default_factory=list)
    failure: str = ""

    @property
    def rate(self) -> float | None:
        return median(each.rate for each in self.rounds) if self.rounds else None

    @property
    def settled_rate(self) -> float | None:
        return median(each.settled_rate for each in self.rounds) if self.rounds else None

    @property
    def megabytes_per_second(self) -> float | None:
        rates = [each.documents * each.value_bytes / each.seconds / 1e6 for each in self.rounds]
        return median(rates) if rates else None

    @property
    def server_cpu_us(self) -> float | None:
        """Of one document."""
        seconds = [each.server_cpu_seconds for each in self.rounds]
        known = [each for each in seconds if each is not None]
        if not known or len(known) < len(seconds):
            return None
        return 1e6 * sum(known) / sum(each.documents for each in self.rounds)

    @property
    def client_cpu_us(self) -> float | None:
        if not self.rounds:
            return None
        seconds = sum(each.client_cpu_seconds for each in self.rounds)
        return 1e6 * seconds / sum(each.documents for each in self.rounds)


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """Of a write queue with so many documents.  Times are medians; `one_bytes` is what the queue
    takes with one snapshot held, `ten_bytes` with ten that writes came between."""

    documents: int
    snapshot_ns: float
    write_after_ns: float  # The first write that has to copy what the snapshot sees.
    one_bytes: int
    ten_bytes: int

    @property
    def growth(self) -> float:
        return self.ten_bytes / self.one_bytes


@dataclass(slots=True)
class DocumentsRun:
    peers: dict[str, str] = field(default_factory=dict)  # Name to description.
    measured: list[Measured] = field(default_factory=list)
    snapshots: list[SnapshotCost] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def find(self, workload: str, peer: str) -> Measured | None:
        for each in self.measured:
            if (each.workload, each.peer) == (workload, peer):
                return each
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that was set as a goal; `found` is None if it is missing."""

    name: str
    found: float | None
    bound: float
    is_ceiling: bool = False

    @property
    def is_met(self) -> bool:
        if self.found is None:
            return False
        return self.found <= self.bound if self.is_ceiling else self.found >= self.bound


def rate_ratio(ours: Measured, theirs: Measured | None) -> float | None:
    """Above 1: ours is faster."""
    if theirs is None or theirs is ours:
        return None
    pairs = zip(ours.rounds, theirs.rounds, strict=False)
    ratios = [mine.rate / other.rate for mine, other in pairs]
    return median(ratios) if ratios else None


def targets(run: DocumentsRun) -> list[Target]:
    found = []
    for workload, floor in RATE_FLOORS.items():
        measured = run.find(workload, MILLRACE)
        rate = None if measured is None else measured.rate
        found.append(Target(f"{workload}, documents/s of one node", rate, floor))
    return found + snapshot_targets(run.snapshots)


def snapshot_targets(costs: Sequence[SnapshotCost]) -> list[Target]:
    if not costs:
        return []
    small, large = costs[0], costs[-1]
    slower = large.snapshot_ns / small.snapshot_ns
    return [
        Target("ten snapshots, memory against one", large.growth, TEN_SNAPSHOTS_MAX, True),
        Target(
            f"a snapshot of {large.documents:,} documents, time against {small.documents:,}",
            slower,
            SNAPSHOT_TIME_MAX,
            True,
        ),
    ]
