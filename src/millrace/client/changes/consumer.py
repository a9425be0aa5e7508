"""Following the changes of a bucket.

    async with ChangeConsumer(bucket, "indexer:1", FileConsumerState("place")) as consumer:
        async for batch in consumer:
            index(batch)

Batches of one partition come in order.  Each is acknowledged when the next one is taken, or by
`ack` with `is_automatic=False`; after a crash everything comes again that was not acknowledged (at
least once, and of each document at least its newest version).  When a failover took changes back
that were handed out, batches with cause ROLLBACK carry what is true instead; WIPE means that the
partition comes again as a whole.

  I1  Nothing but `close`, the end of a finite consumer, and an error that is raised ends it:
      whatever else stops a stream, it is opened again.
  I2  Memory is bounded: nodes send no more than `buffer_bytes` each before it is acknowledged.
"""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from millrace.client.bucket import Bucket
from millrace.client.changes.barrier import Barriers
from millrace.client.changes.batches import BatchCause, ChangeBatch, Lag
from millrace.client.changes.connection import Pushed, StreamConnection, StreamSettings
from millrace.client.changes.following import FollowedPartition
from millrace.client.changes.high_seqs import high_seqs
from millrace.client.changes.node_connections import NodeConnections
from millrace.client.changes.offsets import Offset, offset_of
from millrace.client.changes.states import ConsumerState, MemoryConsumerState, StateChange
from millrace.client.changes.writing import StateWriter
from millrace.core.documents.consumer import Wish
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import (
    NAME_BYTES_MAX,
    AllPartitions,
    BarrierReached,
    Noop,
    StreamFlag,
)
from millrace.errors import MetadataUnavailable, MillraceError, UsageError
from millrace.limits import DOCUMENT_KEY_BYTES_MAX, MIB

BUFFER_BYTES: Final = 16 * MIB  # What a node sends ahead of what was acknowledged.
BUFFER_BYTES_MIN: Final = 64 * 1024
NOOP_INTERVAL_S: Final = 10.0

OnBatch = Callable[[ChangeBatch], Awaitable[None] | None]


