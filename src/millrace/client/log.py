"""One log, as an application uses it: append, read, tail, get, trim, seal."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from millrace.client import positions
from millrace.client.batcher import Batcher
from millrace.client.many import all_settled, check_record, draft_table, draft_values
from millrace.client.outcomes import BlockAppend, TellOutcome, UnknownAppend, settle
from millrace.client.positions import Anchor, Position
from millrace.client.reader import Reader
from millrace.codec.blocks import place, records
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Append, Appended
from millrace.core.consult import Question, consult
from millrace.core.follow import copy_elsewhere, find_projection
from millrace.core.messages import (
    Describe,
    Described,
    FindTime,
    Found,
    Message,
    Peek,
    Peeked,
    Read,
    Refusal,
    Refused,
)
from millrace.core.messages import Position as FoundPosition
from millrace.core.procedure import Answer, DeadlinePassed, Failure, FailureKind
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_stream import NeedCopy, NeedProjection, ReadSettings, RewindReason
from millrace.core.reconfigure import Change
from millrace.core.repair import FillPolicy
from millrace.core.trim import trim
from millrace.errors import (
    CorruptBlock,
    MetadataUnavailable,
    MillraceError,
    PositionBeyondTail,
    PositionTrimmed,
    ProtocolError,
    TimedOut,
    TrimPending,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.runtime.hot_run import Waiter
from millrace.types import (
    LSN_MAX,
    Ack,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    LogInfo,
    Lsn,
    Record,
    Token,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TIMEOUT_MS = 30_000
ASK_TIMEOUT_MS = 3_000
TRIM_ATTEMPTS_MAX = 8


class LogDescription(msgspec.Struct, frozen=True):
    """Everything `millrace log info` shows."""

    info: LogInfo
    projection: Projection
    trim_end: Lsn
    readable_end: Lsn
    issued_last: Lsn | None  # None: the sequencer does not answer.
    members: dict[int, Described | None]  # None: the node does not answer.


class Log:
    def __init__(self, client: "Client", info: LogInfo, projection: Projection) -> None:
        self.info = info
        self._client = client
        self._runner = client.runner
        self._runner.projections.setdefault(info.id, projection)
        self._token_client = secrets.randbits(63)
        self._requests = itertools.count(1)
        self._batcher = Batcher(self._append_block, info.attributes.compression)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def projection(self) -> Projection:
        """The newest this client has seen."""
        return self._runner.projections[self.info.id]

    # -- Appending ----------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        headers: HeaderPairs = (),
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Lsn:
        """Append one record and return its position.  Appends made at the same time share
        blocks.  Raises UnknownAppend, or another error when it definitely did not happen."""
        self._client.check_open()
        check_record(value, key, timestamp_us, headers)
        now = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
        chosen = self._ack(ack)
        try:
            return (await self._batcher.add(value, key, now, headers, chosen, timeout_ms)).first
        except UnknownLog:
            self._client.forget(self)
            raise

    async def append_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | int | None = None,
        headers: Sequence[HeaderPairs] | None = None,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append records in order, in as few blocks as fit; the ranges they got, in order.  Not
        atomic: each block has its own outcome.  The error that is raised has them all: `outcomes`
        in order, `appended` and `failures`.  It is an UnknownAppend if any outcome is unknown."""
        compress = self.info.attributes.compression
        drafts = draft_values(values, keys, timestamps_us, headers, compress)
        return await self._append_drafts(drafts, self._ack(ack), timeout_ms)

    async def append_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append the rows of an Arrow table: columns `value` and, if there, `key`, `timestamp`,
        `headers`.  No row becomes a Python object.  Raises as `append_many`."""
        drafts = draft_table(table, self.info.attributes.compression)
        return await self._append_drafts(drafts, self._ack(ack), timeout_ms)

    async def _append_drafts(
        self, drafts: list[Draft], ack: Ack, timeout_ms: int
    ) -> list[Appended]:
        self._client.check_open()
        places: list[asyncio.Future[Appended] | MillraceError] = []
        for finished in drafts:
            try:
                places.append(await self._batcher.add_draft(finished, ack, timeout_ms))
            except TimedOut as late:
                places.append(late)
        try:
            return await all_settled(places)
        except UnknownLog:
            self._client.forget(self)
            raise

    async def resume(self, unknown: UnknownAppend, *, timeout_ms: int = TIMEOUT_MS) -> Appended:
        """Settle an append whose outcome is unknown, without making a second copy."""
        self._client.check_open()
        deadline_s = time.monotonic() + timeout_ms / 1000
        block = unknown.block
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await block.turn.acquire()
        except TimeoutError:
            raise unknown.of_share(unknown.offset, unknown.count) from None
        try:
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            return unknown.share_of(await self._run_append(block, left_ms))
        except UnknownAppend as again:
            raise again.of_share(unknown.offset, unknown.count) from None
        finally:
            block.turn.release()

    async def flush(self) -> None:
        """Wait until every append made so far has its outcome."""
        await self._batcher.flush()

    def _append_block(
        self, finished: Draft, ack: Ack, timeout_ms: int, waiter: Waiter[Appended]
    ) -> None:
        token = Token(self._token_client, next(self._requests))
        log = self.info.id
        append = Append(
            log,
            finished.count,
            token,
            ack,
            lambda first, epoch: place(finished, log, epoch, first, token),
        )
        block = BlockAppend(append, finished.count)
        told = TellOutcome(block, self.name, waiter)
        self._runner.begin(append.run(self.projection), timeout_ms, told)

    async def _run_append(self, block: BlockAppend, timeout_ms: int) -> Appended:
        if block.settled is not None:
            return settle(block.settled, block, self.name)
        outcome = await self._runner.run(block.append.run(self.projection), timeout_ms)
        return settle(outcome, block, self.name)

    def _ack(self, ack: Ack | str | None) -> Ack:
        if ack is None:
            return self.info.attributes.ack
        try:
            return Ack(ack)
        except ValueError:
            raise UsageError(f"ack={ack!r}: use 'disk' or 'memory'") from None

    # -- Reading ------------------------------------------------------------------------------

    async def read(
        self,
        first: Position = "start",
        until: Position | None = "end",
        *,
        fill_after_ms: int | None = 1_000,
        settings: ReadSettings | None = None,
    ) -> Reader:
        """A reader of the records at `first` up to and not including `until`; None follows the
        log for ever.  `end` is where the log ends now.  `fill_after_ms` is how long the reader
        waits for a writer that does not complete before it fills the hole; None: for ever."""
        start, end = await self._bounds()
        begin = await self._resolve(first, start, end)
        stop = LSN_MAX if until is None else await self._resolve(until, start, end)
        if begin > end and stop != LSN_MAX:
            raise PositionBeyondTail(
                f"position {begin} lies beyond the end of log {self.name!r}, "
                f"whose next position is {end}"
            )
        self._client.check_open()
        reader = Reader(
            self.info.id,
            max(begin, Lsn(1)),
            max(stop, begin, Lsn(1)),
            self._client.links,
            self._client.directory,
            self._runner,
            FillPolicy(fill_after_ms),
            settings,
            self.name,
        )
        self._client.readers.add(reader)
        return reader

    async def tail(self, back: int = 0, *, fill_after_ms: int | None = 1_000) -> Reader:
        """Follow the log from `back` records before its end."""
        return await self.read(f"-{back}" if back else "end", None, fill_after_ms=fill_after_ms)

    async def get(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        """The record at a position; a Gap if it was filled.  A number takes one round trip to the
        tail."""
        parsed = positions.parse(position)
        lsn = Lsn(parsed.offset)
        if parsed.anchor is not Anchor.LSN:
            lsn = await self.resolve(position)
        answer = await self._ask_tail(lambda p: Read(p.log, p.epoch, lsn), timeout_ms=timeout_ms)
        if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            answer = await self._found_elsewhere(lsn, timeout_ms) or answer
        if isinstance(answer, Found):
            kind = answer.block.kind
            if kind is not EntryKind.DATA:
                gap = GapKind.HOLE if kind is EntryKind.HOLE else GapKind.DATALOSS
                return Gap(gap, lsn, lsn)
            return records(answer.block, lsn, Lsn(lsn + 1))[0]
        raise self._refused(answer, lsn)

    async def _found_elsewhere(self, lsn: Lsn, timeout_ms: int) -> Found | None:
        """The tail's copy is damaged: one of another member."""
        need = NeedCopy(lsn, self.projection.tail)
        try:
            block = await self._runner.run(copy_elsewhere(self.projection, need), timeout_ms)
        except DeadlinePassed:
            return None
        return None if block is None else Found(block)

    async def peek(self) -> Lsn:
        """The largest position that was given to a writer."""
        answer = await self._ask(lambda p: (p.sequencer, Peek(p.log, p.epoch)))
        if not isinstance(answer, Peeked):
            raise self._refused(answer, 0)
        return answer.last

    async def bounds(self) -> tuple[Lsn, Lsn]:
        """Where reading can begin, and the position after the last readable record."""
        return await self._bounds()

    async def resolve(self, position: Position) -> Lsn:
        """The number that a position stands for now."""
        return await self._resolve(position, *await self._bounds())

    async def _bounds(self) -> tuple[Lsn, Lsn]:
        described = await self._describe_tail()
        issued = await self.peek()
        return described.trim_end, max(described.readable_end, Lsn(issued + 1))

    async def _resolve(self, position: Position, start: Lsn, end: Lsn) -> Lsn:
        parsed = positions.parse(position)
        if parsed.anchor is not Anchor.TIME:
            return positions.resolve(parsed, start, end)
        answer = await self._ask_tail(lambda p: FindTime(p.log, p.epoch, parsed.offset))
        if not isinstance(answer, FoundPosition):
            raise self._refused(answer, 0)
        return max(answer.lsn, start)

    # -- Looking after ------------------------------------------------------------------------

    async def trim(self, before: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """Forget everything below a position; the trim point that stands afterwards.  Raises
        TrimPending when the point stands, or may, and not every node has applied it."""
        point: Lsn | None = None
        is_noted = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                point = await self._trim_point(before)
                point = await self._client.directory.raise_trim(self.info.id, point)
                is_noted = True
                problem = await self._trim_nodes(point, timeout_ms)
                if problem is None:
                    return point
        except (TimeoutError, DeadlinePassed):
            problem = f"no answer within {timeout_ms} ms"
        except Unavailable as failure:
            if not is_noted:
                raise
            problem = str(failure)
        if point is None:
            raise TimedOut(f"log {self.name!r} was not trimmed: {problem}")
        stands = "stands, and" if is_noted else "may stand, in which case"
        raise TrimPending(
            f"log {self.name!r}: {problem}; the trim point {point} {stands} the keeper will "
            "apply it on every node"
        )

    async def _trim_nodes(self, point: Lsn, timeout_ms: int) -> str | None:
        """None when every node has trimmed, or what is in the way."""
        problem = None
        for _ in range(TRIM_ATTEMPTS_MAX):
            refused = await self._runner.run(trim(self.projection, point), timeout_ms)
            if refused is None:
                return None
            problem = f"node {refused[0]} did not trim: {refused[1]}"
            await self._describe_tail()  # Follows the chain if it has changed.
        return problem

    async def _trim_point(self, before: Position) -> Lsn:
        start, end = await self._bounds()
        point = await self._resolve(before, start, end)
        readable_end = (await self._describe_tail()).readable_end
        if point > readable_end:
            raise PositionBeyondTail(
                f"cannot trim log {self.name!r} before {point}: its next position is {readable_end}"
            )
        return point

    async def seal(self, *, timeout_ms: int = TIMEOUT_MS) -> Projection:
        """Take no more appends, for ever; what is there stays readable."""
        change = Change(self.info.id, ReconfigureReason.SEALED, seal_for_good=True)
        self._client.check_open()
        result = await self._runner.change_chain(change, timeout_ms)
        if isinstance(result, Failure):
            raise self._unavailable(result, "could not be sealed: ")
        return result

    async def describe(self) -> LogDescription:
        tail = await self._describe_tail()
        members: dict[int, Described | None] = {}
        for node in self.projection.chain:
            try:
                answer = await self._client.ask_node(node, Describe(self.info.id), ASK_TIMEOUT_MS)
            except Unavailable:
                members[node] = None
            else:
                members[node] = answer if isinstance(answer, Described) else None
        issued: Lsn | None = None
        with contextlib.suppress(Unavailable):
            issued = await self.peek()
        return LogDescription(
            self.info, self.projection, tail.trim_end, tail.readable_end, issued, members
        )

    async def close(self) -> None:
        await self._batcher.close()

    # -- Asking -------------------------------------------------------------------------------

    async def _ask(self, question: Question, timeout_ms: int = TIMEOUT_MS) -> Answer:
        self._client.check_open()
        procedure = consult(self.projection, question)
        try:
            return await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            raise TimedOut(f"log {self.name!r}: no answer within {timeout_ms} ms") from None

    async def _ask_tail(
        self, request: Callable[[Projection], Message], timeout_ms: int = TIMEOUT_MS
    ) -> Answer:
        return await self._ask(lambda p: (p.tail, request(p)), timeout_ms)

    async def _describe_tail(self) -> Described:
        """What the current tail holds.  Describe is answered in any epoch, so the epoch is
        compared here."""
        for _ in range(TRIM_ATTEMPTS_MAX):
            projection = self.projection
            answer = await self._ask_tail(lambda p: Describe(p.log))
            if not isinstance(answer, Described):
                raise self._refused(answer, 0)
            if answer.epoch == self.projection.epoch:
                return answer
            await self._follow(projection, answer.epoch)
        raise Unavailable(f"log {self.name!r}: its chain keeps changing; try again")

    async def _follow(self, seen: Projection, epoch: Epoch) -> None:
        need = NeedProjection(epoch, RewindReason.EPOCH)
        procedure = find_projection(self.info.id, need, seen)
        try:
            found = await self._runner.run(procedure, TIMEOUT_MS)
        except DeadlinePassed:
            raise TimedOut(f"log {self.name!r}: no answer within {TIMEOUT_MS} ms") from None
        if isinstance(found, Failure):
            raise self._unavailable(found)

    def _refused(self, answer: Answer, lsn: int) -> MillraceError:
        name = self.name
        if isinstance(answer, Failure):
            return self._unavailable(answer)
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

    def _unavailable(self, failure: Failure, what: str = "") -> MillraceError:
        match failure.kind:
            case FailureKind.UNKNOWN_LOG:
                self._client.forget(self)
                return UnknownLog(f"log {self.name!r} was deleted")
            case FailureKind.METADATA:
                kind: type[Unavailable] = MetadataUnavailable
            case _:
                kind = Unavailable
        return kind(f"log {self.name!r}: {what}{failure.kind.value}: {failure.detail}")
