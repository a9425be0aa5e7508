"""Gathers small appends into blocks, without being asked to and without making anybody wait.

An append that finds nothing under way leaves at once, with whatever else was appended in the same
turn of the loop.  While blocks are under way, further appends gather and leave together when a
block returns or enough has gathered.  So one writer at a time pays no delay, and a thousand
writers share blocks.  A writer who was alone with its last block is taken to be alone again, and
does not wait for the end of the turn either.

  I1  Blocks leave in the order in which their records were appended.
  I2  At most `in_flight_max` blocks are under way and about BATCH_BYTES_WAITING_MAX bytes wait;
      beyond that `add` waits (G13).
  I3  Nobody waits longer than its own deadline, wherever its record is.  Before it was sent it is
      taken out, and definitely not appended; afterwards its outcome is unknown, and the block goes
      on for the others.
  I4  One timer serves all deadlines: it is set anew only for a deadline that is earlier than any
      before.  In a cluster that is well it hardly ever is.
"""

import asyncio
import time
from collections import deque

import msgspec

from millrace.client.batch import NEVER_S, Batch, SendBlock, Share
from millrace.client.compression_habit import CompressionHabit
from millrace.client.outcomes import not_sent, under_way
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Appended
from millrace.limits import APPENDS_IN_FLIGHT_MAX, BATCH_BYTES_WAITING_MAX
from millrace.types import Ack

RECORD_OVERHEAD_BYTES = 24
TICK_S_MIN = 0.002  # Deadlines that are closer together are served together.


class _Hopeful(msgspec.Struct, eq=False):
    """Waits for room in the queue."""

    deadline_s: float
    future: asyncio.Future[None]


