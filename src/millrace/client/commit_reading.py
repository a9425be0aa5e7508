"""Drives the reading of a commit log: a read stream as of a sequenced log, begun anew whenever the
log's streams or their replicas are others than it was told.

  I1  A loss is handed over only when it is certain (`core/commit/reading.py`).
  I2  Parts are handed over in order and once, whatever is begun anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from millrace.client.commit_records import CommitNodes, CommitRecords
from millrace.client.sequenced_reading import SequencedReading
from millrace.core.commit.reading import Part
from millrace.core.read_effects import Deliver
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.selections import credit_bytes
from millrace.errors import MetadataUnavailable, UnknownLog
from millrace.types import LogInfo, Lsn, Selection

if TYPE_CHECKING:
    from millrace.client.cluster import Client

LOOK_S = 2.0  # How often the record is looked at; also when something is amiss.
RETRY_S = 0.1


class CommitReading:
    def __init__(
        self,
        client: "Client",
        info: LogInfo,
        records: CommitRecords,
        first: Lsn,
        end: Lsn,
        settings: SequencedReadSettings,
        selection: Selection | None,
    ) -> None:
        self._client = client
        self._info = info
        self._records = records
        self._next = first  # The position that is handed over next.
        self._end = end
        self._settings = settings
        self._selection = selection
        self._is_checking = False
        self._is_inner_over = False  # It gave all that it has; a loss is being checked.
        self._untaken: deque[tuple[SequencedReading, int]] = deque()
        self._before_bytes = 0, 0  # Received and delivered by streams that are over.
        self._is_finished = False
        self._checks: set[asyncio.Task[None]] = set()
        self._inner = self._begin(first)

    def _begin(self, first: Lsn) -> SequencedReading:
        client = self._client
        self._nodes = CommitNodes(client, self._records)
        return SequencedReading(
            self._info.id,
            first,
            self._end,
            client.links,
            client.directory,
            self._nodes,
            self._settings,
            repr(self._info.name),
            self._selection,
            client.session,
            client.location,
            client.status_watch,
            is_dense=True,
        )

    def open(
        self, deliver: Callable[[Part], None], finish: Callable[[BaseException | None], None]
    ) -> None:
        self._deliver = deliver
        self._finish = finish
        self._open_inner()
        self._spawn(self._watch())

    def _open_inner(self) -> None:
        inner = self._inner
        inner.open(lambda part: self._arrived(inner, part), lambda error: self._ended(inner, error))

    @property
    def stream(self) -> SequencedReadStream:
        return self._inner.stream

    @property
    def next_lsn(self) -> Lsn:
        return self._next

    @property
    def is_served(self) -> bool:
        return self._inner.is_served

    @property
    def bytes_received(self) -> int:
        return self._before_bytes[0] + self._inner.bytes_received

    @property
    def bytes_delivered(self) -> int:
        return self._before_bytes[1] + self._inner.bytes_delivered

    def explain(self) -> dict[str, object]:
        return self._inner.explain()

    def took(self, size_bytes: int) -> None:
        """What was sent by a stream that is over gives nobody any room."""
        while size_bytes > 0 and self._untaken:
            inner, held_bytes = self._untaken.popleft()
            taken_bytes = min(size_bytes, held_bytes)
            size_bytes -= taken_bytes
            if taken_bytes < held_bytes:
                self._untaken.appendleft((inner, held_bytes - taken_bytes))
            if inner is self._inner:
                inner.took(taken_bytes)

    def stop(self) -> None:
        for task in self._checks:
            if task is not asyncio.current_task():
                task.cancel()
        self._inner.stop()
        self._is_finished = True

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._checks, return_exceptions=True)
        await self._inner.close()

    # -- Handing over ---------------------------------------------------------------------------

    def _arrived(self, inner: SequencedReading, part: Part) -> None:
        if inner is not self._inner or self._is_finished:
            return
        for each in self._nodes.check.arrived(part):
            self._hand_over(each)
        if self._nodes.check.is_due and not self._is_checking:
            self._is_checking = True
            self._spawn(self._check())

    def _hand_over(self, part: Part) -> None:
        """Keeps I2."""
        if isinstance(part, Deliver):
            self._next = part.end
            self._untaken.append((self._inner, credit_bytes(part.block)))
        else:
            self._next = Lsn(part.last + 1)
        self._deliver(part)

    async def _check(self) -> None:
        """Keeps I1."""
        while self._nodes.check.is_due and not self._is_finished:
            if not await self._is_current():
                await asyncio.sleep(RETRY_S)
                continue
            for part in self._nodes.check.confirmed():
                self._hand_over(part)
        self._is_checking = False
        if self._is_inner_over:
            self._ended(self._inner, None)

    async def _is_current(self) -> bool:
        """Whether the stream goes by the record as it is now; begins anew if not."""
        try:
            record = await self._records.refresh()
        except MetadataUnavailable:
            return False
        except UnknownLog as error:
            self._ended(self._inner, error)
            return False
        if self._nodes.check.is_current(record):
            return True
        self._begin_anew()
        return False

    def _begin_anew(self) -> None:
        if self._is_finished:
            return
        old = self._inner
        received, delivered = self._before_bytes
        self._before_bytes = received + old.bytes_received, delivered + old.bytes_delivered
        self._is_inner_over = False
        self._inner = self._begin(self._next)
        old.stop()
        self._spawn(old.close())
        self._open_inner()

    async def _watch(self) -> None:
        while not self._is_finished:
            await asyncio.sleep(LOOK_S)
            if not self._is_checking:
                await self._is_current()

    def _ended(self, inner: SequencedReading, error: BaseException | None) -> None:
        if inner is not self._inner or self._is_finished:
            return
        if error is None and self._nodes.check.is_due:
            self._is_inner_over = True  # A loss is among its last parts.
            return
        self._is_finished = True
        for task in self._checks:
            if task is not asyncio.current_task():
                task.cancel()
        self._finish(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
