"""Reading one stream of a commit log by its own positions, as its replicas hold it.

Readers of a log need none of this: they see all streams in one order.  It is for whoever wrote to a
stream, moves one, or wants to know what lies in it.

  I1  Only what is committed is read, in the order of the stream, each entry once.
  I2  What was trimmed is a gap, by positions of the stream.
  I3  One page at a time is in memory.
"""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.client.asking import ask_until
from millrace.client.commit_records import CommitRecords
from millrace.client.publications.expanding import Expanding
from millrace.codec.blocks import records, seen_at
from millrace.core.commit.record import StreamRecord
from millrace.core.messages import FetchStream, Message, Refused, StreamPage
from millrace.core.read_effects import Deliver
from millrace.errors import PositionBeyondTail, Unavailable, UsageError
from millrace.limits import READ_BATCH_BYTES
from millrace.types import FIRST_LSN, Block, Gap, GapKind, LogInfo, Lsn, Record, StreamId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS: Final = 3_000
PAUSE_S: Final = 0.05


class StreamEntry(msgspec.Struct, frozen=True):
    """A record, which has its position in the log, and its position in the stream."""

    position: Lsn
    record: Record


class StreamReading:
    """One stream, from whichever replica answers."""

    def __init__(
        self,
        client: "Client",
        info: LogInfo,
        log_records: CommitRecords,
        stream: StreamId,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` bounds the wait for each page."""
        self._client = client
        self._info = info
        self._records = log_records
        self._stream = stream
        self._timeout_ms = timeout_ms
        self._turns = itertools.count()
        self._trouble = "nobody has answered yet"

    async def read(self, first: Lsn, end: Lsn | None) -> AsyncIterator[StreamEntry | Gap]:
        """Entries [first, end), up to what is committed now."""
        committed = (await self._found()).local_end
        if first > committed:
            raise PositionBeyondTail(
                f"{self._name} cannot be read from {first}: its next position is {committed}"
            )
        stop = committed if end is None else min(end, committed)
        at = first
        while at < stop:
            page = await self._page(at, stop)
            if at < page.low:  # Keeps I2.
                low = min(page.low, stop)
                yield Gap(GapKind.TRIM, at, Lsn(low - 1))
                at = low
            for block, place in zip(page.blocks, page.firsts, strict=True):
                if block.is_published:
                    async for entry in self._published(block, place, at, stop):
                        yield entry
                else:
                    for entry in _entries(block, place, at, stop):
                        yield entry
                at = max(at, block.end)  # Keeps I1.

    async def _published(
        self, block: Block, place: Lsn, first: Lsn, end: Lsn
    ) -> AsyncIterator[StreamEntry | Gap]:
        """As `_entries`, of a block whose rows lie elsewhere; what was not published is a gap."""
        up = place - block.first
        low, high = max(first, block.first), min(end, block.end)
        part = Deliver(seen_at(block, self._info.id, place), Lsn(low + up), Lsn(high + up))
        async with Expanding(self._client, self._info, None) as expanding:
            async for each in expanding.parts(part):
                if isinstance(each, Gap):
                    yield Gap(each.kind, Lsn(each.first - up), Lsn(each.last - up))
                else:
                    for record in records(each.block, each.first, each.end):
                        yield StreamEntry(Lsn(record.lsn - up), record)

    async def bounds(self) -> tuple[Lsn, Lsn]:
        """Where the stream begins, and the end of what is committed, as a replica knows it."""
        page = await self._page(FIRST_LSN, FIRST_LSN)
        return page.low, page.high

    async def _page(self, first: Lsn, end: Lsn) -> StreamPage:
        """With something to go on with, unless nothing is asked for."""
        question = FetchStream(self._info.id, self._stream, first, end, READ_BATCH_BYTES)

        async def ask_once() -> Message | None:
            answer = await self._ask_next(question)
            is_news = isinstance(answer, StreamPage) and (answer.blocks or answer.low > first)
            return answer if is_news or first >= end else None

        return await ask_until(ask_once, StreamPage, self._timeout_ms, PAUSE_S, self._complaint)

    async def _ask_next(self, question: FetchStream) -> Message | None:
        """The replicas in turn, since one may be away, not whole, or behind."""
        self._client.check_open()
        replicas = (await self._found()).replicas
        node = replicas[next(self._turns) % len(replicas)]
        try:
            answer = await self._client.ask_node(node, question, ASK_TIMEOUT_MS)
        except Unavailable as error:
            self._trouble = str(error)
            return None
        if isinstance(answer, Refused):
            self._trouble = f"node {node}: {answer.reason.value} {answer.detail}"
            return None
        self._trouble = f"node {node} does not have it"
        return answer

    async def _found(self) -> StreamRecord:
        record = await self._records.refresh()
        stream = record.stream(self._stream)
        if stream is None:
            known = ", ".join(str(each.stream) for each in record.streams)
            raise UsageError(
                f"log {self._info.name!r} has no stream {self._stream}: it has {known}"
            )
        return stream

    @property
    def _name(self) -> str:
        return f"stream {self._stream} of log {self._info.name!r}"

    def _complaint(self) -> str:
        return (
            f"{self._name}: no replica has answered within {self._timeout_ms} ms: {self._trouble}"
        )


def _entries(block: Block, place: Lsn, first: Lsn, end: Lsn) -> Iterator[StreamEntry]:
    """Those of a block of the stream, which begins at `place` of the log."""
    for record in records(block, first, end):
        lsn = Lsn(place + record.lsn - block.first)
        yield StreamEntry(record.lsn, msgspec.structs.replace(record, lsn=lsn))
