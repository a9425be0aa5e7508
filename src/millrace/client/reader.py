"""What an application reads: records, Arrow batches and gaps of one log, in order.

Whoever drives the log's read stream (`chain_reading.py`, `sequenced_reading.py`) hands over blocks
and gaps; they wait here until the application takes them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from millrace.client.end_watch import FindEnd, watch_for_end
from millrace.codec.cuts import selected_batch, selected_records
from millrace.core.read_effects import Deliver
from millrace.core.read_stream import ReadStream
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.selections import credit_bytes
from millrace.errors import MillraceError, TimedOut
from millrace.lsn import show
from millrace.types import LSN_MAX, Gap, Lsn, Record, Selection


class Reading(Protocol):
    """A read stream and the connections that it lives on."""

    @property
    def stream(self) -> ReadStream | SequencedReadStream: ...

    @property
    def next_lsn(self) -> Lsn:
        """What comes next: all before it was handed over."""

    @property
    def is_served(self) -> bool: ...

    @property
    def bytes_received(self) -> int: ...

    @property
    def bytes_delivered(self) -> int: ...

    def explain(self) -> dict[str, object]: ...

    def open(
        self,
        deliver: Callable[[Deliver | Gap], None],
        finish: Callable[[BaseException | None], None],
    ) -> None: ...

    def took(self, size_bytes: int) -> None: ...

    def stop(self) -> None: ...

    async def close(self) -> None: ...


class Reader:
    """Records and gaps of [first, end) in order.  Iterate it, or take `batches()`; close it, or
    use it as a context manager, to free its place at the nodes."""

    def __init__(
        self,
        reading: Reading,
        selection: Selection | None = None,
        end: Lsn = LSN_MAX,
        find_end: FindEnd | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """`find_end` is for a reader without an end of its own: it ends where the log is sealed.
        `timeout_ms` is how long each wait may last that is given no time of its own."""
        self.selection = selection
        self.end = end
        self.timeout_ms = timeout_ms
        self.heard: Callable[[], None] | None = None  # Called when there is something to take.
        self._reading = reading
        self._ready: deque[Deliver | Gap] = deque()
        self._news = asyncio.Event()
        self._is_finished = False
        self._failure: BaseException | None = None
        self._taken_bytes = 0
        self.rest: Iterator[Record] = iter(())
        self._begun: Deliver | None = None
        self._watch: asyncio.Task[None] | None = None
        reading.open(self._deliver, self._finish)
        if find_end is not None:
            self._watch = asyncio.create_task(self._end_when_sealed(find_end))

    @property
    def stream(self) -> ReadStream | SequencedReadStream:
        return self._reading.stream

    @property
    def next_lsn(self) -> Lsn:
        """What comes next: all before it was taken or waits to be."""
        return self._reading.next_lsn

    @property
    def is_served(self) -> bool:
        """Whether nodes serve the reader now, as far as it knows."""
        return self._reading.is_served

    @property
    def bytes_received(self) -> int:
        """Of blocks, over the network; with single copy delivery as many as were delivered."""
        return self._reading.bytes_received

    @property
    def bytes_delivered(self) -> int:
        return self._reading.bytes_delivered

    # -- Taking -------------------------------------------------------------------------------

    async def take(self, timeout_ms: int | None = None) -> Deliver | Gap | None:
        """The next part of a block, or a gap; None at the end.  A block that was read in part by
        its records comes with the others.  Raises TimedOut, after which it may be called again, and
        when nothing can come any more UnknownLog, CorruptBlock, or UsageError if the client was
        closed."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        while (part := self.poll()) is None and not self._is_finished:
            self._news.clear()
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                raise self._timed_out(timeout_ms) from None
        return part

    def _timed_out(self, timeout_ms: int | None) -> TimedOut:
        explained = self.explain()
        nodes = explained.get("waits_for_nodes")
        whose = f" of nodes {nodes}" if nodes else ""
        return TimedOut(
            f"nothing at {show(self.next_lsn)} within {timeout_ms} ms: the reader waits "
            f"for {explained['waits_for']}{whose}; its `explain()` tells more"
        )

    def poll(self) -> Deliver | Gap | None:
        """As `take`, without waiting: None if nothing is here now."""
        if self._begun is not None and (rest := self._leave()) is not None:
            return rest
        self._give_back()
        if not self._ready:
            if self._failure is not None:
                raise self._failure
            return None
        part = self._ready.popleft()
        if isinstance(part, Deliver):
            self._taken_bytes = credit_bytes(part.block)
        return part

    def __aiter__(self) -> AsyncIterator[Record | Gap]:
        return self.records()

    async def records(self, *, timeout_ms: int | None = None) -> AsyncIterator[Record | Gap]:
        """One record or gap at a time.  Whoever leaves the loop may begin another one: it goes on
        with the next.  Raises UsageError if the selection leaves out a column, and TimedOut if a
        wait lasts longer than `timeout_ms`: iterate again to go on."""
        while True:
            for record in self.rest:
                yield record
            part = await self.take(timeout_ms)
            if part is None:
                return
            if isinstance(part, Gap):
                yield part
            else:
                self.begin(part)

    def begin(self, part: Deliver) -> None:
        """Read it by its records: the `rest` is those that nobody has taken yet."""
        self.rest = iter(self.part_records(part))
        self._begun = part

    def _leave(self) -> Deliver | None:
        """What is left of the part whose records were being read."""
        begun, self._begun = self._begun, None
        following = next(self.rest, None)
        self.rest = iter(())
        if begun is None or following is None:
            return None
        return msgspec.structs.replace(begun, first=following.lsn)

    async def batches(
        self, columns: Sequence[str] | None = None, *, timeout_ms: int | None = None
    ) -> AsyncIterator[pa.RecordBatch | Gap]:
        """One Arrow batch for each block that has selected rows, without copying; gaps in their
        places.  Without `columns` there are `lsn` and those of the selection.  `timeout_ms` as for
        `records`."""
        while (part := await self.take(timeout_ms)) is not None:
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
        """Why the reader is where it is: what it waits for, and of whom."""
        return self._reading.explain()

    @property
    def is_over(self) -> bool:
        """All was taken, and no more will come."""
        return self._is_finished and not self._ready and self._failure is None

    async def close(self) -> None:
        self._stop_watching()
        await self._reading.close()

    def fail(self, error: MillraceError) -> None:
        """Nothing more will come: `take` hands over what is here already, then raises `error`."""
        if not self._is_finished:
            self._failure = error
            self._stop_watching()
            self._reading.stop()
            self._tell()  # A reading that is at something may end late, or not at all.

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _give_back(self) -> None:
        if self._taken_bytes:
            taken, self._taken_bytes = self._taken_bytes, 0
            self._reading.took(taken)

    # -- Being given --------------------------------------------------------------------------

    def _deliver(self, part: Deliver | Gap) -> None:
        self._ready.append(part)
        self._tell()

    def _finish(self, error: BaseException | None) -> None:
        self._is_finished = True
        self._failure = self._failure or error
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        if self.heard is not None:
            self.heard()

    async def _end_when_sealed(self, find_end: FindEnd) -> None:
        failure: MillraceError | None = None
        try:
            await watch_for_end(lambda: self.next_lsn, find_end)
        except MillraceError as error:  # The log was deleted.
            failure = error
        self._watch = None  # It is this task, which ends by itself.
        if failure is not None:
            self.fail(failure)
        else:
            self._reading.stop()

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
