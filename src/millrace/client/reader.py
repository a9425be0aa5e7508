"""Drives a read stream over the network and hands its blocks and gaps to the application.

The core decides (`core/read_stream.py`); this class starts and tells nodes, runs the procedures
it asks for, keeps its timer, and queues what it delivers until the application takes it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, assert_never

import pyarrow as pa

from millrace.codec.blocks import junk
from millrace.codec.cuts import selected_batch, selected_records
from millrace.core.follow import copy_elsewhere, find_projection
from millrace.core.messages import Message, Start
from millrace.core.procedure import DeadlinePassed, Failure, FailureKind
from millrace.core.read_stream import (
    Deliver,
    DeliverGap,
    Fail,
    FailReason,
    Finish,
    NeedCopy,
    NeedProjection,
    NeedRepair,
    ReadEffect,
    ReadSettings,
    ReadStream,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.repair import ChainTrouble, FillPolicy, Patience, repair
from millrace.core.selections import credit_bytes
from millrace.errors import CorruptBlock, MillraceError, TimedOut, Unavailable, UnknownLog
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.links import Links, ReadPushed
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Block, Gap, LogId, Lsn, NodeId, Record, Selection

PROCEDURE_TIMEOUT_MS = 60_000
START_TIMEOUT_MS = 3_000


class Reader:
    """Records and gaps of [first, end) in order.  Iterate it, or take `batches()`; close it, or
    use it as a context manager, to free its place at the node."""

    def __init__(
        self,
        log: LogId,
        first: Lsn,
        end: Lsn,
        links: Links,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        policy: FillPolicy,
        settings: ReadSettings | None = None,
        name: str | None = None,
        selection: Selection | None = None,
    ) -> None:
        self.selection = selection
        self._name = str(log) if name is None else repr(name)
        self._links = links
        self._directory = directory
        self._runner = runner
        self._policy = policy
        self._patience = Patience()
        self._number = links.open_read(self._pushed)
        self.stream = ReadStream(log, self._number, first, end, settings, selection)
        self._node: NodeId | None = None
        self._ready: deque[Deliver | Gap] = deque()
        self._news = asyncio.Event()
        self._is_finished = False
        self._failure: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken_bytes = 0
        self._perform(self.stream.open())

    # -- Taking -------------------------------------------------------------------------------

    async def take(self, timeout_ms: int | None = None) -> Deliver | Gap | None:
        """The next part of a block, or a gap; None at the end.  Raises TimedOut, and when nothing
        can come any more UnknownLog, CorruptBlock, or UsageError if the client was closed."""
        self._give_back()
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._is_finished:
                return None
            self._news.clear()
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                waits = self.stream.explain()
                raise TimedOut(
                    f"nothing at {self.stream.next_lsn} within {timeout_ms} ms: {waits}"
                ) from None
        part = self._ready.popleft()
        if isinstance(part, Deliver):
            self._taken_bytes = credit_bytes(part.block)
        return part

    def __aiter__(self) -> AsyncIterator[Record | Gap]:
        return self.records()

    async def records(self) -> AsyncIterator[Record | Gap]:
        """One record or gap at a time.  Raises UsageError if the selection leaves out a column."""
        while (part := await self.take()) is not None:
            if isinstance(part, Gap):
                yield part
            else:
                for record in self.part_records(part):
                    yield record

    async def batches(
        self, columns: Sequence[str] | None = None
    ) -> AsyncIterator[pa.RecordBatch | Gap]:
        """One Arrow batch for each block that has selected rows, without copying; gaps in their
        places.  Without `columns` there are `lsn` and those of the selection."""
        while (part := await self.take()) is not None:
            if isinstance(part, Gap):
                yield part
            elif (batch := self.batch(part, columns)).num_rows:
                yield batch

    def batch(self, part: Deliver, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The selected rows of what `take` gave; perhaps none.  Any thread may call this."""
        return selected_batch(
            part.block, self.selection, columns=columns, first=part.first, end=part.end
        )

    def part_records(self, part: Deliver) -> list[Record]:
        """As `batch`, as records."""
        return selected_records(part.block, self.selection, part.first, part.end)

    def explain(self) -> dict[str, object]:
        return self.stream.explain()

    async def close(self) -> None:
        self._perform(self.stream.stop())
        self._links.close_read(self._number)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fail(self, error: MillraceError) -> None:
        """Nothing more will come: `take` hands over what is here already, then raises `error`."""
        if not self._is_finished:
            self._failure = error
            self._perform(self.stream.stop())
            for task in self._tasks:
                task.cancel()

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _give_back(self) -> None:
        if self._taken_bytes:
            taken, self._taken_bytes = self._taken_bytes, 0
            self._perform(self.stream.took(taken))

    # -- Performing ---------------------------------------------------------------------------

    def _perform(self, effects: list[ReadEffect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._ready.append(effect)
                    self._news.set()
                case TellSender(node, message):
                    address = self._directory.addresses.get(node)
                    if address is not None:
                        self._links.tell(address, message)
                case DeliverGap(gap):
                    self._ready.append(gap)
                    self._news.set()
                case SetTimer(ms):
                    self._set_timer(ms)
                case StartSender():
                    self._node = effect.node
                    self._spawn(self._start(effect))
                case NeedProjection():
                    self._spawn(self._project(effect))
                case NeedRepair(lsn):
                    self._spawn(self._repair(lsn))
                case NeedCopy():
                    self._spawn(self._copy(effect))
                case Finish():
                    self._finish()
                case Fail(reason, lsn):
                    self._failure = self._error(reason, lsn)
                    self._finish()
                case _:
                    assert_never(effect)

    def _pushed(self, message: ReadPushed | None) -> None:
        if self._node is None:
            return
        if message is None:
            self._perform(self.stream.lost(self._node))
        else:
            self._perform(self.stream.arrived(self._node, message))

    def _error(self, reason: FailReason, lsn: Lsn) -> MillraceError:
        match reason:
            case FailReason.UNKNOWN_LOG:
                return UnknownLog(f"log {self._name} was deleted; the reader was at {lsn}")
            case FailReason.CORRUPT_BLOCK:
                return CorruptBlock(
                    f"log {self._name}: the block at {lsn} is damaged and no node that answers "
                    f"has a good copy; read on behind it, or start the nodes that are away"
                )
            case _:
                assert_never(reason)

    def _finish(self) -> None:
        self._is_finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._links.close_read(self._number)
        self._news.set()

    def _set_timer(self, ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._perform(self.stream.timer_fired())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._news.set()

    async def _start(self, effect: StartSender) -> None:
        node = effect.node
        try:
            address = await self._directory.address(node)
            if effect.start.version != self.stream.version:
                return  # Another START has replaced this one meanwhile.
            if address is None:
                self._perform(self.stream.lost(node))
                return
            self._links.move_read(self._number, address)
            answer: Message | Failure = await self._ask(node, address, effect.start)
        except Unavailable as error:
            answer = Failure(FailureKind.LOST, str(error))
        if effect.start.version == self.stream.version:
            self._perform(self.stream.arrived(node, answer))

    async def _ask(self, node: NodeId, address: str, start: Start) -> Message:
        try:
            return await self._links.ask(address, start, START_TIMEOUT_MS, node)
        except Unavailable as error:
            self._directory.not_reached(node, address, error)
            raise

    async def _project(self, need: NeedProjection) -> None:
        known = self._runner.projections.get(self.stream.log)
        if self.stream.projection is None and known is not None:
            # Good enough to begin with: a node that knows better says so.  Reading then needs no
            # metadata repository as long as the chain stands.
            self._perform(self.stream.projected(known))
            return
        procedure = find_projection(self.stream.log, need, self.stream.projection)
        answer = await self._or_late(procedure, Failure(FailureKind.TIMED_OUT, "too late"))
        self._perform(self.stream.projected(answer))

    async def _repair(self, lsn: Lsn) -> None:
        projection = self.stream.projection
        assert projection is not None
        procedure = repair(projection, lsn, self._policy, junk, self._patience)
        late = ChainTrouble(projection.head, None, detail="the repair took too long")
        self._perform(self.stream.repaired(lsn, await self._or_late(procedure, late)))

    async def _copy(self, need: NeedCopy) -> None:
        projection = self.stream.projection
        assert projection is not None
        block: Block | None = await self._or_late(copy_elsewhere(projection, need), None)
        self._perform(self.stream.copied(need.lsn, block))

    async def _or_late(self, procedure: Any, late: Any) -> Any:
        try:
            return await self._runner.run(procedure, PROCEDURE_TIMEOUT_MS)
        except DeadlinePassed:
            return late
