"""Drives the read stream of a chain log (`core/read_stream.py`): starts and tells its tail, runs
the procedures that it asks for, keeps its timer."""

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from millrace.client.senders import Chores, Senders
from millrace.codec.blocks import junk
from millrace.core.follow import copy_elsewhere, find_projection
from millrace.core.messages import Message
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
    ReadPhase,
    ReadSettings,
    ReadStream,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.repair import ChainTrouble, FillPolicy, Patience, repair
from millrace.errors import CorruptBlock, MillraceError, UnknownLog
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.links import Links
from millrace.runtime.procedures import ProcedureRunner
from millrace.types import Block, Gap, LogId, Lsn, NodeId, Selection

PROCEDURE_TIMEOUT_MS = 60_000


class ChainReading:
    def __init__(
        self,
        log: LogId,
        first: Lsn,
        end: Lsn,
        links: Links,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        policy: FillPolicy,
        settings: ReadSettings | None,
        name: str,
        selection: Selection | None,
    ) -> None:
        self._name = name
        self._runner = runner
        self._policy = policy
        self._patience = Patience()
        self._senders = Senders(links, directory, self._arrived, self._lost)
        self._chores = Chores(self._timer_fired, self._failed)
        self.stream = ReadStream(log, self._senders.number, first, end, settings, selection)
        self._deliver: Callable[[Deliver | Gap], None]
        self._finish: Callable[[BaseException | None], None]

    def open(
        self,
        deliver: Callable[[Deliver | Gap], None],
        finish: Callable[[BaseException | None], None],
    ) -> None:
        """Begin.  `finish` hears that nothing more comes, and what is to blame if not the end."""
        self._deliver = deliver
        self._finish = finish
        self._perform(self.stream.open())

    @property
    def next_lsn(self) -> Lsn:
        return self.stream.next_lsn

    @property
    def is_served(self) -> bool:
        return self.stream.phase in (ReadPhase.RECORDS, ReadPhase.TAIL)

    @property
    def bytes_received(self) -> int:
        return self.stream.bytes_received

    @property
    def bytes_delivered(self) -> int:
        return self.stream.bytes_delivered

    def explain(self) -> dict[str, object]:
        return self.stream.explain()

    def took(self, size_bytes: int) -> None:
        self._perform(self.stream.took(size_bytes))

    def stop(self) -> None:
        self._perform(self.stream.stop())
        self._chores.cancel()

    async def close(self) -> None:
        self.stop()
        self._senders.close()
        await self._chores.close()

    def _perform(self, effects: list[ReadEffect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._deliver(effect)
                case TellSender(node, message):
                    self._senders.tell(node, message)
                case DeliverGap(gap):
                    self._deliver(gap)
                case SetTimer(ms):
                    self._chores.set_timer(ms)
                case StartSender(node, start):
                    is_wanted = partial(self._is_current, start.version)
                    self._chores.spawn(self._senders.start(node, start, is_wanted))
                case NeedProjection():
                    self._chores.spawn(self._project(effect))
                case NeedRepair(lsn):
                    self._chores.spawn(self._repair(lsn))
                case NeedCopy():
                    self._chores.spawn(self._copy(effect))
                case Finish():
                    self._end(None)
                case Fail(reason, lsn):
                    self._end(self._error(reason, lsn))
                case _:
                    assert_never(effect)

    def _is_current(self, version: int) -> bool:
        return self.stream.version == version

    def _end(self, error: MillraceError | None) -> None:
        self._chores.cancel_timer()
        self._senders.close()
        self._finish(error)

    def _failed(self, error: BaseException) -> None:
        self._finish(error)

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

    def _arrived(self, node: NodeId, message: Message | Failure) -> None:
        self._perform(self.stream.arrived(node, message))

    def _lost(self, node: NodeId) -> None:
        self._perform(self.stream.lost(node))

    def _timer_fired(self) -> None:
        self._perform(self.stream.timer_fired())

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