class ChangeConsumer:
    """`name` is "what:who"; nodes show it in their statistics.

    `partitions`: those to follow, all if None.  `is_from_now`: of a partition that was not followed
    before, only what changes from now on.  `is_finite`: up to what there is now, then the iteration
    ends.  `is_keys_only`: without values.  `key_prefix`: only of keys that begin so."""

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        state: ConsumerState | None = None,
        *,
        partitions: Iterable[int] | None = None,
        is_from_now: bool = False,
        is_finite: bool = False,
        is_keys_only: bool = False,
        key_prefix: bytes = b"",
        is_automatic: bool = True,
        buffer_bytes: int = BUFFER_BYTES,
        noop_interval_s: float = NOOP_INTERVAL_S,
    ) -> None:
        _check_name(name)
        if buffer_bytes < BUFFER_BYTES_MIN:
            raise UsageError(f"buffer_bytes={buffer_bytes}: give at least {BUFFER_BYTES_MIN}")
        self.bucket = bucket
        self.name = name
        prefix = _prefix_text(key_prefix)
        self._settings = StreamSettings(name, bucket.name, buffer_bytes, noop_interval_s, prefix)
        self._kept: ConsumerState = MemoryConsumerState() if state is None else state
        self._numbers = _chosen(partitions, bucket)
        self._wish = _wish(is_from_now, is_finite, is_keys_only)
        self._is_automatic = is_automatic
        self._map = bucket.asker.map
        self._followed: dict[PartitionId, FollowedPartition] = {}
        self._queue: deque[ChangeBatch] = deque()
        self._arrived = asyncio.Event()
        self._last: ChangeBatch | None = None  # To be acknowledged when the next is taken.
        self._failure: BaseException | None = None
        self._is_closed = False
        self._reload: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._writer: StateWriter
        self._connections: NodeConnections
        self._barriers: Barriers

    async def __aenter__(self) -> "ChangeConsumer":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Raises Corruption if what the state kept cannot be read."""
        if self._followed:
            raise UsageError(f"consumer {self.name!r} was started before")
        self._loop = asyncio.get_running_loop()
        self._writer = StateWriter(self._kept, self._fail)
        self._connections = NodeConnections(self._settings, self._pushed, self._lost, self._dialed)
        self._barriers = Barriers(self._followed.values(), self._connections, self._check)
        for number in self._numbers:
            kept = self._kept.load(number)
            entries_max = self._kept.entries_max
            followed = FollowedPartition(number, kept, entries_max, self._wish, self)
            self._followed[number] = followed
        for followed in self._followed.values():
            followed.start()

    async def close(self) -> None:
        """What was taken last is not acknowledged by this; offsets that moved are kept."""
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived.set()
        for followed in self._followed.values():
            followed.stop()
        if self._followed:
            await self._connections.close()
            await self._writer.close()
            self._barriers.wake()
        if self._reload is not None:
            self._reload.cancel()
            await asyncio.gather(self._reload, return_exceptions=True)

    # -- Taking ---------------------------------------------------------------------------------

    def __aiter__(self) -> "ChangeConsumer":
        return self

    async def __anext__(self) -> ChangeBatch:
        batch = await self.take()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def take(self) -> ChangeBatch | None:
        """The next batch; None: a finite consumer has come to its end."""
        last, self._last = self._last, None
        if last is not None:
            self.ack(last)
        while not self._queue:
            self._check()
            if all(followed.is_done for followed in self._followed.values()):
                await self._writer.flush()
                return None
            self._arrived.clear()
            await self._arrived.wait()
        batch = self._queue.popleft()
        if self._is_automatic:
            self._last = batch
        return batch

    def ack(self, batch: ChangeBatch, count: int | None = None) -> None:
        """It is processed, and need not come again.  With `count` only so many of its documents
        are, and the place that is kept lies behind them: for one that takes no more of it."""
        if not batch.is_acknowledged:
            if count is not None:
                self._followed[batch.partition].shorten(batch, count)
            self._followed[batch.partition].acknowledge(batch)

    @property
    def not_begun(self) -> list[PartitionId]:
        """Those that have no place yet."""
        return [number for number, each in self._followed.items() if not each.is_begun]

    async def begun(self) -> None:
        """Each partition has a place afterwards, if only the first: what is committed then lets
        another consumer go on with all of them.  Waits for masters."""
        while self.not_begun:
            self._check()
            self._arrived.clear()
            await self._arrived.wait()

    async def commit(self) -> None:
        """What was acknowledged is durable afterwards; without it that takes a moment."""
        await self._writer.flush()
        self._check()

    async def run(
        self,
        on_batch: OnBatch,
        *,
        on_rollback: OnBatch | None = None,
        on_snapshot: OnBatch | None = None,
    ) -> None:
        """Call these, one at a time, until a finite consumer ends.  `on_rollback` gets batches
        whose cause is ROLLBACK or WIPE (without it `on_batch` does); `on_snapshot` is called with
        the last batch of a snapshot, after `on_batch`."""
        while (batch := await self.take()) is not None:
            is_stream = batch.cause is BatchCause.STREAM
            await _call(on_batch if is_stream or on_rollback is None else on_rollback, batch)
            if on_snapshot is not None and batch.is_whole:
                await _call(on_snapshot, batch)
            self.ack(batch)

    async def barrier(self) -> None:
        """Until all that was acknowledged to writers before is handed out here, and acknowledged.
        To be awaited by another task than the one that takes batches."""
        await self._barriers.wait()

    # -- Looking --------------------------------------------------------------------------------

    @property
    def offsets(self) -> dict[PartitionId, Offset]:
        """Where the application stands, by what it acknowledged."""
        return {number: offset_of(each.state) for number, each in self._followed.items()}

    async def lag(self) -> dict[PartitionId, Lag]:
        """As the masters say at this moment; those that do not answer are left out."""
        highs = await high_seqs(self.bucket.asker)
        now_us = time.time_ns() // 1000
        found: dict[PartitionId, Lag] = {}
        for number, followed in self._followed.items():
            if number in highs:
                changes = max(0, highs[number] - followed.state.seen)
                found[number] = Lag(changes, _seconds(changes, followed.newest_cas, now_us))
        return found

    def explain(self) -> str:
        """What each partition is doing and what it waits for, for people."""
        lines = [f"consumer {self.name} of bucket {self.bucket.name}: {len(self._queue)} to take"]
        if self._failure is not None:
            lines.append(f"it failed: {self._failure}")
        lines += [followed.explain() for followed in self._followed.values()]
        return "\n".join(lines)

    # -- For the followed partitions ------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def connection_of(self, partition: PartitionId) -> StreamConnection | None:
        address = self._map.masters[partition]
        if not address:
            followed = self._followed[partition]
            self._loop.call_soon(followed.questions.not_connected, "the partition has no master")
            self.reload_map()
            return None
        return self._connections.get(address)

    def reload_map(self) -> None:
        if not self._is_closed and (self._reload is None or self._reload.done()):
            self._reload = self._loop.create_task(self._read_map())

    def submit(self, change: StateChange | None, then: Callable[[], None]) -> None:
        self._writer.submit(change, then)

    def hand_out(self, batch: ChangeBatch) -> None:
        self._queue.append(batch)
        self._arrived.set()

    def acknowledged(self, followed: FollowedPartition) -> None:
        self._writer.move(followed.number, followed.state)
        self._barriers.wake()
        if followed.is_done:
            self._arrived.set()

    def phase_changed(self, followed: FollowedPartition) -> None:
        self._barriers.phase_changed()
        self._arrived.set()

    # -- What happens ---------------------------------------------------------------------------

    def _pushed(self, connection: StreamConnection, pushed: Pushed) -> None:
        message = pushed.message
        if isinstance(message, BarrierReached):
            self._barriers.reached(connection, message.cookie)
        if isinstance(message, AllPartitions | BarrierReached | Noop):
            connection.processed(pushed.size_bytes)
            return
        followed = self._followed.get(message.partition)
        if followed is None:
            connection.close(f"{connection.address} sends partition {message.partition} unasked")
            return
        followed.pushed(connection, pushed)

    def _lost(self, connection: StreamConnection, detail: str) -> None:
        if self._is_closed:
            return
        for followed in self._followed.values():
            followed.questions.lost(connection, detail)
        self.reload_map()

    def _dialed(self, address: str, problem: str | None) -> None:
        if problem is not None:
            for number, followed in self._followed.items():
                if self._map.masters[number] == address:
                    followed.questions.not_connected(problem)
            self.reload_map()
        self._try_unsent()

    def _try_unsent(self) -> None:
        for followed in self._followed.values():
            followed.questions.connected()

    async def _read_map(self) -> None:
        try:
            await self._map.reload()
        except MetadataUnavailable:
            return  # The old one must do; who needs another asks again.
        except MillraceError as error:
            self._fail(error)
            return
        self._try_unsent()

    def _fail(self, error: BaseException) -> None:
        """Keeps I1: whoever takes the next batch is told."""
        self._failure = self._failure or error
        self._arrived.set()
        self._barriers.wake()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed or not self._followed:
            raise UsageError(f"consumer {self.name!r} is not open")


async def _call(callback: OnBatch, batch: ChangeBatch) -> None:
    result: Any = callback(batch)
    if inspect.isawaitable(result):
        await result


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise UsageError(f"{name!r}: a consumer's name has 1 to {NAME_BYTES_MAX} bytes")


def _chosen(partitions: Iterable[int] | None, bucket: Bucket) -> list[PartitionId]:
    count = len(bucket.asker.map.masters)
    if partitions is None:
        return [PartitionId(number) for number in range(count)]
    chosen = sorted(set(partitions))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < count:
        raise UsageError(f"partitions={chosen}: give some of 0 to {count - 1}")
    return [PartitionId(number) for number in chosen]


def _prefix_text(prefix: bytes) -> str:
    if len(prefix) > DOCUMENT_KEY_BYTES_MAX:
        raise UsageError(f"key_prefix has {len(prefix)} bytes; keys have {DOCUMENT_KEY_BYTES_MAX}")
    try:
        return prefix.decode()
    except UnicodeDecodeError:
        raise UsageError(f"key_prefix={prefix!r} is not UTF-8") from None


def _wish(is_from_now: bool, is_finite: bool, is_keys_only: bool) -> Wish:
    flags = StreamFlag.ACTIVE_ONLY
    if is_finite:
        flags |= StreamFlag.TO_LATEST
    if is_keys_only:
        flags |= StreamFlag.KEYS_ONLY
    return Wish(flags, is_from_now=is_from_now)


def _seconds(changes: int, newest_cas: int, now_us: int) -> float | None:
    if not changes:
        return 0.0
    return None if not newest_cas else max(0.0, (now_us - newest_cas) / 1_000_000)
