"""Runs a plan: servers up, each workload in rounds with the peers interleaved, servers down.

Every peer of a round does the same work one after another, and the order turns by one from
round to round, so that neither a slow minute of the machine nor a place in the order favours
anybody.

1. The run is bounded: each workload may use an equal share of the time that is left, and a
   round on a peer its part of that share.
2. Whatever ends the run, every peer is stopped and the directory of its files removed.
3. A peer that fails keeps the figures it has; the others go on.
"""

import asyncio
import gc
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.measure import Load, Sample, cpu_seconds, latency_of
from bench.page_cache import page_cache
from bench.peer import Ack, Kind, Peer, PeerFailure
from bench.processors import BusyWatch
from bench.progress import progress
from bench.workloads import Profile, Workload, payloads

ROUNDS_MIN: Final = 2  # Of a workload whose time is used up: one round has no median.
TUNING_SHARE: Final = 0.25  # Of a workload's time, for trying the ways of one peer.
TUNING_READ_SHARE: Final = 0.5  # Of the records in the log, for each way of reading them.
LOADING_SECONDS_MAX: Final = 20.0
LOADING_WINDOW: Final = 4_096
TASKS: Final = 256  # Writers at once, each waiting for its own append.


@dataclass(slots=True)
class PeerResult:
    """What one peer did with one workload."""

    samples: list[Sample] = field(default_factory=list)
    way: str = ""  # The window or way of reading that was the fastest.
    tried: dict[str, float] = field(default_factory=dict)  # Records per second of each way.
    failure: str = ""


@dataclass(slots=True)
class WorkloadResult:
    workload: Workload
    peers: dict[str, PeerResult]


