"""What is measured: a table of workloads, and the payloads they share.

A workload is data.  Every peer gets the same records: the same bytes, the same size, the same
count.  The bytes are random, so that compression helps nobody.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bench.peer import Ack, Kind
from millrace.limits import KIB, MIB

SIZES: Final = (100, 1 * KIB, 10 * KIB)
DISTINCT_BYTES_MAX: Final = 16 * MIB  # Far beyond any block: a repeat is out of reach.
_SEED: Final = 20


@dataclass(frozen=True, slots=True)
class Workload:
    kind: Kind
    payload_bytes: int
    ack: Ack
    count: int  # Records per round; for a read or restart, records in the log.

    @property
    def name(self) -> str:
        parts = [self.kind.value, size_text(self.payload_bytes)]
        if self.kind in (Kind.APPEND_ONE, Kind.APPEND_TASKS, Kind.APPEND_PIPELINED):
            parts.append(f"ack {self.ack.value}")
        if self.kind is Kind.RESTART:
            parts.append(f"{self.count} records")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Profile:
    """How thorough a run is: the counts of each workload and the bounds of the whole."""

    name: str
    rounds: int
    seconds_max: float  # Of the measured part of the run.
    cell_seconds_max: float  # Of one round on one peer.
    tuning_passes: int  # Tries of each window and each way of reading.
    one_at_a_time: int
    by_tasks: int
    pipelined: tuple[int, ...]  # By SIZES.
    read: tuple[int, ...]  # By SIZES; 0 leaves the size out.
    restart_records: int
    is_cache_filled: bool = False  # The page cache, before servers start (`page_cache.py`).


FULL: Final = Profile(
    name="full",
    rounds=5,
    seconds_max=480.0,
    cell_seconds_max=5.0,
    tuning_passes=2,
    one_at_a_time=2_000,
    by_tasks=20_000,
    pipelined=(300_000, 150_000, 20_000),
    read=(1_000_000, 200_000, 20_000),
    restart_records=20_000,
    is_cache_filled=True,
)
QUICK: Final = Profile(
    name="quick",
    rounds=3,
    seconds_max=45.0,
    cell_seconds_max=1.0,
    tuning_passes=1,
    one_at_a_time=200,
    by_tasks=5_000,
    pipelined=(100_000, 50_000, 5_000),
    read=(0, 50_000, 0),
    restart_records=2_000,
)


def appends(profile: Profile, sizes: Iterable[int] = SIZES) -> list[Workload]:
    return [
        workload
        for ack in Ack
        for size in sizes
        for workload in (
            Workload(Kind.APPEND_ONE, size, ack, profile.one_at_a_time),
            Workload(Kind.APPEND_TASKS, size, ack, profile.by_tasks),
            Workload(Kind.APPEND_PIPELINED, size, ack, profile.pipelined[SIZES.index(size)]),
        )
    ]


def reads(profile: Profile) -> list[Workload]:
    """Loaded with `ack="memory"`, which is quicker and makes no difference to a reader."""
    return [
        Workload(kind, size, Ack.MEMORY, count)
        for size, count in zip(SIZES, profile.read, strict=True)
        for kind in (Kind.READ_RECORDS, Kind.READ_ARROW)
        if count
    ]


def restarts(profile: Profile) -> list[Workload]:
    return [Workload(Kind.RESTART, 1 * KIB, Ack.DISK, profile.restart_records)]


def limits(profile: Profile) -> list[Workload]:
    """Each limit once: a pipelined limit moves bytes, whatever the size of the record."""
    chosen = appends(profile)
    return [
        w
        for w in chosen
        if w.kind is Kind.APPEND_ONE
        or (w.kind is Kind.APPEND_PIPELINED and w.payload_bytes == 1 * KIB)
    ]


def commits(profile: Profile) -> list[Workload]:
    """What commit logs are held against chain logs by."""
    return [each for each in appends(profile, (1 * KIB,)) if each.ack is Ack.DISK]


def nothing(profile: Profile) -> list[Workload]:
    """Spark and documents have workloads of their own, in `spark/` and `documents/`."""
    return []


PARTS: Final[dict[str, Callable[[Profile], list[Workload]]]] = {
    "append": appends,
    "read": reads,
    "limits": limits,
    "restart": restarts,
    "commits": commits,
    "spark": nothing,
    "documents": nothing,
    "pipelines": nothing,
}


def plan(command: str, profile: Profile) -> list[Workload]:
    if command == "all":
        # Restarting comes after everything else that needs the same servers.
        return appends(profile) + reads(profile) + restarts(profile)
    return PARTS[command](profile)


def payloads(size: int, count: int) -> list[bytes]:
    """`count` records of random bytes; the same list for the same arguments."""
    distinct = max(1, min(count, DISTINCT_BYTES_MAX // size))
    generator = random.Random(_SEED)
    made = [generator.randbytes(size) for _ in range(distinct)]
    return (made * -(-count // distinct))[:count]


def size_text(size: int) -> str:
    return f"{size // KIB} KiB" if size % KIB == 0 else f"{size} B"
