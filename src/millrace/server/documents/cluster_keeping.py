"""What the keeper does for buckets: masters, copies, rebalances, failovers that operators ask for,
and the end of deleted ones.

What is to be done is decided in `core/documents/watching.py` and `rebalance.py`, every round anew
unless the bucket is calm (`calmness.py`); here it is begun, and what takes long runs in tasks of
its own.

I1  A partition has at most one move under way, and after a failure rests for a while.
I2  Moves end with the process or by themselves.  One that is cut short leaves somebody pending in
    the seat, which whoever is the keeper next undoes.
I3  A rebalance says who has copies as long as it runs; otherwise lost ones are made anew.
I4  A bucket of which somebody wants something is not calm, nor one whose last look failed.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from millrace.core.documents.calmness import CALM_MS, Calm
from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.failing_over import CannotFailOver
from millrace.core.documents.failover_request import (
    FailoverRequest,
    around_usual,
    judge,
    leave_out,
    left_of,
)
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.moving import Moved, NotMoved, NotMovedReason, move
from millrace.core.documents.rebalance import (
    Move,
    RebalanceRecord,
    choose_moves,
    go_on,
    undone_once,
)
from millrace.core.documents.settling import NotChanged
from millrace.core.documents.tending import (
    Tended,
    Tending,
    drop_bucket,
    fail_over,
    find_held,
    tend,
)
from millrace.core.documents.watching import (
    PATIENCE_MS,
    REPLACE_AFTER_MS,
    BucketWatch,
    Surroundings,
)
from millrace.core.procedure import ClusterView, DeadlinePassed, Procedure
from millrace.core.statuses import Entries
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Role

TEND_TIMEOUT_MS: Final = 30_000
MOVE_TIMEOUT_MS: Final = 6 * 3_600_000  # As long as it makes progress; a stall ends it before.
DROP_TIMEOUT_MS: Final = 10_000
REST_S: Final = 10.0

logger = logging.getLogger("millrace")
T = TypeVar("T")
Stuck = dict[PartitionId, CannotFailOver]


def draw_ids() -> Iterator[FailoverId]:
    while True:
        yield FailoverId(1 + secrets.randbelow(2**64 - 1))


def surroundings(view: ClusterView, entries: Entries) -> Surroundings:
    """Nodes that are being emptied, or whose disk is doubtful, serve what they have and get no
    more."""
    hosts = [node for node in view.nodes if Role.DOCUMENTS in node.roles]
    live = frozenset(node.id for node in hosts if node.id in view.live)
    disabled = {node for node, entry in entries.items() if entry.is_disabled}
    locations = {node.id: node.location for node in hosts}
    lives = {node: life for node, life in view.lives.items() if node in live}
    return Surroundings(live, live - disabled, locations, lives=lives)


class _Wishes(msgspec.Struct, frozen=True):
    """What somebody wants of a bucket, if it is not done or given up, with the versions."""

    rebalance: RebalanceRecord | None = None
    failover: FailoverRequest | None = None
    rebalance_version: int = 0
    failover_version: int = 0


NO_WISHES: Final = _Wishes()


class _Watched:
    """One bucket, between rounds."""

    def __init__(self, watch: BucketWatch) -> None:
        self.watch = watch
        self.moves: dict[PartitionId, Move] = {}
        self.resting_until_s: dict[PartitionId, float] = {}
        self.stuck: Stuck = {}
        self.calm: Calm | None = None


class ClusterKeeping:
    def __init__(
        self,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        patience_ms: int = PATIENCE_MS,
        replace_after_ms: int = REPLACE_AFTER_MS,
        calm_ms: int = CALM_MS,
        draw: Callable[[], Iterator[FailoverId]] = draw_ids,
    ) -> None:
        self.moves_done = 0
        self.moves_undone = 0
        self._directory = directory
        self._runner = runner
        self._patience_ms = patience_ms
        self._replace_after_ms = replace_after_ms
        self._calm_ms = calm_ms
        self._ids = draw()
        self._watched: dict[int, _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stuck(self) -> dict[int, Stuck]:
        """Partitions without a master, and why none can be chosen, by bucket id."""
        return {id: watched.stuck for id, watched in self._watched.items() if watched.stuck}

    async def look(self, view: ClusterView) -> None:
        """A round.  Buckets do not wait for each other."""
        around = surroundings(view, await self._directory.status_entries())
        records = await self._directory.buckets()
        for gone in self._watched.keys() - {record.id for record in records}:
            del self._watched[gone]
        wishes = await self._open_wishes(records) if records else {}
        looks = [
            self._look_after(record, around, wishes.get(record.id, NO_WISHES))
            for record in records
            if record.id in wishes or not self._is_calm(record, around)
        ]
        await asyncio.gather(*looks)

    async def _open_wishes(self, records: Iterable[BucketRecord]) -> dict[int, _Wishes]:
        """By bucket id.  A wish for a bucket that was deleted is none for the next of its name."""
        ids = {record.name: record.id for record in records}
        wishes: dict[int, _Wishes] = {}
        for name, (rebalance, version) in (await self._directory.rebalances()).items():
            id = ids.get(name)
            if id is not None and rebalance.is_open and rebalance.is_of(id):
                wishes[id] = _Wishes(rebalance, rebalance_version=version)
        for name, (failover, version) in (await self._directory.failovers()).items():
            id = ids.get(name)
            if id is not None and failover.is_open and failover.is_of(id):
                wishes[id] = replace(
                    wishes.get(id, NO_WISHES), failover=failover, failover_version=version
                )
        return wishes

    def _is_calm(self, record: BucketRecord, around: Surroundings) -> bool:
        watched = self._watched.get(record.id)
        calm = None if watched is None else watched.calm
        return calm is not None and calm.lasts(record, around, _loop_ms())

    async def drop_leftovers(self, view: ClusterView) -> None:
        """The nodes are asked before the buckets are listed: one that a node has, and the list does
        not, was deleted.  A number that this repository has not given out is no bucket of its own:
        it is not the one that the nodes knew, and may be empty for a reason that will be mended."""
        live = [node.id for node in view.nodes if node.id in view.live]
        held = await self._run(find_held(live), DROP_TIMEOUT_MS) or {}
        known = {record.id for record in await self._directory.buckets()}
        unused = await self._directory.unused_bucket_id()
        for node, buckets in held.items():
            for id in sorted(buckets - known):
                if id < unused:
                    await self._run(drop_bucket(node, id), DROP_TIMEOUT_MS)
                else:
                    _log("bucket.unknown", bucket=id, node=node)

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_after(
        self, record: BucketRecord, around: Surroundings, wishes: _Wishes
    ) -> None:
        watched = self._watched.get(record.id)
        if watched is None:
            fresh = BucketWatch(self._patience_ms, self._replace_after_ms)
            watched = self._watched[record.id] = _Watched(fresh)
        watched.calm = None  # Keeps I4.
        round = Tending(
            watched.watch,
            around,
            self._ids,
            _loop_ms(),
            watched.watch.seats,
            lambda: frozenset(watched.moves),
            is_rebalancing=wishes.rebalance is not None,
        )
        if wishes.failover is not None:
            round = await self._fail_over(record, round, wishes.failover, wishes.failover_version)
        tended = await self._run(tend(record.name, round), TEND_TIMEOUT_MS)
        if not isinstance(tended, Tended):
            detail = tended.detail if isinstance(tended, NotChanged) else "it took too long"
            _log("bucket.not_tended", bucket=record.name, detail=detail)
            return
        self._tell_stuck(record.name, watched, tended.plan.stuck)
        if wishes.rebalance is not None:
            await self._rebalance(tended.record, watched, around, wishes)
            return
        running = watched.moves.values()
        wanted = self._rested(watched, tended.plan.moves)
        self._begin(tended.record, watched, choose_moves(wanted, running, tended.record.seats))
        if tended.is_calm:
            watched.calm = Calm(tended.record, round.around, round.now_ms + self._calm_ms)

    async def _fail_over(
        self, record: BucketRecord, usual: Tending, request: FailoverRequest, version: int
    ) -> Tending:
        """What an operator asked for; the usual round as it is to be after it."""
        left = left_of(request, record)
        round = replace(
            usual,
            around=leave_out(usual.around, request.without),
            forced=left if request.is_forced else (),
        )
        procedure = fail_over(record.name, round, partial(left_of, request))
        tended = await self._run(procedure, TEND_TIMEOUT_MS)
        if isinstance(tended, Tended):
            record, stuck = tended.record, tended.plan.stuck
        else:
            stuck = {}
        await self._judge_failover(record, request, stuck, version)
        return replace(usual, around=around_usual(usual.around, request, stuck))

    async def _judge_failover(
        self, record: BucketRecord, request: FailoverRequest, stuck: Stuck, version: int
    ) -> None:
        after = judge(request, record, stuck, _now_ms())
        if after == request:
            return
        if await self._directory.replace_failover(record.name, after, version):
            fields = {"state": after.state.value, "partitions": list(after.partitions)}
            _log("failover.changed", bucket=record.name, **fields, detail=after.detail)

    def _tell_stuck(self, name: str, watched: _Watched, stuck: Stuck) -> None:
        for number, why in stuck.items():
            if watched.stuck.get(number) != why:
                fields = {"reason": why.reason.value, "detail": why.detail}
                _log("partition.stuck", bucket=name, partition=number, **fields)
        watched.stuck = stuck

    async def _rebalance(
        self,
        record: BucketRecord,
        watched: _Watched,
        around: Surroundings,
        wishes: _Wishes,
    ) -> None:
        """The record is written before a move begins, so that what it says is never ahead."""
        rebalance, version = wishes.rebalance, wishes.rebalance_version
        assert rebalance is not None
        running = watched.moves.values()
        after, moves = go_on(rebalance, record, around.usable, around.locations, running, _now_ms())
        if after != rebalance:
            if not await self._directory.replace_rebalance(record.name, after, version):
                return  # Somebody stopped it, or asked for another.
            if after.state is not rebalance.state:
                fields = {"state": after.state.value, "moves": after.moves}
                _log("rebalance.changed", bucket=record.name, **fields, detail=after.detail)
        self._begin(record, watched, self._rested(watched, moves))

    # -- Moves --------------------------------------------------------------------------------

    def _rested(self, watched: _Watched, moves: list[Move]) -> list[Move]:
        now_s = asyncio.get_running_loop().time()
        return [each for each in moves if watched.resting_until_s.get(each.partition, 0.0) <= now_s]

    def _begin(self, record: BucketRecord, watched: _Watched, moves: list[Move]) -> None:
        for each in moves:
            watched.moves[each.partition] = each  # Keeps I1.
            task = asyncio.create_task(self._move(record, watched, each))
            self._tasks.add(task)
            task.add_done_callback(partial(self._move_ended, watched, each))

    async def _move(self, bucket: BucketRecord, watched: _Watched, plan: Move) -> None:
        result = await self._runner.run(move(bucket.name, plan), MOVE_TIMEOUT_MS)
        if isinstance(result, Moved):
            self.moves_done += 1
            watched.resting_until_s.pop(plan.partition, None)
            return
        self.moves_undone += 1
        fields = {"partition": plan.partition, "reason": result.reason.value}
        _log("partition.not_moved", bucket=bucket.name, **fields, detail=result.detail)
        if result.reason is not NotMovedReason.OUTDATED:  # Else the plan was old, not hopeless.
            now_s = asyncio.get_running_loop().time()
            watched.resting_until_s[plan.partition] = now_s + REST_S
            await self._count_failure(bucket, result)

    async def _count_failure(self, bucket: BucketRecord, why: NotMoved) -> None:
        while True:
            record, version = await self._directory.read_rebalance(bucket.name)
            if record is None or not record.is_open or not record.is_of(bucket.id):
                return
            counted = undone_once(record, why.detail, _now_ms())
            if await self._directory.replace_rebalance(bucket.name, counted, version):
                return

    def _move_ended(self, watched: _Watched, plan: Move, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        watched.moves.pop(plan.partition, None)
        if not task.cancelled() and task.exception() is not None:
            _log("partition.not_moved", partition=plan.partition, detail=repr(task.exception()))

    async def _run(self, procedure: Procedure[T], timeout_ms: int) -> T | None:
        """None if it took too long: the next round will do."""
        try:
            return await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            return None


def _now_ms() -> int:
    return int(time.time() * 1000)


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _log(event: str, **fields: object) -> None:
    logger.info(event, extra={"fields": fields})
