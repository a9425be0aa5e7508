"""One log, as an application uses it: append, read, tail, get, trim, seal."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millrace.client import positions
from millrace.client.any_description import AnyDescription
from millrace.client.batch import SendBlock
from millrace.client.batcher import Batcher
from millrace.client.chain_path import ChainPath
from millrace.client.commit_path import CommitPath
from millrace.client.log_standing import LogStanding
from millrace.client.many import (
    Headers,
    all_settled,
    check_record,
    draft_one,
    draft_table,
    draft_values,
    header_pairs,
)
from millrace.client.open_appends import OpenAppends
from millrace.client.outcomes import UnknownAppend
from millrace.client.path import TIMEOUT_MS, ReadingOptions, deadline_after
from millrace.client.positions import Anchor, Position
from millrace.client.publications.expanding import Expanding
from millrace.client.publications.reading import PublishedReading
from millrace.client.publications.weighing import with_published
from millrace.client.reader import Reader, Reading
from millrace.client.sequenced_path import SequencedPath
from millrace.client.stream_reading import StreamEntry
from millrace.client.trimming import trim_log
from millrace.codec.blocks import records
from millrace.codec.drafts import Draft
from millrace.core.append import Appended
from millrace.core.commit.record import CommitRecord
from millrace.core.projection import Projection
from millrace.core.read_effects import Deliver
from millrace.core.runs import Runs
from millrace.core.selections import complaint
from millrace.core.sequenced.verifying import Verdict
from millrace.errors import (
    MillraceError,
    PositionBeyondTail,
    TimedOut,
    UnknownLog,
    UsageError,
)
from millrace.limits import WEIGH_PIECES_MAX
from millrace.types import (
    FIRST_LSN,
    LSN_MAX,
    Ack,
    Gap,
    LogInfo,
    Lsn,
    Record,
    Selection,
    Weight,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

T = TypeVar("T")
VERIFY_TIMEOUT_MS = 600_000
CLOSE_TIMEOUT_MS = 5_000


class Log:
    def __init__(self, client: "Client", info: LogInfo, standing: LogStanding) -> None:
        self.info = info
        self.client = client
        self._path: ChainPath | SequencedPath | CommitPath
        if isinstance(standing, Projection):
            self._path = ChainPath(client, info, standing, self._forget)
        elif isinstance(standing, CommitRecord):
            self._path = CommitPath(client, info, standing, self._forget)
        else:
            self._path = SequencedPath(client, info, standing, self._forget)
        self._open_appends = OpenAppends(info.name)
        send = self._open_appends.watched(self._path.begin_append)
        self._batcher = Batcher(info.name, send, info.attributes.compression)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def projection(self) -> Projection:
        """Of a chain log: the newest this client has seen."""
        if not isinstance(self._path, ChainPath):
            raise UsageError(f"log {self.name!r} is not a chain log: it has no chain")
        return self._path.projection

    @property
    def standing(self) -> LogStanding:
        """Who writes and serves the log, the newest this client has seen."""
        if isinstance(self._path, ChainPath):
            return self._path.projection
        return self._path.record

    @property
    def is_sequenced(self) -> bool:
        return isinstance(self._path, SequencedPath)

    def show(self, lsn: Lsn) -> str:
        """As people write positions of this log: `e7n42` if it is a sequenced one, else `47`."""
        return self._path.show(lsn)

    @property
    def path(self) -> ChainPath | SequencedPath | CommitPath:
        """How it is written and served."""
        return self._path

    def _forget(self) -> None:
        self.client.forget(self)

    # -- Appending ----------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        headers: Headers = (),
        ack: Ack | str | None = None,
        if_tail: Lsn | int | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Lsn:
        """Append one record and return its position.  Appends made at the same time share
        blocks.  Raises UnknownAppend, or another error when it definitely did not happen.

        With `if_tail`, of a sequenced log: only if its last record is there, a number or its text
        (0: if there is none yet); raises TailMoved if not.  Such an append has a block of its
        own."""
        self.client.check_open()
        pairs = header_pairs(headers) if headers else ()
        check_record(value, key, timestamp_us, pairs)
        now = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
        chosen = self.ack(ack)
        tail = None if if_tail is None else positions.exact(if_tail, "if_tail")
        deadline_s = deadline_after(timeout_ms)
        try:
            if tail is not None:
                record = draft_one(value, key, now, pairs, self.info.attributes.compression)
                return await self._append_if(record, chosen, tail, deadline_s)
            return (await self._batcher.add(value, key, now, pairs, chosen, deadline_s)).first
        except UnknownLog:
            self.client.forget(self)
            raise

    async def _append_if(self, record: Draft, ack: Ack, tail: Lsn, deadline_s: float) -> Lsn:
        if not isinstance(self._path, SequencedPath):
            kind = self.info.attributes.write_path.value
            raise UsageError(
                f"log {self.name!r} is a {kind} log: only a sequenced log can be appended to on a "
                "condition (if_tail)"
            )
        send = self._open_appends.watched(partial(self._path.begin_append, if_tail=tail))
        return (await (await self._batcher.add_draft(record, ack, deadline_s, send))).first

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        keys: Iterable[bytes | None] | None = None,
        timestamps_us: Sequence[int] | int | None = None,
        headers: Iterable[Headers] | None = None,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        stream: int | None = None,
    ) -> list[Appended]:
        """Append records in order, in as few blocks as fit; the ranges they got, in order.  Not
        atomic: each block has its own outcome.  The error that is raised has them all: `outcomes`
        in order, `appended` and `failures`.  It is an UnknownAppend if any outcome is unknown.  In
        a commit log they go to one stream, the next in turn or `stream`."""
        deadline_s = deadline_after(timeout_ms)
        compress = self.info.attributes.compression
        drafts = draft_values(values, keys, timestamps_us, headers, compress)
        return await self.append_drafts(drafts, self.ack(ack), deadline_s, stream)

    async def append_table(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        ack: Ack | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> list[Appended]:
        """Append the rows of an Arrow table: columns `value` and, if there, `key`, `timestamp`,
        `headers`.  No row becomes a Python object.  Raises as `append_many`."""
        deadline_s = deadline_after(timeout_ms)
        drafts = draft_table(table, self.info.attributes.compression)
        return await self.append_drafts(drafts, self.ack(ack), deadline_s)

    async def append_drafts(
        self, drafts: list[Draft], ack: Ack, deadline_s: float, stream: int | None = None
    ) -> list[Appended]:
        """Blocks that are finished, in order."""
        self.client.check_open()
        send: SendBlock | None = None
        if stream is not None or isinstance(self._path, CommitPath):
            send = self._open_appends.watched(self.streams.in_one_stream(stream))
        places: list[asyncio.Future[Appended] | MillraceError] = []
        for finished in drafts:
            try:
                places.append(await self._batcher.add_draft(finished, ack, deadline_s, send))
            except TimedOut as late:  # So are those that come after it.
                places += [late] * (len(drafts) - len(places))
                break
        try:
            return await all_settled(places)
        except UnknownLog:
            self.client.forget(self)
            raise

    async def resume(self, unknown: UnknownAppend, *, timeout_ms: int = TIMEOUT_MS) -> Appended:
        """Settle an append whose outcome is unknown, without making a second copy."""
        self.client.check_open()
        deadline_s = deadline_after(timeout_ms)
        block = unknown.block
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await block.begin_turn()
        except TimeoutError:
            raise unknown.of_share(unknown.offset, unknown.count) from None
        try:
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            return unknown.share_of(await self._path.run_append(block, left_ms))
        except UnknownAppend as again:
            raise again.of_share(unknown.offset, unknown.count) from None
        finally:
            block.end_turn()

    async def flush(self) -> None:
        """Wait until every append made so far has its outcome."""
        await self._batcher.flush()

    def ack(self, ack: Ack | str | None) -> Ack:
        """What an append that asks for this rests on; None: what the log does."""
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
        settings: ReadingOptions | None = None,
        select: Selection | None = None,
        timeout_ms: int | None = None,
    ) -> Reader:
        """A reader of the records at `first` up to and not including `until`; None follows the
        log until it is sealed.  `end` is where the log ends now.  `fill_after_ms`, of a chain log,
        is how long the reader waits for a writer that does not complete before it fills the hole;
        None: for ever.  With `select` the nodes send only the columns and the rows that are asked
        for.  `timeout_ms` bounds each wait for the next record or gap: iterating raises TimedOut,
        and may begin again where it was."""
        start, end = await self._path.bounds(TIMEOUT_MS)
        begin = await self.resolve_between(first, start, end)
        stop = LSN_MAX if until is None else await self.resolve_between(until, start, end)
        if stop < min(begin, end) and positions.parse(first) != positions.START:
            raise UsageError(
                f"log {self.name!r} cannot be read from {self.show(begin)} until "
                f"{self.show(stop)}, which lies before it: exchange the two"
            )
        if begin > end and stop != LSN_MAX:
            raise PositionBeyondTail(
                f"position {self.show(begin)} lies beyond the end of log {self.name!r}, "
                f"whose next position is {self.show(end)}"
            )
        return self.reader(
            max(begin, Lsn(1)),
            max(stop, begin, Lsn(1)),
            fill_after_ms=fill_after_ms,
            settings=settings,
            select=select,
            timeout_ms=timeout_ms,
        )

    def reader(
        self,
        first: Lsn,
        end: Lsn | None,
        *,
        fill_after_ms: int | None = 1_000,
        settings: ReadingOptions | None = None,
        select: Selection | None = None,
        timeout_ms: int | None = None,
        is_expanded: bool = True,
    ) -> Reader:
        """As `read`, of positions that are known: nobody is asked where the log begins and ends.
        Unless it `is_expanded`, blocks that publish rows come as they lie.  Needs a running
        loop."""
        if select is not None and (wrong := complaint(select)):
            raise UsageError(f"log {self.name!r} cannot be read so: {wrong}")
        stop = LSN_MAX if end is None else end
        if not FIRST_LSN <= first <= stop:
            span = f"from {self.show(first)} to {self.show(stop)}"
            raise UsageError(f"log {self.name!r} cannot be read {span}")
        self.client.check_open()
        reading: Reading = self._path.reading(first, stop, fill_after_ms, settings, select)
        if is_expanded:
            reading = PublishedReading(reading, Expanding(self.client, self.info, select))
        find_end = self.sealed_end if stop == LSN_MAX else None
        reader = Reader(reading, select, stop, find_end, timeout_ms)
        self.client.readers.add(reader)
        return reader

    async def tail(
        self,
        back: int = 0,
        *,
        fill_after_ms: int | None = 1_000,
        select: Selection | None = None,
        timeout_ms: int | None = None,
    ) -> Reader:
        """Follow the log from `back` records before its end; `timeout_ms` as for `read`."""
        first = f"-{back}" if back else "end"
        return await self.read(
            first, None, fill_after_ms=fill_after_ms, select=select, timeout_ms=timeout_ms
        )

    async def get(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Record | Gap:
        """The record at a position; a Gap if it was filled.  A number takes one round trip to the
        tail."""
        parsed = positions.parse(position)
        positions.check_holds_record(parsed)
        lsn = Lsn(parsed.offset)
        if parsed.anchor is not Anchor.LSN:
            lsn = await self.resolve(position, timeout_ms=timeout_ms)
        part = await self._path.part_at(lsn, timeout_ms)
        if isinstance(part, Deliver) and part.block.is_published:
            part = await self._within(timeout_ms, self._expanded(part))
        return part if isinstance(part, Gap) else records(part.block, lsn, Lsn(lsn + 1))[0]

    async def _expanded(self, part: Deliver) -> Deliver | Gap:
        """One position of a block that publishes."""
        async with (
            Expanding(self.client, self.info, None) as expanding,
            contextlib.aclosing(expanding.parts(part)) as parts,
        ):
            return await anext(parts)

    def read_stream(
        self,
        stream: int,
        first: int = FIRST_LSN,
        end: int | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> AsyncIterator[StreamEntry | Gap]:
        """Of a commit log: the entries of one stream at its own positions [first, end), up to what
        is committed now; what was trimmed is a gap of such positions.  `timeout_ms` bounds each
        wait for the next ones."""
        return self.streams.read_stream(stream, first, end, timeout_ms)

    async def peek(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """The largest position that was given to a writer."""
        return await self._path.peek(timeout_ms)

    async def bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        """Where reading can begin, and the position after the last that a writer was given: what
        lies below it is readable, or will be when its writer or a reader has completed it."""
        return await self._within(timeout_ms, self._path.bounds(timeout_ms))

    async def tail_lsn(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """Where the last record is; 0 if there is none.  Everything that was acknowledged before
        the call lies at it or below, and of a sequenced log is readable."""
        return await self._path.tail_lsn(timeout_ms)

    async def is_empty(self, *, timeout_ms: int = TIMEOUT_MS) -> bool:
        """Whether no record is left to read: none was appended, or all were trimmed."""
        start, _ = await self.bounds(timeout_ms=timeout_ms)
        return await self.tail_lsn(timeout_ms=timeout_ms) < start

    async def sealed_end(self, *, timeout_ms: int = TIMEOUT_MS) -> Lsn | None:
        """The position after the last record, for good; None while the log takes appends."""
        return await self._within(timeout_ms, self._path.sealed_end(timeout_ms))

    async def readable_bounds(self, *, timeout_ms: int = TIMEOUT_MS) -> tuple[Lsn, Lsn]:
        """Where reading can begin, and the position up to which nobody has to be waited for."""
        return await self._path.readable_bounds(timeout_ms)

    async def find_time(self, timestamp_us: int) -> Lsn:
        """Where the first block begins that reaches this time; the end of the log if none does."""
        return await self._path.find_time(timestamp_us, TIMEOUT_MS)

    async def weigh(self, first: Lsn, end: Lsn, pieces: int = 64) -> list[Weight]:
        """About how many bytes lie in each of `pieces` parts of [first, end) with equally many
        records: of what is readable of it now, in order, without a gap between them.  Of the copies
        of a block one counts."""
        if not 1 <= pieces <= WEIGH_PIECES_MAX:
            raise UsageError(f"pieces={pieces}: a range is weighed in 1 to {WEIGH_PIECES_MAX}")
        weighed = await self._path.weigh(first, end, pieces)
        if isinstance(self._path, CommitPath):
            return weighed  # It looks at blocks, and knows what they publish.
        return await with_published(self, first, end, weighed)

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        """Where in [first, end) records lie: positions of a sequenced log are consecutive within an
        epoch only.  Of a chain log it is known without asking.  Nodes that do not answer are
        passed over; raises Unavailable if none does."""
        return await self._path.runs(first, end)

    async def resolve(self, position: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """The number that a position stands for now."""

        async def work() -> Lsn:
            start, end = await self._path.bounds(timeout_ms)
            return await self.resolve_between(position, start, end, timeout_ms)

        return await self._within(timeout_ms, work())

    async def _within(self, timeout_ms: int, work: Coroutine[Any, Any, T]) -> T:
        """For what asks several times: the time is that of all together."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await work
        except TimeoutError:
            raise TimedOut(
                f"log {self.name!r}: its nodes and the metadata repository were asked, and did not "
                f"all answer within {timeout_ms} ms; `millrace cluster status` shows who is away"
            ) from None

    async def resolve_between(
        self, position: Position, start: Lsn, end: Lsn, timeout_ms: int = TIMEOUT_MS
    ) -> Lsn:
        """As `resolve`, of a log that begins and ends there."""
        parsed = positions.parse(position)
        if parsed.anchor is Anchor.TIME:
            return max(await self._path.find_time(parsed.offset, timeout_ms), start)
        if parsed.anchor is Anchor.END and parsed.offset:
            back = self._path.back_from(start, end, -parsed.offset)
            return await self._within(timeout_ms, back)
        return positions.resolve(parsed, start, end)

    # -- Looking after ------------------------------------------------------------------------

    async def trim(self, before: Position, *, timeout_ms: int = TIMEOUT_MS) -> Lsn:
        """Forget everything below a position; the trim point that stands afterwards.  Raises
        TrimPending when the point stands, or may, and not every node has applied it."""
        return await trim_log(self, before, timeout_ms)

    async def seal(self, *, timeout_ms: int = TIMEOUT_MS) -> LogStanding:
        """Take no more appends, for ever; what is there stays readable."""
        self.client.check_open()
        return await self._path.seal(timeout_ms)

    @property
    def streams(self) -> CommitPath:
        """Of a commit log: what can be done about its streams."""
        if not isinstance(self._path, CommitPath):
            kind = self.info.attributes.write_path.value
            raise UsageError(f"log {self.name!r} is a {kind} log: only commit logs have streams")
        self.client.check_open()
        return self._path

    async def describe(self, *, timeout_ms: int = TIMEOUT_MS) -> AnyDescription:
        """What every node says of the log.  Changes nothing, also when a node is silent."""
        self.client.check_open()
        try:
            return await self._path.describe(timeout_ms)
        except UnknownLog:
            self.client.forget(self)
            raise

    async def verify(self, *, timeout_ms: int = VERIFY_TIMEOUT_MS) -> Verdict:
        """Whether every block lies where it should, by the indexes of all nodes; not of a chain."""
        self.client.check_open()
        return await self._path.verify(timeout_ms)

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Wait for the appends that are under way; those that have no outcome by then raise
        UnknownAppend."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._batcher.flush()
        except TimeoutError:
            self._open_appends.give_up()
        await self._batcher.close()