class Batcher:
    def __init__(
        self,
        log_name: str,
        send: SendBlock,
        compress: bool,
        in_flight_max: int = APPENDS_IN_FLIGHT_MAX,
    ) -> None:
        self._log_name = log_name
        self._send = send
        self._compress = compress
        self._habit = CompressionHabit()
        self._in_flight_max = in_flight_max
        self._hopefuls: dict[_Hopeful, None] = {}  # In the order in which they came.
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._in_flight: set[Batch] = set()
        self._returned: asyncio.Future[None] | None = None  # Somebody waits for the next return.
        self._is_pump_due = False
        self._is_lone = False  # The last block had one append, and none came while it was sent.
        self._tick: asyncio.TimerHandle | None = None
        self._tick_s = NEVER_S

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
        deadline_s: float,
    ) -> Appended:
        """Append one record.  Deadlines are moments of `time.monotonic`."""
        size = len(value) + RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(content) for name, content in headers)
        if self._waiting_bytes >= BATCH_BYTES_WAITING_MAX:
            await self._room(deadline_s)
        batch = self._open_batch(ack, deadline_s)
        share = self._share(batch, len(batch.values), 1, size, deadline_s)
        batch.values.append(value)
        batch.keys.append(key)
        batch.timestamps.append(timestamp_us)
        batch.headers.append(headers)
        if key is not None:
            batch.has_keys = True
        if headers:
            batch.has_headers = True
        self._rouse()
        return await share.future

    async def add_draft(
        self, finished: Draft, ack: Ack, deadline_s: float, send: SendBlock | None = None
    ) -> asyncio.Future[Appended]:
        """Append a whole block, perhaps in a way of its own; returns when it has its place in the
        queue, not when done."""
        if self._waiting_bytes >= BATCH_BYTES_WAITING_MAX:
            await self._room(deadline_s)
        batch = Batch(ack, deadline_s, self._done)
        batch.drafted, batch.send = finished, send
        self._waiting.append(batch)
        share = self._share(batch, 0, finished.count, finished.size, deadline_s)
        self._rouse()
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
        if self._tick is not None:
            self._tick.cancel()

    # -- The queue ----------------------------------------------------------------------------

    async def _room(self, deadline_s: float) -> None:
        while self._waiting_bytes >= BATCH_BYTES_WAITING_MAX:
            # Whoever came first may have taken the room again.
            hopeful = _Hopeful(deadline_s, asyncio.get_running_loop().create_future())
            self._hopefuls[hopeful] = None
            self._tick_by(deadline_s)
            try:
                await hopeful.future
            finally:
                self._hopefuls.pop(hopeful, None)

    def _open_batch(self, ack: Ack, deadline_s: float) -> Batch:
        if self._waiting:
            batch = self._waiting[-1]
            if not batch.is_full and batch.ack is ack:
                batch.widen(deadline_s)
                return batch
        batch = Batch(ack, deadline_s, self._done)
        self._waiting.append(batch)
        return batch

    def _share(self, batch: Batch, offset: int, count: int, size: int, deadline_s: float) -> Share:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        share = Share(offset, count, size, deadline_s, future)
        batch.shares.append(share)
        batch.size += size
        self._waiting_bytes += size
        if deadline_s < self._tick_s:
            self._tick_by(deadline_s)
        return share

    def _rouse(self) -> None:
        if self._is_pump_due:
            return
        if self._is_lone and not self._in_flight:
            self._pump()
        else:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            if self._in_flight and not self._waiting[0].is_full:
                return
            batch = self._waiting.popleft()
            self._freed(batch.size)
            self._in_flight.add(batch)
            self._start(batch)

    def _freed(self, size: int) -> None:
        self._waiting_bytes -= size
        if self._hopefuls and self._waiting_bytes < BATCH_BYTES_WAITING_MAX:
            hopefuls, self._hopefuls = self._hopefuls, {}
            for hopeful in hopefuls:
                if not hopeful.future.done():
                    hopeful.future.set_result(None)

    def _start(self, batch: Batch) -> None:
        left_ms = max(1, int((batch.deadline_s - time.monotonic()) * 1000))
        try:
            finished = self._drafted(batch)
        except Exception as error:  # Whatever it is belongs to those who wait for the block.
            batch.set_exception(error)
        else:
            send = batch.send or self._send
            batch.sent(send(finished, batch.ack, left_ms, batch))

    def _drafted(self, batch: Batch) -> Draft:
        size = batch.size
        if not self._compress or batch.drafted is not None or not self._habit.should_try(size):
            return batch.draft(False)
        finished = batch.draft(True)
        self._habit.tried(size, finished.is_compressed)
        return finished

    def _done(self, batch: Batch) -> None:
        self._in_flight.discard(batch)
        self._is_lone = len(batch.shares) == 1 and not self._waiting and not self._in_flight
        if self._waiting and not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)
        if self._returned is not None:
            self._returned.set_result(None)
            self._returned = None

    # -- Deadlines ----------------------------------------------------------------------------

    def _tick_by(self, deadline_s: float) -> None:
        """Keeps I4."""
        if deadline_s >= self._tick_s:
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_s = deadline_s
        left_s = max(deadline_s - time.monotonic(), TICK_S_MIN)
        self._tick = asyncio.get_running_loop().call_later(left_s, self._serve_deadlines)

    def _serve_deadlines(self) -> None:
        """Keeps I3."""
        self._tick, self._tick_s = None, NEVER_S
        now_s = time.monotonic()
        self._turn_away(now_s)
        self._withdraw(now_s)
        for batch in self._in_flight:
            if batch.earliest_s <= now_s:
                assert batch.block is not None
                batch.leave(now_s, under_way(batch.block, self._log_name))
        moments = [each.deadline_s for each in self._hopefuls if not each.future.done()]
        moments += [batch.earliest_s for batch in (*self._waiting, *self._in_flight)]
        self._tick_by(min(moments, default=NEVER_S))

    def _turn_away(self, now_s: float) -> None:
        for hopeful in self._hopefuls:
            if hopeful.deadline_s <= now_s and not hopeful.future.done():
                hopeful.future.set_exception(not_sent(self._log_name))

    def _withdraw(self, now_s: float) -> None:
        if all(batch.earliest_s > now_s for batch in self._waiting):
            return
        waited, self._waiting = self._waiting, deque()
        for batch in waited:
            if batch.earliest_s <= now_s:
                size = batch.size
                batch.withdraw(now_s, lambda: not_sent(self._log_name))
                self._freed(size - batch.size)
            if batch.shares:
                self._waiting.append(batch)
