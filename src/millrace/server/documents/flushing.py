"""`flush`: every document of a bucket is deleted, one change each.

Replicas and consumers follow the change stream, so nothing may vanish from it: a flush is as many
deletions as there are documents, done in turns so that others are served between them.

I1  What was stored in a partition after its flush began is left alone, in each attempt: a flush
    has one mark for a partition, made when its master was first found.
I2  A bucket has at most one flush that waits for its time: a later order takes its place.
I3  A flush is whole only if each partition was emptied by its master, from its first document to
    its last.  What was not is tried again for a while, and what was is not.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.operations import absolute_expiry_s
from millrace.core.documents.partition import Partition
from millrace.core.documents.rollback import Place, Refuse, find_start
from millrace.core.messages.documents import HostedPartition, PartitionMark
from millrace.server.documents.backend import BucketHost, DocumentBackend

TURN_DOCUMENTS: Final = 512  # A few milliseconds.
PATIENCE_S: Final = 3.0  # For masters that are just changing; the client waits as long.
DELAYED_PATIENCE_S: Final = 600.0  # The client was told that it would be done.
PAUSE_S: Final = 0.1  # Before the second attempt; twice as long before each one more ...
PAUSE_S_MAX: Final = 5.0  # ... up to this.

_log: Final = logging.getLogger(__name__)


Marks = dict[PartitionId, PartitionMark]


async def flush(host: BucketHost) -> bool:
    """Of the partitions that this node is the master of; whether all were emptied."""
    return await _flush(host, is_everywhere=False, patience_s=0.0)


async def flush_everywhere(host: BucketHost) -> bool:
    return await _flush(host, is_everywhere=True, patience_s=PATIENCE_S)


async def _flush(host: BucketHost, is_everywhere: bool, patience_s: float) -> bool:
    """Keeps I3."""
    loop = asyncio.get_running_loop()
    until_s, pause_s = loop.time() + patience_s, PAUSE_S
    emptied: set[PartitionId] = set()
    marks: Marks = {}
    while True:
        here = _active_here(host) if host.is_serving else {}
        emptied |= await empty(host, [mark(marks, here[each]) for each in here.keys() - emptied])
        if is_everywhere:
            emptied |= await host.flush_elsewhere(set(host.numbers) - emptied, marks)
        if emptied.issuperset(host.numbers if is_everywhere else _led_here(host)):
            return True
        if loop.time() + pause_s > until_s:
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
        await host.reload_map()


def mark(marks: Marks, found: Partition | HostedPartition) -> PartitionMark:
    """That of the first attempt, which may be this one.  Keeps I1."""
    seen = PartitionMark(found.number, found.log, found.high)
    return marks.setdefault(found.number, seen)


def _active_here(host: BucketHost) -> dict[PartitionId, Partition]:
    return {each.number: each for each in host.copies() if each.state is PartitionState.ACTIVE}


def _led_here(host: BucketHost) -> set[PartitionId]:
    """As the map says, or the node itself: whoever asks may mean either."""
    return host.named_here() | _active_here(host).keys()


async def empty(host: BucketHost, marks: Iterable[PartitionMark]) -> set[PartitionId]:
    """Those of the partitions that this node has emptied as their master."""
    return {each.number for each in marks if await _flush_partition(host, each)}


async def _flush_partition(host: BucketHost, begun: PartitionMark) -> bool:
    partition = _led(host, begun.number)
    if partition is None:
        return False
    log = partition.log
    old = find_start(partition.log, Place(begun.log, begun.high, begun.high, begun.high))
    if isinstance(old, Refuse):
        return False  # The mark is of a later master's: this one is not told yet.
    keys = list(partition.table)
    for first in range(0, len(keys), TURN_DOCUMENTS):
        partition = _led(host, begun.number)
        if partition is None or partition.log != log:
            return False
        now_us = host.now_us()
        for key in keys[first : first + TURN_DOCUMENTS]:
            document = partition.table.get(key)
            if document is not None and document.seq <= old.seq:  # Keeps I1.
                partition.delete(key, now_us)
        await asyncio.sleep(0)
    return True


def _led(host: BucketHost, number: PartitionId) -> Partition | None:
    return host.active(number) if host.is_serving else None


def flush_delay_s(given_s: int, now_us: int) -> float:
    """How long to wait; `given_s` is said as an expiry is."""
    return max(0.0, absolute_expiry_s(given_s, now_us) - now_us / 1_000_000)


class DelayedFlushes:
    """Those that were ordered for later.  A node that stops forgets them, as memcached does."""

    def __init__(self, backend: DocumentBackend) -> None:
        self._backend = backend
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: dict[tuple[str, bool], asyncio.Task[None]] = {}

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
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, bucket: str, is_everywhere: bool) -> None:
        """One that is still being tried is part of this one."""
        self._timers.pop(bucket, None)
        before = self._tasks.pop((bucket, is_everywhere), None)
        if before is not None:
            before.cancel()
        host = self._backend.bucket(bucket)
        if host is not None:
            work = _flush_at_last(host, is_everywhere)
            self._tasks[bucket, is_everywhere] = asyncio.create_task(work)


async def _flush_at_last(host: BucketHost, is_everywhere: bool) -> None:
    is_whole = False
    try:
        is_whole = await _flush(host, is_everywhere, DELAYED_PATIENCE_S)
    except Exception:
        _log.exception("document_flush_failed", extra={"fields": {"bucket": host.name}})
    if not is_whole:
        _log.error("document_flush_not_whole", extra={"fields": {"bucket": host.name}})
