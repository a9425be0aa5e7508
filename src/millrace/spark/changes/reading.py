"""The ranges of a task, read side by side: one connection to each node, streams of all partitions.

A node sends its partitions one after the other, so that nothing waits for a round trip.  Changes
stay the columns that arrived.  What is taken goes into the ring, then to Spark.

I1  Nothing is handed out before its keys are in the ring (`change_ring.py`, I1).
I2  Memory is bounded by what nodes may send ahead (BUFFER_BYTES), unless a partition is held back
    until it is whole (`is_held`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace.client.bucket import Bucket
from millrace.client.changes.connection import Pushed, StreamConnection, StreamSettings
from millrace.client.changes.node_connections import NodeConnections
from millrace.core.documents.change_query import PartitionRange, Receipt
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import AllPartitions, BarrierReached, Noop
from millrace.errors import MetadataUnavailable, MillraceError, Unavailable
from millrace.limits import MIB
from millrace.spark.changes.columns import Taken
from millrace.spark.changes.read_range import ReadRange
from millrace.spark.changes.ring import PartDocument, Ring
from millrace.types import Lsn

BUFFER_BYTES: Final = 16 * MIB  # Of each node.
NOOP_INTERVAL_S: Final = 10.0


class RangesReader:
    """`ring` is None for a snapshot: who has to go back begins the partition anew."""

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        ranges: Sequence[PartitionRange],
        ring: Ring | None,
        settled: Lsn,
        *,
        is_again: bool = False,
        is_held: bool = False,
        keeps_keys: bool = True,
        key_prefix: bytes = b"",
    ) -> None:
        self.is_again = is_again
        self.is_held = is_held
        self.keeps_keys = keeps_keys
        self.ring = ring
        self._settled = settled
        self._map = bucket.asker.map
        self._bucket = bucket.name
        self._settings = StreamSettings(
            name, bucket.name, BUFFER_BYTES, NOOP_INTERVAL_S, key_prefix.decode(), is_columnar=True
        )
        self._loop = asyncio.get_running_loop()
        self._ranges = {each.partition: ReadRange(each, self) for each in ranges}
        self._connections = NodeConnections(self._settings, self._pushed, self._lost, self._dialed)
        self._news = asyncio.Event()
        self._keeping = asyncio.Lock()  # Who reads the parts waits for those on their way.
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ahead: asyncio.Task[list[Taken]] | None = None
        self._is_receipted = ring is None
        for each in self._ranges.values():
            each.start()

    async def close(self) -> None:
        for each in self._ranges.values():
            each.stop()
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *([self._ahead] if self._ahead else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connections.close()

    async def gather(self, rows_max: int, bytes_max: int) -> list[Taken]:
        """About one batch's worth; empty: all ranges are read.  While Spark works on it, the next
        one is made ready: nobody waits for the ring."""
        ahead, self._ahead = self._ahead, None
        taken = await (self._gather(rows_max, bytes_max) if ahead is None else ahead)
        if taken:
            self._ahead = self._loop.create_task(self._gather(rows_max, bytes_max))
        return taken

    async def _gather(self, rows_max: int, bytes_max: int) -> list[Taken]:
        while not self._is_enough(rows_max, bytes_max):
            self._news.clear()
            await self._news.wait()
        async with self._keeping:
            if self._failure is not None:
                raise self._failure
            ready = [each for each in self._ranges.values() if each.is_ready]
            parts, receipts = self._new_parts(ready), self._new_receipts()
            taken = [one for each in ready for one in each.hand_out()]
            await self._keep(parts, receipts)
        return taken

    def _is_enough(self, rows_max: int, bytes_max: int) -> bool:
        if self._failure is not None or all(each.is_done for each in self._ranges.values()):
            return True
        ready = [each for each in self._ranges.values() if each.is_ready]
        rows = sum(each.rows_waiting for each in ready)
        return rows >= rows_max or sum(each.bytes_waiting for each in ready) >= bytes_max

    def _new_parts(self, ranges: Sequence[ReadRange]) -> list[tuple[PartitionId, PartDocument]]:
        return [(each.number, part) for each in ranges for part in each.new_parts()]

    def _new_receipts(self) -> list[Receipt]:
        """They go with what is kept last."""
        ranges = self._ranges.values()
        if self._is_receipted or not all(each.is_done for each in ranges):
            return []
        self._is_receipted = True
        return [each.receipt() for each in ranges]

    async def _keep(
        self, parts: Sequence[tuple[PartitionId, PartDocument]], receipts: Sequence[Receipt]
    ) -> None:
        """Keeps I1."""
        if self.ring is not None and (parts or receipts):
            await self.ring.append(parts, receipts)

    # -- For the ranges -------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def news(self) -> None:
        self._news.set()

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    def give_up(self, detail: str) -> None:
        self.fail(
            Unavailable(f"bucket {self._bucket!r} cannot be read now: {detail}; try again later")
        )

    def connection_of(self, partition: PartitionId) -> StreamConnection | None:
        """Of `Ways`."""
        address = self._map.masters[partition]
        if address:
            return self._connections.get(address)
        each = self._ranges[partition]
        self._loop.call_soon(each.questions.not_connected, "the partition has no master")
        return None

    def recall(self, each: ReadRange, number: int) -> None:
        """What was taken is kept, the parts are read, the range is told."""
        assert self.ring is not None
        ring = self.ring

        async def work() -> None:
            async with self._keeping:
                await self._keep(self._new_parts([each]), [])
            each.recalled(number, await ring.parts(each.number, self._settled))

        self.spawn(work)

    def reload_map(self) -> None:
        self.spawn(self._read_map)

    def spawn(self, work: Callable[[], Any]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except MillraceError as error:
                self.fail(error)

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_map(self) -> None:
        try:
            await self._map.reload()
        except MetadataUnavailable:
            return  # The old one must do; who needs another asks again.
        self._try_unsent()

    # -- What happens ---------------------------------------------------------------------------

    def _pushed(self, connection: StreamConnection, pushed: Pushed) -> None:
        message = pushed.message
        if isinstance(message, AllPartitions | BarrierReached | Noop):
            connection.processed(pushed.size_bytes)
            return
        each = self._ranges.get(message.partition)
        if each is None:
            connection.close(f"{connection.address} sends partition {message.partition} unasked")
            return
        each.pushed(connection, pushed)

    def _lost(self, connection: StreamConnection, detail: str) -> None:
        for each in self._ranges.values():
            each.questions.lost(connection, detail)

    def _dialed(self, address: str, problem: str | None) -> None:
        if problem is not None:
            for number, each in self._ranges.items():
                if self._map.masters[number] == address:
                    each.questions.not_connected(problem)
        self._try_unsent()

    def _try_unsent(self) -> None:
        for each in self._ranges.values():
            each.questions.connected()
