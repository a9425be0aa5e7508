"""A log's reading with what was published in it: stands between a read stream and its reader.

I1  Parts are handed over in the order of the log: what comes behind a block that publishes waits
    until its rows were handed over.
I2  Rows that were handed over and not taken are bounded here, by WAITING_BYTES_MAX; all others
    by the window of the stream that they came on.
I3  The end is told when all that came before it was handed over.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from millrace.client.publications.expanding import Expanding
from millrace.client.reader import Reading
from millrace.core.read_effects import Deliver
from millrace.core.read_stream import ReadStream
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.selections import credit_bytes
from millrace.limits import READ_BATCH_BYTES
from millrace.types import Gap, Lsn

WAITING_BYTES_MAX: Final = READ_BATCH_BYTES

Part = Deliver | Gap


class PublishedReading:
    def __init__(self, inner: Reading, expanding: Expanding) -> None:
        self._inner = inner
        self._expanding = expanding
        self._queue: deque[Part] = deque()  # What waits behind rows that are being read.
        self._work: asyncio.Task[None] | None = None
        self._next: Lsn | None = None  # While it works: what is handed over next.
        self._untaken: deque[tuple[bool, int]] = deque()  # Whether of the inner stream; bytes.
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._expanded_bytes = 0
        self._ended: tuple[BaseException | None] | None = None
        self._deliver: Callable[[Part], None]
        self._finish: Callable[[BaseException | None], None]

    def open(
        self, deliver: Callable[[Part], None], finish: Callable[[BaseException | None], None]
    ) -> None:
        self._deliver = deliver
        self._finish = finish
        self._inner.open(self._arrived, self._end)

    @property
    def stream(self) -> ReadStream | SequencedReadStream:
        return self._inner.stream

    @property
    def next_lsn(self) -> Lsn:
        return self._inner.next_lsn if self._next is None else self._next

    @property
    def is_served(self) -> bool:
        return self._inner.is_served

    @property
    def bytes_received(self) -> int:
        return self._inner.bytes_received + self._expanding.source.bytes_received

    @property
    def bytes_delivered(self) -> int:
        return self._inner.bytes_delivered + self._expanded_bytes

    def explain(self) -> dict[str, object]:
        if self._work is None:
            return self._inner.explain()
        waits_for = self._expanding.waits_for
        if waits_for:
            return {**self._inner.explain(), "waits_for": waits_for}
        return {**self._inner.explain(), **(self._expanding.source.explain() or {})}

    def took(self, size_bytes: int) -> None:
        """Called once for each block, in the order in which they were handed over."""
        is_inner, _ = self._untaken.popleft()
        if is_inner:
            self._inner.took(size_bytes)
        else:
            self._waiting_bytes -= size_bytes
            self._room.set()

    def stop(self) -> None:
        """What has come is still handed over."""
        self._inner.stop()

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await self._expanding.close()
        await self._inner.close()

    # -- Handing over ---------------------------------------------------------------------------

    def _arrived(self, part: Part) -> None:
        """Keeps I1."""
        if self._work is None and not _is_published(part):
            self._hand_over(part, is_inner=True)
            return
        self._queue.append(part)
        if self._work is None:
            self._next = part.first
            self._work = asyncio.create_task(self._expand())

    def _hand_over(self, part: Part, is_inner: bool) -> None:
        if isinstance(part, Deliver):
            self._untaken.append((is_inner, credit_bytes(part.block)))
        self._deliver(part)

    async def _expand(self) -> None:
        try:
            while self._queue:
                part = self._queue.popleft()
                self._next = part.first
                if isinstance(part, Deliver) and part.block.is_published:
                    await self._hand_over_rows(part)
                    self._inner.took(credit_bytes(part.block))
                else:
                    self._hand_over(part, is_inner=True)
        except (
            Exception
        ) as error:  # Whatever it is, the reader is told, and nothing comes after it.
            self._queue.clear()
            self._ended = (error,)
            self._inner.stop()
        self._work = self._next = None
        if self._ended is not None:
            self._finish(*self._ended)

    async def _hand_over_rows(self, part: Deliver) -> None:
        async for each in self._expanding.parts(part, self._queue):
            await self._wait_for_room()
            if isinstance(each, Deliver):
                size_bytes = credit_bytes(each.block)
                self._waiting_bytes += size_bytes
                self._expanded_bytes += each.block.size
            self._hand_over(each, is_inner=False)
            self._next = each.end if isinstance(each, Deliver) else Lsn(each.last + 1)

    async def _wait_for_room(self) -> None:
        """Keeps I2."""
        while self._waiting_bytes >= WAITING_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    def _end(self, error: BaseException | None) -> None:
        """Keeps I3."""
        self._ended = self._ended or (error,)
        if self._work is None:
            self._finish(*self._ended)


def _is_published(part: Part) -> bool:
    return isinstance(part, Deliver) and part.block.is_published
