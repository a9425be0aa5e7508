"""The flusher: turns what partitions have queued into transactions of the store (R-I).

One write is under way at a time, for all partitions that changed since the last one; while it runs
the next one gathers, so the number of fsyncs falls as load rises.

  I1  What a flush has is discarded from the queue only when it is durable.
  I2  A flush that failed loses nothing: all of it goes with a later one, after a rest.
  I3  Whoever waits with `durable` is told after the row and the documents of that moment are on
      disk, in the order of asking.
"""

import logging
from collections.abc import Callable
from typing import Final

from millrace.core.documents.document import PartitionId
from millrace.core.documents.partition import Flush, Partition
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import DocumentStore, PartitionBatch

RETRY_MS: Final = 200

Later = Callable[[int, Callable[[], None]], object]
Done = Callable[[], None]
Key = tuple[int, PartitionId]  # Bucket and partition.

logger = logging.getLogger("millrace")


class Flusher:
    def __init__(self, store: DocumentStore, later: Later) -> None:
        """`later` calls something after so many milliseconds, 0 for after the present event."""
        self._store = store
        self._later = later
        self._changed: dict[Key, Partition] = {}
        self._waiting: dict[Key, list[Done]] = {}
        self._forgotten: set[Key] = set()  # While the present write runs.
        self._is_due = False
        self._is_writing = False
        self._is_resting = False
        self.failure: StoreFailed | None = None  # Of the last write; None: it succeeded.
        self.flushes = 0

    def touch(self, bucket: int, partition: Partition) -> None:
        """The partition has something to flush."""
        self._changed[bucket, partition.number] = partition
        if not self._is_due and not self._is_writing and not self._is_resting:
            self._is_due = True
            self._later(0, self._begin)

    def durable(self, bucket: int, partition: Partition, done: Done) -> None:
        """Call `done` when all that the partition is now is on disk.  Keeps I3."""
        self._waiting.setdefault((bucket, partition.number), []).append(done)
        self.touch(bucket, partition)

    def forget(self, bucket: int, number: PartitionId) -> None:
        """The partition is dropped: whoever waits for it is told, since there is nothing left to
        wait for, and if the write that runs fails it is not tried again: there may be another one
        of this number by then."""
        self._changed.pop((bucket, number), None)
        for done in self._waiting.pop((bucket, number), ()):
            self._later(0, done)
        self._forgotten.add((bucket, number))

    def _begin(self) -> None:
        self._is_due = False
        if self._is_writing or self._is_resting:
            return
        changed, self._changed = self._changed, {}
        flushes: dict[Key, tuple[Partition, Flush, list[Done]]] = {}
        ready: list[Done] = []
        for key, partition in changed.items():
            flush = partition.take_flush()
            waiting = self._waiting.pop(key, [])
            if flush is None:
                ready += waiting
            else:
                flushes[key] = partition, flush, waiting
        if flushes:
            self._is_writing = True
            self._forgotten.clear()
            batches = [_batch(bucket, flush) for (bucket, _), (_, flush, _) in flushes.items()]
            self._store.write(batches, lambda failure: self._written(flushes, failure))
        for done in ready:
            done()

    def _written(
        self,
        flushes: dict[Key, tuple[Partition, Flush, list[Done]]],
        failure: StoreFailed | None,
    ) -> None:
        self._is_writing = False
        self.failure = failure
        if failure is None:
            self.flushes += 1
            for partition, flush, _ in flushes.values():
                partition.flushed(flush)
            for _, _, waiting in flushes.values():
                for done in waiting:
                    done()
        else:
            self._put_back(flushes, failure)
        if self._changed and not self._is_resting:
            self._begin()

    def _put_back(
        self, flushes: dict[Key, tuple[Partition, Flush, list[Done]]], failure: StoreFailed
    ) -> None:
        """Keeps I2."""
        logger.error("documents.flush_failed", extra={"fields": {"detail": failure.detail}})
        for key, (partition, flush, waiting) in flushes.items():
            if key in self._forgotten:
                continue
            partition.flush_failed(flush)
            self._changed[key] = partition
            if waiting:
                self._waiting[key] = waiting + self._waiting.get(key, [])
        self._is_resting = True
        self._later(RETRY_MS, self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self._begin()


def _batch(bucket: int, flush: Flush) -> PartitionBatch:
    return PartitionBatch(
        bucket,
        flush.number,
        flush.row,
        flush.snapshot,  # Gone through in the writer's thread: it never changes.
        flush.removed,
        is_wipe=flush.is_wipe,
    )
