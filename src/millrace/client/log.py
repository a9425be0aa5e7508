"""One log, as an application uses it: append, read, tail, get, trim, seal."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from millrace.client import positions
from millrace.client.batcher import Batcher
from millrace.client.outcomes import BlockAppend, TellOutcome, UnknownAppend, settle
from millrace.client.positions import Anchor, Position
from millrace.client.reader import Reader
from millrace.codec.arrow import draft_from_arrow
from millrace.codec.blocks import draft, place, records
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
    RecordTooLarge,
    TimedOut,
    Unavailable,
    UsageError,
)
from millrace.limits import (
    BLOCK_BYTES_TARGET,
    BLOCK_RECORDS_MAX,
    RECORD_BYTES_MAX,
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
_BYTES_LIKE = (bytes, bytearray, memoryview)


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
        self._check_record(value, key, headers)
        now = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
        appended = await self._batcher.add(value, key, now, headers, self._ack(ack), timeout_ms)
        return appended.first

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
        atomic: each block has its own outcome, and the first that is not good is raised."""
        if timestamps_us is None:
            timestamps_us = time.time_ns() // 1000
        futures = []
        for first, end in _chunks(values):
            stamps = timestamps_us if isinstance(timestamps_us, int) else timestamps_us[first:end]
            finished = draft(
                values[first:end],
                keys=None if keys is None else keys[first:end],
                timestamps_us=stamps,
                headers=None if headers is None else headers[first:end],
                compress=self.info.attributes.compression,
            )
            futures.append(await self._batcher.add_draft(finished, self._ack(ack), timeout_ms))
        return await _all_settled(futures)

    async def append_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append the rows of an Arrow table: columns `value` and, if there, `key`, `timestamp`,
        `headers`.  No row becomes a Python object."""
        whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows = _rows_per_block(whole.nbytes, whole.num_rows)
        now = time.time_ns() // 1000
        futures = []
        for batch in whole.to_batches(max_chunksize=rows):
            if batch.num_rows:
                finished = draft_from_arrow(
                    batch, timestamp_us_default=now, compress=self.info.attributes.compression
                )
                futures.append(await self._batcher.add_draft(finished, self._ack(ack), timeout_ms))
        return await _all_settled(futures)

    async def resume(self, unknown: UnknownAppend, *, timeout_ms: int = TIMEOUT_MS) -> Appended:
        """Settle an append whose outcome is unknown, without making a second copy."""
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

    def _check_record(self, value: bytes, key: bytes | None, headers: HeaderPairs) -> None:
        if not isinstance(value, _BYTES_LIKE):
            raise UsageError(f"a value is bytes, not {type(value).__name__}")
        if key is not None and not isinstance(key, bytes):
            raise UsageError(f"a key is bytes, not {type(key).__name__}")
        size = len(value) if key is None else len(value) + len(key)
        if headers:
            size += sum(len(name) + len(content) for name, content in headers)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a record of {size} bytes is larger than {RECORD_BYTES_MAX}: "
                "split it, or store it elsewhere and append its address"
            )

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
        return Reader(
            self.info.id,
            max(begin, Lsn(1)),
            max(stop, begin, Lsn(1)),
            self._client.links,
            self._client.directory,
            self._runner,
            FillPolicy(fill_after_ms),
            settings,
        )

    async def tail(self, back: int = 0, **options: int | None) -> Reader:
        """Follow the log from `back` records before its end."""
        fill_after_ms = options.get("fill_after_ms", 1_000)
        return await self.read(f"-{back}" if back else "end", None, fill_after_ms=fill_after_ms)

    async def get(self, lsn: int, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        """The record at a position, in one round trip to the tail (C7); a Gap if it was filled."""
        answer = await self._ask_tail(
            lambda p: Read(p.log, p.epoch, Lsn(lsn)), timeout_ms=timeout_ms
        )
        if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            answer = await self._found_elsewhere(Lsn(lsn), timeout_ms) or answer
        if isinstance(answer, Found):
            kind = answer.block.kind
            if kind is not EntryKind.DATA:
                gap = GapKind.HOLE if kind is EntryKind.HOLE else GapKind.DATALOSS
                return Gap(gap, Lsn(lsn), Lsn(lsn))
            return records(answer.block, Lsn(lsn), Lsn(lsn + 1))[0]
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
        """Forget everything below a position; the trim point that stands afterwards."""
        start, end = await self._bounds()
        point = await self._resolve(before, start, end)
        readable_end = (await self._describe_tail()).readable_end
        if point > readable_end:
            raise PositionBeyondTail(
                f"cannot trim log {self.name!r} before {point}: its next position is {readable_end}"
            )
        point = await self._client.directory.raise_trim(self.info.id, point)
        problem = ""
        for _ in range(TRIM_ATTEMPTS_MAX):
            refused = await self._runner.run(trim(self.projection, point), timeout_ms)
            if refused is None:
                return point
            problem = f"node {refused[0]} did not trim: {refused[1]}"
            await self._describe_tail()  # Follows the chain if it has changed.
        raise Unavailable(f"log {self.name!r}: {problem}; the keeper will see to it")

    async def seal(self, *, timeout_ms: int = TIMEOUT_MS) -> Projection:
        """Take no more appends, for ever; what is there stays readable."""
        change = Change(self.info.id, ReconfigureReason.SEALED, seal_for_good=True)
        result = await self._runner.change_chain(change, timeout_ms)
        if isinstance(result, Failure):
            raise _unavailable(result, f"log {self.name!r} could not be sealed")
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
        found = await self._runner.run(find_projection(self.info.id, need, seen), TIMEOUT_MS)
        if isinstance(found, Failure):
            raise _unavailable(found, f"log {self.name!r}")

    def _refused(self, answer: Answer, lsn: int) -> MillraceError:
        name = self.name
        if isinstance(answer, Failure):
            return _unavailable(answer, f"log {name!r}")
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


def _unavailable(failure: Failure, what: str) -> Unavailable:
    is_metadata = failure.kind is FailureKind.METADATA
    kind = MetadataUnavailable if is_metadata else Unavailable
    return kind(f"{what}: {failure.kind.value}: {failure.detail}")


async def _all_settled(futures: "list[asyncio.Future[Appended]]") -> list[Appended]:
    """Every outcome is known before the first that is not good is raised."""
    if futures:
        await asyncio.wait(futures)
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def _rows_per_block(size_bytes: int, count: int) -> int:
    if not count:
        return 1
    return max(1, min(BLOCK_RECORDS_MAX, BLOCK_BYTES_TARGET * count // max(size_bytes, 1)))


def _chunks(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Cut a list of values into blocks of about the target size: by their mean size first, and
    again where the values are uneven."""
    step = _rows_per_block(sum(map(len, values)), len(values))
    for first in range(0, len(values), step):
        yield from _halves(values, first, min(first + step, len(values)))


def _halves(values: Sequence[bytes], first: int, end: int) -> Iterator[tuple[int, int]]:
    if end - first > 1 and sum(map(len, values[first:end])) > 4 * BLOCK_BYTES_TARGET:
        middle = (first + end) // 2
        yield from _halves(values, first, middle)
        yield from _halves(values, middle, end)
    else:
        yield first, end
