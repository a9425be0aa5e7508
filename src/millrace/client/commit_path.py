"""A commit log's path: appends to the primaries of its streams, questions to its committer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.client.batch import SendBlock
from millrace.client.block_appends import BlockAppends
from millrace.client.commit_reading import CommitReading
from millrace.client.commit_records import CommitRecords
from millrace.client.committer_questions import CommitterQuestions
from millrace.client.describe_commits import CommitDescription, describe_commits
from millrace.client.outcomes import BlockAppend
from millrace.client.path import TIMEOUT_MS, ReadingOptions
from millrace.client.reader import Reader
from millrace.client.sequenced_reading import settings_of
from millrace.client.stream_reading import StreamEntry, StreamReading
from millrace.client.verifying import verify_commit_log
from millrace.codec.blocks import parse_header, place, records
from millrace.codec.drafts import Draft
from millrace.codec.published import publication_of
from millrace.core.append import Appended, AppendUnknown
from millrace.core.commit.append import CommitAppend
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.retention import retention_point
from millrace.core.messages import (
    AddStream,
    CommitsChanged,
    GiveUpStream,
    MoveReplica,
    SealCommits,
    SetStreamOpen,
    TrimCommits,
)
from millrace.core.procedure import DeadlinePassed
from millrace.core.read_effects import Deliver
from millrace.core.runs import Runs
from millrace.core.sequenced.verifying import Verdict
from millrace.errors import PositionBeyondTail, PositionTrimmed, Unavailable, UsageError
from millrace.runtime.hot_run import Waiter
from millrace.types import (
    FIRST_LSN,
    Ack,
    Block,
    Epoch,
    Gap,
    GapKind,
    LogInfo,
    Lsn,
    NodeId,
    Run,
    Selection,
    StreamId,
    Weight,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS = 3_000
SAMPLES = 4  # Blocks that are looked at to weigh a log.


class CommitPath:
    def __init__(
        self, client: "Client", info: LogInfo, record: CommitRecord, forget: Callable[[], None]
    ) -> None:
        self._client = client
        self._info = info
        self._runner = client.runner
        self._forget = forget
        self._records = CommitRecords(client, info, record)
        self._questions = CommitterQuestions(client, info, self._records)
        self._appends = BlockAppends(client.runner, info.name, whereabouts)
        client.streams.learn(record)

    @property
    def record(self) -> CommitRecord:
        """The newest this client has seen."""
        return self._records.record

    # -- Appending ----------------------------------------------------------------------------

    def begin_append(
        self,
        draft: Draft,
        ack: Ack,
        timeout_ms: int,
        waiter: Waiter[Appended],
        stream: StreamId | None = None,
    ) -> BlockAppend:
        token = self._appends.next_token()
        block = place(draft, self._info.id, Epoch(0), FIRST_LSN, token)
        append = CommitAppend(block, ack, self._client.streams, _now_ms, stream)
        return self._appends.begin(append.run, draft.count, timeout_ms, waiter)

    def in_one_stream(self, stream: int | None) -> SendBlock:
        """Begins appends that keep their order: all go to this stream, or to the next in turn."""
        chosen = None if stream is None else StreamId(stream)
        return partial(self.begin_append, stream=chosen or self.next_stream())

    def next_stream(self) -> StreamId | None:
        """None if none is known to take appends."""
        found = self._client.streams.choose(self.record, _now_ms())
        return None if found is None else found.stream

    async def run_append(self, block: BlockAppend, timeout_ms: int) -> Appended:
        return await self._appends.resume(block, timeout_ms)

    # -- Reading ------------------------------------------------------------------------------

    def reading(
        self,
        first: Lsn,
        end: Lsn,
        fill_after_ms: int | None,
        settings: ReadingOptions | None,
        selection: Selection | None,
    ) -> CommitReading:
        chosen = settings_of(self._info, settings)
        return CommitReading(self._client, self._info, self._records, first, end, chosen, selection)

    def read_stream(
        self, stream: int, first: int, end: int | None, timeout_ms: int
    ) -> AsyncIterator[StreamEntry | Gap]:
        if first < FIRST_LSN or (end is not None and end < first):
            raise UsageError(
                f"stream {stream} of log {self._info.name!r} cannot be read from {first} to {end}: "
                "positions begin at 1, and the end does not lie below the first"
            )
        reading = StreamReading(
            self._client, self._info, self._records, StreamId(stream), timeout_ms
        )
        return reading.read(Lsn(first), None if end is None else Lsn(end))

    async def part_at(self, lsn: Lsn, timeout_ms: int) -> Deliver | Gap:
        record = await self._records.refresh()
        if lsn > record.high_watermark:
            raise PositionBeyondTail(
                f"position {lsn} of log {self._info.name!r} is not written yet"
            )
        async with Reader(self.reading(lsn, Lsn(lsn + 1), None, None, None)) as reader:
            part = await reader.take(timeout_ms)
        if isinstance(part, Deliver):
            return part
        assert part is not None
        if part.kind is GapKind.TRIM:
            raise PositionTrimmed(
                f"position {lsn} of log {self._info.name!r} was trimmed; "
                f"`millrace log info {self._info.name}` shows where it begins"
            )
        return part

    # -- The tail -----------------------------------------------------------------------------

    async def peek(self, timeout_ms: int) -> Lsn:
        return (await self._records.refresh()).high_watermark

    async def tail_lsn(self, timeout_ms: int) -> Lsn:
        """What was acknowledged is in the record."""
        return (await self._records.refresh()).high_watermark

    async def sealed_end(self, timeout_ms: int) -> Lsn | None:
        record = await self._records.refresh()
        return Lsn(record.high_watermark + 1) if record.is_sealed else None

    async def bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        record = await self._records.refresh()
        return record.trim_end, Lsn(record.high_watermark + 1)

    async def readable_bounds(self, timeout_ms: int) -> tuple[Lsn, Lsn]:
        return await self.bounds(timeout_ms)

    async def back_from(self, start: Lsn, end: Lsn, count: int) -> Lsn:
        return max(start, Lsn(end - count))

    # -- Where records lie ------------------------------------------------------------------------

    async def find_time(self, timestamp_us: int, timeout_ms: int) -> Lsn:
        """By halving: the records of a stream, and nearly those of all, are in order of time."""
        low, high = await self.bounds(timeout_ms)
        while low < high:
            middle = Lsn((low + high) // 2)
            part = await self.part_at(middle, timeout_ms)
            if isinstance(part, Deliver) and part.block.is_published:
                # Its header speaks for all of its rows.
                is_young = parse_header(part.block.data).timestamp_max_us >= timestamp_us
                low, high = (
                    (low, max(low, part.block.first)) if is_young else (part.block.end, high)
                )
            elif isinstance(part, Gap) or _timestamp_of(part) < timestamp_us:
                low = Lsn(middle + 1)
            else:
                high = middle
        return low

    async def young_from(self, moment_us: int, timeout_ms: int) -> Lsn:
        record = await self._records.refresh()
        try:
            point = await self._runner.run(retention_point(record, moment_us, None), timeout_ms)
        except DeadlinePassed:
            point = None
        if point is None:
            raise Unavailable(f"log {self._info.name!r}: a stream of it does not answer")
        return point

    async def weigh(self, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        """By the size of records here and there: streams are weighed together."""
        begin, readable_end = await self.readable_bounds(TIMEOUT_MS)
        low, high = max(first, begin), min(end, readable_end)
        if low >= high:
            return []
        record_bytes = await self._record_bytes(low, high)
        count = min(pieces, high - low)
        ends = [Lsn(low + (high - low) * (at + 1) // count) for at in range(count)]
        firsts = [low, *ends[:-1]]
        return [
            Weight(begun, stop, int((stop - begun) * record_bytes))
            for begun, stop in zip(firsts, ends, strict=True)
        ]

    async def _record_bytes(self, first: Lsn, end: Lsn) -> float:
        """The mean over some blocks."""
        sizes: list[float] = []
        for at in range(SAMPLES):
            lsn = Lsn(first + (end - first) * at // SAMPLES)
            async with Reader(self.reading(lsn, Lsn(lsn + 1), None, None, None)) as reader:
                part = await reader.take(TIMEOUT_MS)
            if isinstance(part, Deliver):
                sizes.append(_size_bytes(part.block) / part.block.count)
        return sum(sizes) / len(sizes) if sizes else 0.0

    async def runs(self, first: Lsn, end: Lsn) -> Runs:
        begin, readable_end = await self.readable_bounds(TIMEOUT_MS)
        return Runs([Run(max(first, begin), min(end, readable_end))])

    # -- Looking after ------------------------------------------------------------------------

    async def trim_nodes(self, point: Lsn, timeout_ms: int) -> str | None:
        """Replicas hear of it with the next commit."""
        await self._change(TrimCommits(self._info.id, point), timeout_ms)
        return None

    async def seal(self, timeout_ms: int) -> CommitRecord:
        await self._change(SealCommits(self._info.id), timeout_ms)
        return await self._records.refresh()

    async def add(self, timeout_ms: int = TIMEOUT_MS) -> CommitRecord:
        """One more stream, on nodes of the committer's choice; clients use it within seconds."""
        await self._change(AddStream(self._info.id), timeout_ms)
        return await self._records.refresh()

    async def set_open(self, stream: int, is_open: bool, timeout_ms: int = TIMEOUT_MS) -> None:
        """Whether the stream takes appends; those under way go to another one."""
        change = SetStreamOpen(self._info.id, StreamId(stream), is_open)
        await self._change(change, timeout_ms)

    async def move(
        self, stream: int, source: int, destination: int, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """A replica is to be elsewhere: begun when this returns, done when the record says so."""
        change = MoveReplica(self._info.id, StreamId(stream), NodeId(source), NodeId(destination))
        await self._change(change, timeout_ms)

    async def give_up(self, stream: int, timeout_ms: int = TIMEOUT_MS) -> None:
        """What no replica of the stream has any more is lost for good: it goes on with what is
        left, and readers are told."""
        await self._change(GiveUpStream(self._info.id, StreamId(stream)), timeout_ms)

    async def _change(
        self,
        change: TrimCommits | SealCommits | AddStream | SetStreamOpen | GiveUpStream | MoveReplica,
        timeout_ms: int,
    ) -> CommitsChanged:
        return await self._questions.ask(change, CommitsChanged, timeout_ms)

    async def describe(self, timeout_ms: int) -> CommitDescription:
        record = await self._records.refresh()
        live = (await self._client.directory.view()).live
        begins = await asyncio.gather(*map(self._begin_of, record.streams))
        firsts = {
            int(each.stream): first for each, first in zip(record.streams, begins, strict=True)
        }
        return await describe_commits(self._info, record, live, firsts, self._questions, timeout_ms)

    async def _begin_of(self, stream: StreamRecord) -> Lsn | None:
        """None: no replica tells."""
        reading = StreamReading(
            self._client, self._info, self._records, stream.stream, ASK_TIMEOUT_MS
        )
        try:
            return (await reading.bounds())[0]
        except Unavailable:
            return None

    async def verify(self, timeout_ms: int) -> Verdict:
        return await verify_commit_log(self._client, self._info, self._records, timeout_ms)

    async def wake(self) -> None:
        """So that the first append need not wait for a committer."""
        await self._questions.wake()

    def show(self, lsn: Lsn) -> str:
        return str(lsn)


def _timestamp_of(part: Deliver) -> int:
    return records(part.block, part.first, part.end)[0].timestamp


def _size_bytes(block: Block) -> int:
    """Of a block that publishes: what its rows have elsewhere."""
    return publication_of(block).size_bytes if block.is_published else block.size


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def whereabouts(unknown: AppendUnknown) -> str:
    """Positions are given to what is stored already: nothing is known of this one's."""
    return ""
