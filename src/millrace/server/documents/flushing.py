"""`flush`: every document of a bucket is deleted, one change each.

Replicas and consumers follow the change stream, so nothing may vanish from it: a flush is as many
deletions as there are documents, done in turns so that others are served between them.

I1  What was stored after the flush began is left alone.
I2  A bucket has at most one flush that waits for its time: a later order takes its place.
"""

import asyncio
from typing import Final

from millrace.core.documents.document import PartitionId, PartitionState, Seq
from millrace.core.documents.operations import absolute_expiry_s
from millrace.server.documents.backend import BucketHost, DocumentBackend

TURN_DOCUMENTS: Final = 512  # A few milliseconds.


async def flush(host: BucketHost) -> bool:
    """Of the partitions that this node is the master of; whether all were deleted."""
    if not host.is_serving:
        return False
    standing = [(p.number, p.high) for p in host.copies() if p.state is PartitionState.ACTIVE]
    is_whole = True
    for number, high in standing:
        is_whole = await _flush_partition(host, number, high) and is_whole
    return is_whole


async def flush_everywhere(host: BucketHost) -> bool:
    is_whole_here = await flush(host)
    return await host.flush_elsewhere() and is_whole_here


async def _flush_partition(host: BucketHost, number: PartitionId, high: Seq) -> bool:
    partition = host.active(number)
    keys = list(partition.table) if partition is not None else []
    for first in range(0, len(keys), TURN_DOCUMENTS):
        partition = host.active(number)
        if partition is None or not host.is_serving:
            return False
        now_us = host.now_us()
        for key in keys[first : first + TURN_DOCUMENTS]:
            document = partition.table.get(key)
            if document is not None and document.seq <= high:  # Keeps I1.
                partition.delete(key, now_us)
        await asyncio.sleep(0)
    return partition is not None


def flush_delay_s(given_s: int, now_us: int) -> float:
    """How long to wait; `given_s` is said as an expiry is."""
    return max(0.0, absolute_expiry_s(given_s, now_us) - now_us / 1_000_000)


class DelayedFlushes:
    """Those that were ordered for later.  A node that stops forgets them, as memcached does."""

    def __init__(self, backend: DocumentBackend) -> None:
        self._backend = backend
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[bool]] = set()

    def order(self, bucket: str, is_everywhere: bool, delay_s: float) -> None:
        self.forget(bucket)  # Keeps I2.
        loop = asyncio.get_running_loop()
        self._timers[bucket] = loop.call_later(delay_s, self._begin, bucket, is_everywhere)

    def forget(self, bucket: str) -> None:
        timer = self._timers.pop(bucket, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, bucket: str, is_everywhere: bool) -> None:
        self._timers.pop(bucket, None)
        host = self._backend.bucket(bucket)
        if host is not None:
            task = asyncio.create_task(flush_everywhere(host) if is_everywhere else flush(host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
