"""One log, as an application uses it: append, read, tail, get, trim, seal."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.client import positions
from millrace.client.batcher import Batcher
from millrace.client.describe import LogDescription, describe_log
from millrace.client.many import (
    Headers,
    all_settled,
    check_record,
    draft_table,
    draft_values,
    header_pairs,
)
from millrace.client.outcomes import BlockAppend, TellOutcome, UnknownAppend, settle
from millrace.client.positions import Anchor, Position
from millrace.client.questions import TIMEOUT_MS, Questions
from millrace.client.reader import Reader
from millrace.codec.blocks import place, records
from millrace.codec.drafts import Draft
from millrace.core.append import Append, Appended
from millrace.core.follow import copy_elsewhere
from millrace.core.messages import (
    Found,
    Read,
    Refusal,
    Refused,
)
from millrace.core.procedure import DeadlinePassed, Failure
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_stream import NeedCopy, ReadSettings
from millrace.core.reconfigure import Change
from millrace.core.repair import FillPolicy
from millrace.core.selections import complaint
from millrace.core.trim import trim
from millrace.errors import (
    MillraceError,
    PositionBeyondTail,
    TimedOut,
    TrimPending,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.limits import WEIGH_PIECES_MAX
from millrace.runtime.hot_run import Waiter
from millrace.types import (
    FIRST_LSN,
    LSN_MAX,
    Ack,
    EntryKind,
    Gap,
    GapKind,
    LogInfo,
    Lsn,
    Record,
    Selection,
    Token,
    Weight,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TRIM_ATTEMPTS_MAX = 8


class Log:
    def __init__(self, client: "Client", info: LogInfo, projection: Projection) -> None:
        self.info = info
        self._client = client
        self._runner = client.runner
        self._runner.projections.setdefault(info.id, projection)
        self._token_client = secrets.randbits(63)
        self._requests = itertools.count(1)
        self._questions = Questions(client, info, lambda: client.forget(self))
        self._batcher = Batcher(info.name, self._append_block, info.attributes.compression)

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
        headers: Headers = (),
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Lsn:
        """Append one record and return its position.  Appends made at the same time share
        blocks.  Raises UnknownAppend, or another error when it definitely did not happen."""
        self._client.check_open()
        pairs = header_pairs(headers) if headers else ()
        check_record(value, key, timestamp_us, pairs)
        now = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
        chosen = self._ack(ack)
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            return (await self._batcher.add(value, key, now, pairs, chosen, deadline_s)).first
        except UnknownLog:
            self._client.forget(self)
            raise

    async def append_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | int | None = None,
        headers: Sequence[Headers] | None = None,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append records in order, in as few blocks as fit; the ranges they got, in order.  Not
        atomic: each block has its own outcome.  The error that is raised has them all: `outcomes`
        in order, `appended` and `failures`.  It is an UnknownAppend if any outcome is unknown."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        compress = self.info.attributes.compression
        drafts = draft_values(values, keys, timestamps_us, headers, compress)
        return await self._append_drafts(drafts, self._ack(ack), deadline_s)

    async def append_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append the rows of an Arrow table: columns `value` and, if there, `key`, `timestamp`,
        `headers`.  No row becomes a Python object.  Raises as `append_many`."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        drafts = draft_table(table, self.info.attributes.compression)
        return await self._append_drafts(drafts, self._ack(ack), deadline_s)

    async def _append_drafts(
        self, drafts: list[Draft], ack: Ack, deadline_s: float
    ) -> list[Appended]:
        self._client.check_open()
        places: list[asyncio.Future[Appended] | MillraceError] = []
        for finished in drafts:
            try:
                places.append(await self._batcher.add_draft(finished, ack, deadline_s))
            except TimedOut as late:  # So are those that come after it.
                places += [late] * (len(drafts) - len(places))
                break
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
                await block.begin_turn()
        except TimeoutError:
            raise unknown.of_share(unknown.offset, unknown.count) from None
        try:
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            return unknown.share_of(await self._run_append(block, left_ms))
        except UnknownAppend as again:
            raise again.of_share(unknown.offset, unknown.count) from None
        finally:
            block.end_turn()

    async def flush(self) -> None:
        """Wait until every append made so far has its outcome."""
        await self._batcher.flush()

    def _append_block(
        self, finished: Draft, ack: Ack, timeout_ms: int, waiter: Waiter[Appended]
    ) -> BlockAppend:
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
        return block

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
        select: Selection | None = None,
    ) -> Reader:
        """A reader of the records at `first` up to and not including `until`; None follows the
        log for ever.  `end` is where the log ends now.  `fill_after_ms` is how long the reader
        waits for a writer that does not complete before it fills the hole; None: for ever.  With
        `select` the nodes send only the columns and the rows that are asked for."""
        start, end = await self._bounds()
        begin = await self._resolve(first, start, end)
        stop = LSN_MAX if until is None else await self._resolve(until, start, end)
        if begin > end and stop != LSN_MAX:
            raise PositionBeyondTail(
                f"position {begin} lies beyond the end of log {self.name!r}, "
                f"whose next position is {end}"
            )
        return self.reader(
            max(begin, Lsn(1)),
            max(stop, begin, Lsn(1)),
            fill_after_ms=fill_after_ms,
            settings=settings,
            select=select,
        )

    def reader(
        self,
        first: Lsn,
        end: Lsn | None,
        *,
        fill_after_ms: int | None = 1_000,
        settings: ReadSettings | None = None,
        select: Selection | None = None,
    ) -> Reader:
        """As `read`, of positions that are known: nobody is asked where the log begins and ends.
        Needs a running loop."""
        if select is not None and (wrong := complaint(select)):
            raise UsageError(f"log {self.name!r} cannot be read so: {wrong}")
        stop = LSN_MAX if end is None else end
        if not FIRST_LSN <= first <= stop:
            raise UsageError(f"log {self.name!r} cannot be read from {first} to {stop}")
        self._client.check_open()
        reader = Reader(
            self.info.id,
            first,
            stop,
            self._client.links,
            self._client.directory,
            self._runner,
            FillPolicy(fill_after_ms),
            settings,
            self.name,
            select,
        )
        self._client.readers.add(reader)
        return reader

    async def tail(
        self,
        back: int = 0,
        *,
        fill_after_ms: int | None = 1_000,
        select: Selection | None = None,
    ) -> Reader:
        """Follow the log from `back` records before its end."""
        first = f"-{back}" if back else "end"
        return await self.read(first, None, fill_after_ms=fill_after_ms, select=select)

    async def get(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        """The record at a position; a Gap if it was filled.  A number takes one round trip to the
        tail."""
        parsed = positions.parse(position)
        lsn = Lsn(parsed.offset)
        if parsed.anchor is not Anchor.LSN:
            lsn = await self.resolve(position, timeout_ms=timeout_ms)
        answer = await self._questions.ask_tail(
            lambda p: Read(p.log, p.epoch, lsn), timeout_ms=timeout_ms
        )
        if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            answer = await self._found_elsewhere(lsn, timeout_ms) or answer
        if isinstance(answer, Found):
            kind = answer.block.kind
            if kind is not EntryKind.DATA:
                gap = GapKind.HOLE if kind is EntryKind.HOLE else GapKind.DATALOSS
                return Gap(gap, lsn, lsn)
            return records(answer.block, lsn, Lsn(lsn + 1))[0]
        raise self._questions.refused(answer, lsn)

    async def _found_elsewhere(self, lsn: Lsn, timeout_ms: int) -> Found | None:
        """The tail's copy is damaged: one of another member."""
        need = NeedCopy(lsn, self.projection.tail)
        try:
            block = await self._runner.run(copy_elsewhere(self.projection, need), timeout_ms)
        except DeadlinePassed:
            return None
        return None if block is None else Found(block)

    async def peek(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """The largest position that was given to a writer."""
        return await self._questions.peek(timeout_ms)

    async def bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        """Where reading can begin, and the position after the last that a writer was given: what
        lies below it is readable, or will be when its writer or a reader has completed it."""
        return await self._questions.within(timeout_ms, self._bounds(timeout_ms))

    async def readable_bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        """Where reading can begin, and the position up to which nobody has to be waited for."""
        described = await self._questions.describe_tail(timeout_ms)
        return described.trim_end, described.readable_end

    async def find_time(self, timestamp_us: int) -> Lsn:
        """Where the first block begins that reaches this time; the end of the log if none does."""
        return await self._questions.find_time(timestamp_us)

    async def weigh(self, first: Lsn, end: Lsn, pieces: int = 64) -> list[Weight]:
        """About how many bytes lie in each of `pieces` equal parts of [first, end): of what is
        readable of it now, in order, without a gap between them."""
        if not 1 <= pieces <= WEIGH_PIECES_MAX:
            raise UsageError(f"pieces={pieces}: a range is weighed in 1 to {WEIGH_PIECES_MAX}")
        return await self._questions.weigh(first, end, pieces)

    async def resolve(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """The number that a position stands for now."""

        async def work() -> Lsn:
            start, end = await self._bounds(timeout_ms)
            return await self._resolve(position, start, end, timeout_ms)

        return await self._questions.within(timeout_ms, work())

    async def _bounds(self, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        described = await self._questions.describe_tail(timeout_ms)
        issued = await self.peek(timeout_ms=timeout_ms)
        return described.trim_end, max(described.readable_end, Lsn(issued + 1))

    async def _resolve(
        self, position: Position, start: Lsn, end: Lsn, timeout_ms: int = TIMEOUT_MS
    ) -> Lsn:
        parsed = positions.parse(position)
        if parsed.anchor is not Anchor.TIME:
            return positions.resolve(parsed, start, end)
        return max(await self._questions.find_time(parsed.offset, timeout_ms), start)

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
            await self._questions.describe_tail()  # Follows the chain if it has changed.
        return problem

    async def _trim_point(self, before: Position) -> Lsn:
        start, end = await self._bounds()
        point = await self._resolve(before, start, end)
        readable_end = (await self._questions.describe_tail()).readable_end
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
            raise self._questions.unavailable(result, "could not be sealed: ")
        return result

    async def describe(self, *, timeout_ms: int = TIMEOUT_MS) -> LogDescription:
        """What every node says of the log.  Changes nothing, also when a node is silent."""
        self._client.check_open()
        try:
            return await describe_log(self._client, self.info, self.projection, timeout_ms)
        except UnknownLog:
            self._client.forget(self)
            raise

    async def close(self) -> None:
        await self._batcher.close()
