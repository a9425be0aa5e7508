"""Questions about one log, put to the node that can answer them now.

Whoever is asked may be dead, sealed or no member any more: `core/consult.py` follows the chain, and
this class turns what cannot be answered into errors.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.core.consult import Question, consult
from millrace.core.follow import find_projection
from millrace.core.messages import (
    Describe,
    Described,
    FindTime,
    Message,
    Peek,
    Peeked,
    Position,
    Refusal,
    Refused,
    Weigh,
    Weighed,
)
from millrace.core.procedure import Answer, DeadlinePassed, Failure, FailureKind
from millrace.core.projection import Projection
from millrace.core.read_stream import NeedProjection, RewindReason
from millrace.errors import (
    CorruptBlock,
    MetadataUnavailable,
    MillraceError,
    PositionBeyondTail,
    PositionTrimmed,
    ProtocolError,
    TimedOut,
    Unavailable,
    UnknownLog,
)
from millrace.types import Epoch, LogInfo, Lsn, Weight

if TYPE_CHECKING:
    from millrace.client.cluster import Client

T = TypeVar("T")
TIMEOUT_MS = 30_000
WEIGH_TIMEOUT_MS = 3_000
EPOCH_ATTEMPTS_MAX = 8


class Questions:
    def __init__(self, client: "Client", info: LogInfo, forget: Callable[[], None]) -> None:
        """`forget` is called when the log turns out to be deleted."""
        self._client = client
        self._info = info
        self._runner = client.runner
        self._forget = forget

    @property
    def _projection(self) -> Projection:
        return self._runner.projections[self._info.id]

    async def ask(self, question: Question, timeout_ms: int = TIMEOUT_MS) -> Answer:
        self._client.check_open()
        procedure = consult(self._projection, question)
        try:
            return await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            raise self._no_answer(timeout_ms) from None

    async def within(self, timeout_ms: int, work: Coroutine[Any, Any, T]) -> T:
        """For what asks several times: the time is that of all together."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await work
        except TimeoutError:
            raise self._no_answer(timeout_ms) from None

    async def ask_tail(
        self, request: Callable[[Projection], Message], timeout_ms: int = TIMEOUT_MS
    ) -> Answer:
        return await self.ask(lambda p: (p.tail, request(p)), timeout_ms)

    async def peek(self, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """The largest position that was given to a writer."""
        answer = await self.ask(lambda p: (p.sequencer, Peek(p.log, p.epoch)), timeout_ms)
        if not isinstance(answer, Peeked):
            raise self.refused(answer)
        return answer.last

    async def find_time(self, timestamp_us: int, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        answer = await self.ask_tail(lambda p: FindTime(p.log, p.epoch, timestamp_us), timeout_ms)
        if not isinstance(answer, Position):
            raise self.refused(answer)
        return answer.lsn

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        """Asked of the tail and nobody else: a weight is a hint, and a node that cannot give it is
        no reason to change the chain."""
        await self.describe_tail()  # Follows the chain if it has changed.
        projection = self._projection
        request = Weigh(projection.log, projection.epoch, first, end, pieces)
        answer = await self._client.ask_node(projection.tail, request, WEIGH_TIMEOUT_MS)
        if not isinstance(answer, Weighed):
            raise self.refused(answer)
        return list(answer.pieces)

    async def describe_tail(self, timeout_ms: int = TIMEOUT_MS) -> Described:
        """What the current tail holds.  Describe is answered in any epoch, so the epoch is
        compared here."""
        for _ in range(EPOCH_ATTEMPTS_MAX):
            projection = self._projection
            answer = await self.ask_tail(lambda p: Describe(p.log), timeout_ms)
            if not isinstance(answer, Described):
                raise self.refused(answer)
            if answer.epoch == self._projection.epoch:
                return answer
            await self._follow(projection, answer.epoch, timeout_ms)
        raise Unavailable(f"log {self._info.name!r}: its chain keeps changing; try again")

    async def _follow(self, seen: Projection, epoch: Epoch, timeout_ms: int) -> None:
        need = NeedProjection(epoch, RewindReason.EPOCH)
        procedure = find_projection(self._info.id, need, seen)
        try:
            found = await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            raise self._no_answer(timeout_ms) from None
        if isinstance(found, Failure):
            raise self.unavailable(found)

    def _no_answer(self, timeout_ms: int) -> TimedOut:
        return TimedOut(f"log {self._info.name!r}: no answer within {timeout_ms} ms")

    def refused(self, answer: Answer, lsn: int = 0) -> MillraceError:
        """The error for an answer that is none; `lsn` is what was asked about."""
        name = self._info.name
        if isinstance(answer, Failure):
            return self.unavailable(answer)
        if not isinstance(answer, Refused):
            return ProtocolError(f"log {name!r}: unexpected {type(answer).__name__}")
        match answer.reason:
            case Refusal.TRIMMED:
                return PositionTrimmed(
                    f"position {lsn} of log {name!r} was trimmed; "
                    f"`millrace log info {name}` shows where it begins"
                )
            case Refusal.UNWRITTEN:
                return PositionBeyondTail(f"position {lsn} of log {name!r} is not written yet")
            case Refusal.CORRUPT:
                return CorruptBlock(f"log {name!r}: {answer.detail}")
            case _:
                return Unavailable(f"log {name!r}: {answer.reason.value} {answer.detail}")

    def unavailable(self, failure: Failure, what: str = "") -> MillraceError:
        name = self._info.name
        match failure.kind:
            case FailureKind.UNKNOWN_LOG:
                self._forget()
                return UnknownLog(f"log {name!r} was deleted")
            case FailureKind.METADATA:
                kind: type[Unavailable] = MetadataUnavailable
            case _:
                kind = Unavailable
        return kind(f"log {name!r}: {what}{failure.kind.value}: {failure.detail}")
