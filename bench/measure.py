"""The arithmetic of a benchmark: latencies, processor time, medians and ratios.

A shared machine is noisy, so every workload runs in several rounds with the peers interleaved,
and everything reported is a median over rounds.  Processor time is read from `/proc`, so that the
cost of servers and of their children counts as well as the client's.

1. A ratio pairs the same round of two peers before the median is taken: noise that slowed a
   whole round cancels out.
2. A ratio above 1 always means that the first peer is better.
3. Percentiles are nearest-rank: each is a latency that was really seen.
"""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.processors import Busy

GIGABYTE: Final = 1e9
CPU_SECONDS_RESOLVED: Final = 0.05  # Below five clock ticks a processor time is mostly rounding.
_PROC: Final = Path("/proc")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Load:
    """The records one cell appends, when to stop, and what came back."""

    __slots__ = ("acknowledged", "deadline_ns", "latencies_ns", "payloads")

    def __init__(self, payloads: Sequence[bytes], seconds_max: float) -> None:
        self.payloads = payloads
        self.deadline_ns = time.perf_counter_ns() + int(seconds_max * 1e9)
        self.latencies_ns: list[int] = []
        self.acknowledged = 0

    def acknowledge(self, started_ns: int) -> int:
        """Count one acknowledged record; answers the time now."""
        now_ns = time.perf_counter_ns()
        self.latencies_ns.append(now_ns - started_ns)
        self.acknowledged += 1
        return now_ns

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self.deadline_ns


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of one round, in microseconds."""

    samples: int
    p50_us: float
    p99_us: float
    p999_us: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one workload on one peer."""

    records: int
    payload_bytes: int
    seconds: float
    cpu_seconds: float | None
    latency: Latency | None
    is_cut_short: bool = False
    busy: Busy | None = None
    copies: float | None = None  # As in ReadOutcome.

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.payload_bytes / self.seconds / 1e6


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the rounds of one workload on one peer."""

    rounds: int
    records_per_second: float
    megabytes_per_second: float
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    cpu_seconds_per_gigabyte: float | None
    is_cut_short: bool


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much better the first of two peers is; None where one of them has no figure."""

    rate: float | None
    p50: float | None
    p99: float | None
    p999: float | None
    cpu: float | None


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; `share` is in (0, 1]."""
    assert ordered, "a percentile of nothing"
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_of(latencies_ns: Iterable[int]) -> Latency | None:
    ordered = sorted(latencies_ns)
    if not ordered:
        return None
    p50, p99, p999 = (percentile(ordered, share) / 1e3 for share in (0.5, 0.99, 0.999))
    return Latency(len(ordered), p50, p99, p999)


def summarise(samples: Sequence[Sample]) -> Summary:
    assert samples, "a summary of no rounds"
    latencies = [sample.latency for sample in samples if sample.latency is not None]
    return Summary(
        rounds=len(samples),
        records_per_second=median(sample.records_per_second for sample in samples),
        megabytes_per_second=median(sample.megabytes_per_second for sample in samples),
        p50_us=_median([latency.p50_us for latency in latencies]),
        p99_us=_median([latency.p99_us for latency in latencies]),
        p999_us=_median([latency.p999_us for latency in latencies]),
        cpu_seconds_per_gigabyte=cpu_seconds_per_gigabyte(samples),
        is_cut_short=any(sample.is_cut_short for sample in samples),
    )


def cpu_seconds_per_gigabyte(samples: Sequence[Sample]) -> float | None:
    """Over all rounds together: one short round is below the clock's resolution."""
    seconds = 0.0
    for sample in samples:
        if sample.cpu_seconds is None:
            return None
        seconds += sample.cpu_seconds
    total_bytes = sum(sample.payload_bytes for sample in samples)
    if total_bytes == 0 or seconds < CPU_SECONDS_RESOLVED:
        return None
    return seconds / (total_bytes / GIGABYTE)


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Ratio:
    """Keeps 1 and 2: paired by round; a rate is ours/theirs, a cost is theirs/ours."""
    pairs = list(zip(ours, theirs, strict=False))
    latencies = [
        (mine.latency, other.latency)
        for mine, other in pairs
        if mine.latency is not None and other.latency is not None
    ]
    our_cpu, their_cpu = cpu_seconds_per_gigabyte(ours), cpu_seconds_per_gigabyte(theirs)
    return Ratio(
        rate=_median([m.records_per_second / o.records_per_second for m, o in pairs]),
        p50=_median([o.p50_us / m.p50_us for m, o in latencies]),
        p99=_median([o.p99_us / m.p99_us for m, o in latencies]),
        p999=_median([o.p999_us / m.p999_us for m, o in latencies]),
        cpu=their_cpu / our_cpu if our_cpu and their_cpu else None,
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def tree_cpu_seconds(roots: Iterable[int]) -> float | None:
    """User and system time of these processes and all their descendants, living or reaped."""
    if not _PROC.joinpath("self", "stat").exists():
        return None
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            # Own user and system time, then those of children that ended and were waited for.
            ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    waiting, seen = list(roots), set[int]()
    while waiting:
        process_id = waiting.pop()
        if process_id not in seen:
            seen.add(process_id)
            waiting.extend(children.get(process_id, ()))
    return sum(ticks.get(process_id, 0) for process_id in seen) / _TICKS_PER_SECOND


def cpu_seconds(servers: Iterable[int]) -> float | None:
    """What the run has used so far: this process (the client) and the server trees."""
    used = tree_cpu_seconds(servers)
    # process_time counts this process alone, so its children are not counted twice.
    return None if used is None else used + time.process_time()


def _stat_fields(process_id: int) -> list[str] | None:
    """The fields of `/proc/<pid>/stat` from the state on; None when the process is gone."""
    try:
        text = _PROC.joinpath(str(process_id), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
