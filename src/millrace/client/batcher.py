"""Gathers small appends into blocks, without being asked to and without making anybody wait.

An append that finds nothing under way leaves at once, with whatever else was appended in the same
turn of the loop.  While blocks are under way, further appends gather and leave together when a
block returns or enough has gathered.  So one writer at a time pays no delay, and a thousand
writers share blocks.

  I1  Blocks leave in the order in which their records were appended.
  I2  At most `in_flight_max` blocks are under way and about BATCH_BYTES_WAITING_MAX bytes wait;
      beyond that `add` waits (G13).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec

from millrace.client.outcomes import UnknownAppend
from millrace.codec.blocks import draft
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Appended
from millrace.limits import (
    APPENDS_IN_FLIGHT_MAX,
    BATCH_BYTES_WAITING_MAX,
    BLOCK_BYTES_TARGET,
    BLOCK_RECORDS_MAX,
)
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack, Lsn

SendBlock = Callable[[Draft, Ack, int, Waiter[Appended]], None]
RECORD_OVERHEAD_BYTES = 24


class Share(msgspec.Struct, eq=False):
    """One append's part of a block: its first row, its rows, and whoever waits for it."""

    offset: int
    count: int
    future: asyncio.Future[Appended]


class _Batch:
    """Rows that will become a block, and the one who is told what became of it."""

    __slots__ = (
        "_ended",
        "ack",
        "deadline_s",
        "drafted",
        "has_headers",
        "has_keys",
        "headers",
        "keys",
        "shares",
        "size",
        "timestamps",
        "values",
    )

    def __init__(self, ack: Ack, deadline_s: float, ended: "Callable[[_Batch], None]") -> None:
        self._ended = ended
        self.ack = ack
        self.deadline_s = deadline_s  # The time in the queue counts too.
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[HeaderPairs] = []
        self.shares: list[Share] = []
        self.has_keys = False
        self.has_headers = False
        self.size = 0
        self.drafted: Draft | None = None  # Came as a finished draft.

    @property
    def is_full(self) -> bool:
        return (
            self.drafted is not None
            or self.size >= BLOCK_BYTES_TARGET
            or len(self.values) >= BLOCK_RECORDS_MAX
        )

    def draft(self, compress: bool) -> Draft:
        if self.drafted is not None:
            return self.drafted
        return draft(
            self.values,
            timestamps_us=self.timestamps,
            keys=self.keys if self.has_keys else None,
            headers=self.headers if self.has_headers else None,
            compress=compress,
        )

    def set_result(self, appended: Appended) -> None:
        for share in self.shares:
            if not share.future.done():
                first = Lsn(appended.first + share.offset)
                share.future.set_result(Appended(first, Lsn(first + share.count - 1)))
        self._ended(self)

    def set_exception(self, error: Exception) -> None:
        for share in self.shares:
            _fail(share, error)
        self._ended(self)


class Batcher:
    def __init__(
        self, send: SendBlock, compress: bool, in_flight_max: int = APPENDS_IN_FLIGHT_MAX
    ) -> None:
        self._send = send
        self._compress = compress
        self._in_flight_max = in_flight_max
        self._waiting: deque[_Batch] = deque()
        self._waiting_bytes = 0
        self._in_flight: set[_Batch] = set()
        self._returned: asyncio.Future[None] | None = None  # Somebody waits for the next return.
        self._is_pump_due = False
        self._room = asyncio.Event()
        self._room.set()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def add(
        self,
        value: bytes,
        key: bytes | None,
        timestamp_us: int,
        headers: HeaderPairs,
        ack: Ack,
        timeout_ms: int,
    ) -> Appended:
        """Append one record."""
        size = len(value) + RECORD_OVERHEAD_BYTES
        while not self._room.is_set():  # Whoever came first may have taken the room again.
            await self._room.wait()
        batch = self._open_batch(ack, timeout_ms)
        share = self._share(batch, len(batch.values), 1)
        batch.values.append(value)
        batch.keys.append(key)
        batch.timestamps.append(timestamp_us)
        batch.headers.append(headers)
        if key is not None:
            batch.has_keys = True
            size += len(key)
        if headers:
            batch.has_headers = True
            size += sum(len(name) + len(content) for name, content in headers)
        self._grew(batch, size)
        return await share.future

    async def add_draft(
        self, finished: Draft, ack: Ack, timeout_ms: int
    ) -> asyncio.Future[Appended]:
        """Append a whole block; returns when it has its place in the queue, not when done."""
        while not self._room.is_set():  # Whoever came first may have taken the room again.
            await self._room.wait()
        batch = _Batch(ack, _deadline_s(timeout_ms), self._done)
        batch.drafted = finished
        share = self._share(batch, 0, finished.count)
        self._waiting.append(batch)
        self._grew(batch, finished.size)
        return share.future

    async def flush(self) -> None:
        """Wait until nothing waits or is under way."""
        while self._waiting or self._in_flight:
            self._pump()
            if self._in_flight:
                if self._returned is None:
                    self._returned = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._returned)

    async def close(self) -> None:
        await self.flush()

    def _open_batch(self, ack: Ack, timeout_ms: int) -> _Batch:
        deadline_s = _deadline_s(timeout_ms)
        if self._waiting:
            batch = self._waiting[-1]
            if not batch.is_full and batch.ack is ack:
                batch.deadline_s = max(batch.deadline_s, deadline_s)
                return batch
        batch = _Batch(ack, deadline_s, self._done)
        self._waiting.append(batch)
        return batch

    def _share(self, batch: _Batch, offset: int, count: int) -> Share:
        share = Share(offset, count, asyncio.get_running_loop().create_future())
        batch.shares.append(share)
        return share

    def _grew(self, batch: _Batch, size: int) -> None:
        batch.size += size
        self._waiting_bytes += size
        if self._waiting_bytes >= BATCH_BYTES_WAITING_MAX:
            self._room.clear()
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            if self._in_flight and not self._waiting[0].is_full:
                return
            batch = self._waiting.popleft()
            self._waiting_bytes -= batch.size
            if self._waiting_bytes < BATCH_BYTES_WAITING_MAX:
                self._room.set()
            self._in_flight.add(batch)
            self._start(batch)

    def _start(self, batch: _Batch) -> None:
        left_ms = max(1, int((batch.deadline_s - time.monotonic()) * 1000))
        try:
            finished = batch.draft(self._compress)
        except Exception as error:  # Whatever it is belongs to those who wait for the block.
            batch.set_exception(error)
        else:
            self._send(finished, batch.ack, left_ms, batch)

    def _done(self, batch: _Batch) -> None:
        self._in_flight.discard(batch)
        if self._waiting:
            self._pump_soon()
        if self._returned is not None:
            self._returned.set_result(None)
            self._returned = None


def _deadline_s(timeout_ms: int) -> float:
    return time.monotonic() + timeout_ms / 1000


def _fail(share: Share, error: Exception) -> None:
    if not share.future.done():
        if isinstance(error, UnknownAppend):
            error = error.of_share(share.offset, share.count)
        share.future.set_exception(error)