class Runner:
    def __init__(self, profile: Profile, peers: Sequence[Peer]) -> None:
        self._profile = profile
        self._peers = peers
        self.failures: dict[str, str] = {}  # Peers that could not start.

    async def run(self, workloads: Sequence[Workload]) -> list[WorkloadResult]:
        results: list[WorkloadResult] = []
        seconds_left = self._profile.seconds_max
        for ack in Ack:
            mine = [workload for workload in workloads if workload.ack is ack]
            if not mine:
                continue
            async with AsyncExitStack() as stack:
                cache = stack.enter_context(page_cache())
                peers = await self._start(stack, ack)
                for workload in mine:
                    if self._profile.is_cache_filled:
                        await cache.top_up_in_turns()
                    share = seconds_left / (len(workloads) - len(results))
                    started = time.perf_counter()
                    results.append(await self._run_workload(workload, peers, share))
                    seconds_left -= time.perf_counter() - started
        return results

    async def _start(self, stack: AsyncExitStack, ack: Ack) -> list[Peer]:
        started = []
        for peer in self._peers:
            if peer.name in self.failures:
                continue
            progress(f"starting {peer.name} (ack {ack.value})")
            directory = Path(tempfile.mkdtemp(prefix=f"millrace-bench-{peer.name}-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.push_async_callback(peer.stop)
            try:
                await peer.start(ack, directory)
                started.append(peer)
            except PeerFailure as failure:
                self.failures[peer.name] = str(failure)
                progress(f"  {peer.name} is left out: {failure}")
        return started

    async def _run_workload(
        self, workload: Workload, peers: Sequence[Peer], share_seconds: float
    ) -> WorkloadResult:
        progress(workload.name)
        cells = [_Cell(peer, workload) for peer in peers if peer.supports(workload.kind)]
        deadline = time.perf_counter() + share_seconds
        for cell in cells:
            await cell.prepare(share_seconds, self._profile.tuning_passes)
        # Most cells end long before their time is up, so only the least rounds are reserved.
        seconds_left = max(0.2, deadline - time.perf_counter())
        cell_seconds = min(
            self._profile.cell_seconds_max, seconds_left / (ROUNDS_MIN * max(1, len(cells)))
        )
        for number in range(self._profile.rounds):
            if number >= ROUNDS_MIN and time.perf_counter() > deadline:
                progress(f"  stopped after {number} rounds: its time is used up")
                break
            turn = number % max(1, len(cells))
            for cell in cells[turn:] + cells[:turn]:
                await cell.round(cell_seconds)
        for cell in cells:
            await cell.clean_up()
        return WorkloadResult(workload, {cell.peer.name: cell.result for cell in cells})


class _Cell:
    """One workload on one peer."""

    def __init__(self, peer: Peer, workload: Workload) -> None:
        self.peer = peer
        self.result = PeerResult()
        self._workload = workload
        self._payloads = payloads(workload.payload_bytes, workload.count)
        self._log = "-".join(workload.name.replace(",", "").split())
        self._records = 0  # Loaded for reading.

    async def prepare(self, share_seconds: float, tuning_passes: int) -> None:
        try:
            await self.peer.create_log(self._log)
            if self._workload.kind in (Kind.READ_RECORDS, Kind.READ_ARROW, Kind.RESTART):
                load = Load(self._payloads, min(LOADING_SECONDS_MAX, share_seconds / 3))
                await self.peer.append_pipelined(self._log, load, LOADING_WINDOW)
                self._records = min(load.acknowledged, self._workload.count)
            await self._tune(share_seconds * TUNING_SHARE, tuning_passes)
        except PeerFailure as failure:
            self._fail(failure)

    async def round(self, seconds_max: float) -> None:
        if self.result.failure:
            return
        try:
            sample = await self._measure(self._payloads, self.result.way, seconds_max)
        except PeerFailure as failure:
            self._fail(failure)
            return
        self.result.samples.append(sample)
        progress(f"  {self.peer.name:9}{_sample_text(self._workload.kind, sample)}")

    async def clean_up(self) -> None:
        try:
            await self.peer.delete_log(self._log)
        except PeerFailure as failure:
            progress(f"  {self.peer.name}: {failure}")

    async def _tune(self, seconds_max: float, passes: int) -> None:
        """Try every way in turn and keep the one with the best try: each peer at its best."""
        ways = self._ways()
        self.result.way = ways[0]
        if len(ways) == 1:
            return
        some = self._payloads
        if self._workload.kind is not Kind.APPEND_PIPELINED:  # An append ends by its deadline.
            some = some[: max(1, int(len(some) * TUNING_READ_SHARE))]
        tried = self.result.tried
        for way in [*ways] * passes:
            sample = await self._measure(some, way, seconds_max / (len(ways) * passes))
            tried[way] = max(tried.get(way, 0.0), sample.records_per_second)
        self.result.way = max(tried, key=tried.__getitem__)

    def _ways(self) -> Sequence[str]:
        match self._workload.kind:
            case Kind.APPEND_PIPELINED:
                return [str(window) for window in self.peer.windows]
            case Kind.READ_RECORDS | Kind.READ_ARROW:
                return self.peer.read_ways
            case Kind.APPEND_ONE | Kind.APPEND_TASKS | Kind.RESTART:
                return [""]

    async def _measure(self, records: Sequence[bytes], way: str, seconds_max: float) -> Sample:
        match self._workload.kind:
            case Kind.RESTART:
                return await self._measure_restart()
            case Kind.READ_RECORDS | Kind.READ_ARROW:
                return await self._measure_read(min(len(records), self._records), way)
            case Kind.APPEND_ONE | Kind.APPEND_TASKS | Kind.APPEND_PIPELINED:
                return await self._measure_append(records, way, seconds_max)

    async def _measure_append(
        self, records: Sequence[bytes], way: str, seconds_max: float
    ) -> Sample:
        gc.collect()
        servers = self.peer.process_ids()
        cpu_before = cpu_seconds(servers)
        load = Load(records, seconds_max)
        watch = BusyWatch(servers)
        started = time.perf_counter()
        if self._workload.kind is Kind.APPEND_ONE:
            await self._append_in_turn(iter(records), load)
        elif self._workload.kind is Kind.APPEND_TASKS:
            shared = iter(records)
            await asyncio.gather(*(self._append_in_turn(shared, load) for _ in range(TASKS)))
        else:
            await self.peer.append_pipelined(self._log, load, int(way))
        seconds = time.perf_counter() - started
        busy = watch.read()
        if load.acknowledged == 0:
            raise PeerFailure(f"nothing was acknowledged within {seconds_max:.1f} s")
        return Sample(
            records=load.acknowledged,
            payload_bytes=load.acknowledged * self._workload.payload_bytes,
            seconds=seconds,
            cpu_seconds=_difference(cpu_before, cpu_seconds(servers)),
            latency=latency_of(load.latencies_ns),
            is_cut_short=load.acknowledged < len(records),
            busy=busy,
        )

    async def _append_in_turn(self, records: Iterator[bytes], load: Load) -> None:
        append, log = self.peer.append, self._log
        for payload in records:
            started_ns = time.perf_counter_ns()
            await append(log, payload)
            if load.is_over(load.acknowledge(started_ns)):
                return

    async def _measure_read(self, count: int, way: str) -> Sample:
        gc.collect()
        read = (
            self.peer.read_records
            if self._workload.kind is Kind.READ_RECORDS
            else self.peer.read_arrow
        )
        servers = self.peer.process_ids()
        cpu_before = cpu_seconds(servers)
        started = time.perf_counter()
        outcome = await read(self._log, count, way)
        seconds = time.perf_counter() - started
        if outcome.records < count or outcome.payload_bytes < count * self._workload.payload_bytes:
            raise PeerFailure(f"read {outcome.records} records instead of {count}")
        return Sample(
            records=outcome.records,
            payload_bytes=outcome.payload_bytes,
            seconds=seconds,
            cpu_seconds=_difference(cpu_before, cpu_seconds(servers)),
            latency=None,
            is_cut_short=count < self._workload.count,
            copies=outcome.copies,
        )

    async def _measure_restart(self) -> Sample:
        """As one record whose latency is the restart; processor time began with the servers."""
        seconds = await self.peer.restart(self._log)
        latency = latency_of([int(seconds * 1e9)])
        return Sample(1, 0, seconds, None, latency, self._records < self._workload.count)

    def _fail(self, failure: PeerFailure) -> None:
        self.result.failure = str(failure)
        progress(f"  {self.peer.name} failed: {failure}")


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _sample_text(kind: Kind, sample: Sample) -> str:
    if kind is Kind.RESTART:
        return f"{sample.seconds:9.2f} s"
    return f"{sample.records_per_second:12,.0f}/s {sample.megabytes_per_second:9,.1f} MB/s"
