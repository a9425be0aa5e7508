"""The flusher: turns what partitions have queued into transactions of the store (R-I).

One write is under way at a time, for all partitions that changed since the last one; while it runs
the next one gathers, so the number of fsyncs falls as load rises.  After one has failed each
partition has a write of its own, until all succeed.  A partition whose own write fails, because
what the disk has of it is damaged, has one of its own from then on, now and then.

  I1  What a flush has is discarded from the queue only when it is durable.
  I2  A flush that failed loses nothing: all of it goes with a later one, after a rest.
  I3  Whoever waits with `durable` is told, in the order of asking, after the row of that moment and
      the documents it speaks of are on disk.  If there is no room for them, the row with those that
      are there must do (`making_do.py`), unless an undo or a shutdown in order rests on it.
  I4  What cannot be written of one partition keeps nothing of another one from the disk, and of a
      damaged one nobody notices anything: the others are written together, without a rest.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from millrace.core.documents.document import PartitionId
from millrace.core.documents.partition import Flush, Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.messages import Refusal
from millrace.core.messages.cluster import DamagedPartition
from millrace.errors import Corruption
from millrace.server.partitions.making_do import deletions, has_undo, without_documents
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import DocumentStore, PartitionBatch

RETRY_MS: Final = 200
RETRY_DAMAGED_MS: Final = 5_000  # There is little hope, and all that is queued is tried.
DAMAGED_TOLD_MAX: Final = 16
WRITES_AT_ONCE: Final = 64  # Of those that partitions have of their own.
DROPPED: Final = StoreFailed(Refusal.UNAVAILABLE, "the partition was dropped meanwhile")

Later = Callable[[int, Callable[[], None]], object]
Done = Callable[[], None]
Key = tuple[int, PartitionId]  # Bucket and partition.
Written = Callable[[StoreFailed | None], None]
Wanted = tuple[Key, PartitionBatch, Written]  # A write.
Failures = dict[Key, StoreFailed]

logger = logging.getLogger("millrace")


class Taken(NamedTuple):
    """A flush that is under way, and who waits for it."""

    partition: Partition
    flush: Flush
    waiting: list[Done]


Flushes = dict[Key, Taken]


class PartitionsDamaged(StoreFailed, frozen=True):
    """Writes of these fail, and of no others; the first of them, if there are many.  `cause` is
    why the first does."""

    partitions: tuple[DamagedPartition, ...] = ()
    cause: str = ""


class Flusher:
    def __init__(self, store: DocumentStore, later: Later) -> None:
        """`later` calls something after so many milliseconds, 0 for after the present event."""
        self._store = store
        self._later = later
        self._changed: dict[Key, Partition] = {}
        self._waiting: dict[Key, list[Done]] = {}
        self._forgotten: set[Key] = set()  # While the present round of writes runs.
        self.damaged: Failures = {}  # Why the last write of each failed, and only of it.
        self._aside: dict[Key, Partition] = {}  # Damaged ones that are to be tried later.
        self._is_due = False
        self._is_writing = False
        self._is_resting = False
        self._is_retry_due = False
        self._shortage: StoreFailed | None = None  # What kept partitions from the disk last.
        self.failure: StoreFailed | None = None  # That, or the damage; None: all was written.
        self.flushes = 0

    @property
    def is_full(self) -> bool:
        """Documents wait for room.  Deletions make some; other changes would wait as well."""
        return self.failure is not None and self.failure.reason is Refusal.DISK_FULL

    @property
    def has_store_failed(self) -> bool:
        """For good: nothing of any partition is written any more."""
        return self._store.failure is not None

    def touch(self, bucket: int, partition: Partition) -> None:
        """The partition has something to flush."""
        key = bucket, partition.number
        if key in self.damaged:
            self._aside[key] = partition
            return
        self._changed[key] = partition
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
        key = bucket, number
        self._changed.pop(key, None)
        self._aside.pop(key, None)
        self.damaged.pop(key, None)
        self._sum_up()
        for done in self._waiting.pop(key, ()):
            self._later(0, done)
        self._forgotten.add(key)

    def _begin(self) -> None:
        self._is_due = False
        if self._is_writing or self._is_resting:
            return
        changed, self._changed = self._changed, {}
        flushes: Flushes = {}
        ready: list[Done] = []
        for key, partition in changed.items():
            flush = partition.take_flush()
            waiting = self._waiting.pop(key, [])
            if flush is None:
                self._note_mended(key)
                ready += waiting
            else:
                flushes[key] = Taken(partition, flush, waiting)
        if flushes:
            self._is_writing = True
            self._forgotten.clear()
            self._write(flushes)
        for done in ready:
            done()

    def _write(self, flushes: Flushes) -> None:
        """Keeps I4."""
        is_short = self._shortage is not None
        apart = {key: taken for key, taken in flushes.items() if is_short or key in self.damaged}
        together = {key: taken for key, taken in flushes.items() if key not in apart}
        if together:
            batches = [_batch(bucket, taken.flush) for (bucket, _), taken in together.items()]
            self._store.write(batches, partial(self._written, together, apart))
        else:
            self._write_apart(apart)

    def _written(self, together: Flushes, apart: Flushes, failure: StoreFailed | None) -> None:
        if failure is None:
            self._succeeded(together)
        else:
            apart = together | apart
        self._write_apart(apart)

    def _succeeded(self, flushes: Flushes) -> None:
        self.flushes += 1
        for key, (partition, flush, _) in flushes.items():
            partition.flushed(flush)
            self._note_mended(key)
        for _, _, waiting in flushes.values():
            _tell(waiting)

    def _end(self, failed: Flushes, failures: Failures) -> None:
        """A round of writes is over."""
        self._is_writing = False
        short: Failures = {}
        for key, failure in failures.items():
            if self.has_store_failed or failure.reason is Refusal.DISK_FULL:
                short[key] = failure
                self._note_mended(key)
            elif key not in self._forgotten:
                self._note_damage(key, failure)
        self._put_back(failed)
        # Against a full disk something can be done, so it is what is told of several.
        full = (each for each in short.values() if each.reason is Refusal.DISK_FULL)
        self._shortage = next(full, None) or next(iter(short.values()), None)
        self._sum_up()
        if self._shortage is not None:
            fields = {"partitions": len(short), "detail": self._shortage.detail}
            logger.error("documents.flush_failed", extra={"fields": fields})
            self._is_resting = True
            self._later(RETRY_MS, self._rested)
        elif self._changed:
            self._begin()

    def _note_damage(self, key: Key, failure: StoreFailed) -> None:
        if key not in self.damaged:
            fields = {"bucket": key[0], "partition": key[1], "detail": failure.detail}
            logger.error("partition.not_written", extra={"fields": fields})
        self.damaged[key] = failure
        if not self._is_retry_due:
            self._is_retry_due = True
            self._later(RETRY_DAMAGED_MS, self._retry_damaged)

    def _note_mended(self, key: Key) -> None:
        """Or what keeps it from the disk now is another thing."""
        if self.damaged.pop(key, None) is not None:
            if key in self._aside:
                self._changed[key] = self._aside.pop(key)
            self._sum_up()

    def _retry_damaged(self) -> None:
        self._is_retry_due = False
        aside, self._aside = self._aside, {}
        self._changed |= aside
        self._begin()

    def _sum_up(self) -> None:
        self.failure = self._shortage
        if self.damaged and self._shortage is None:
            (bucket, number), first = next(iter(self.damaged.items()))
            more = len(self.damaged) - 1
            detail = f"partition {number} of bucket {bucket} cannot be written: {first.detail}"
            detail += f" (and {more} more)" if more else ""
            told = tuple(DamagedPartition(*key) for key in self.damaged)[:DAMAGED_TOLD_MAX]
            self.failure = PartitionsDamaged(first.reason, detail, told, first.detail)

    def _put_back(self, failed: Flushes) -> None:
        """Keeps I2."""
        for key, (partition, flush, waiting) in failed.items():
            if key in self._forgotten:
                for done in waiting:
                    self._later(0, done)
                continue
            partition.flush_failed(flush)
            (self._aside if key in self.damaged else self._changed)[key] = partition
            if waiting:
                self._waiting[key] = waiting + self._waiting.get(key, [])

    def _rested(self) -> None:
        self._is_resting = False
        self._begin()

    # -- When not everything can be written -----------------------------------------------------

    def _write_apart(self, flushes: Flushes) -> None:
        """Keeps I4."""
        failed: Flushes = {}
        failures: Failures = {}

        def written(key: Key, failure: StoreFailed | None) -> None:
            if failure is None:
                self._succeeded({key: flushes[key]})
            else:
                failed[key] = flushes[key]
                failures[key] = failure

        def ended() -> None:
            for key in self._forgotten:
                failures.pop(key, None)
            full = [key for key, each in failures.items() if each.reason is Refusal.DISK_FULL]
            self._make_do({key: failed[key] for key in full}, lambda: self._end(failed, failures))

        writes: list[Wanted] = [
            (key, _batch(key[0], taken.flush), partial(written, key))
            for key, taken in flushes.items()
        ]
        self._write_all(writes, ended)

    def _make_do(self, full: Flushes, then: Done) -> None:
        """What fits of those whose documents do not."""
        rows = {bucket: self._rows_on_disk(bucket) for bucket in {bucket for bucket, _ in full}}
        writes: list[Wanted] = []
        for key, (partition, flush, waiting) in full.items():
            (bucket, number), on_disk = key, rows[key[0]]
            if on_disk is None:
                continue
            disk = on_disk.get(number, PartitionRow())
            made_do = partial(self._made_do, flush, disk, waiting)
            lean = without_documents(bucket, flush, disk)
            if lean is None:
                made_do(None)
            else:
                writes.append((key, lean, made_do))
            tombstones = deletions(bucket, partition, flush, disk if lean is None else lean.row)
            if tombstones is not None:
                writes.append((key, tombstones, lambda failure: None))  # Else it is tried again.
        self._write_all(writes, then)

    def _rows_on_disk(self, bucket: int) -> dict[PartitionId, PartitionRow] | None:
        try:
            return self._store.rows(bucket)
        except Corruption:  # Who reads documents tells it.
            return None

    def _made_do(
        self, flush: Flush, disk: PartitionRow, waiting: list[Done], failure: StoreFailed | None
    ) -> None:
        """Keeps I3."""
        must_be_whole = has_undo(flush, disk) or flush.row.is_clean
        if failure is None and not must_be_whole:
            told = waiting.copy()
            waiting.clear()
            _tell(told)

    def _write_all(self, writes: list[Wanted], then: Done) -> None:
        """`then` is called after all of them are answered.  Few at a time: whoever fails is
        compared with all that are queued behind."""
        now, rest = writes[:WRITES_AT_ONCE], writes[WRITES_AT_ONCE:]
        left = len(now)
        if not left:
            then()

        def answered(written: Written, failure: StoreFailed | None) -> None:
            nonlocal left
            left -= 1
            written(failure)
            if not left:
                self._write_all(rest, then)

        for key, batch, written in now:
            if key in self._forgotten:  # Written behind its drop, it would be there again.
                answered(written, DROPPED)
            else:
                self._store.write([batch], partial(answered, written))


def _tell(waiting: list[Done]) -> None:
    for done in waiting:
        done()


def _batch(bucket: int, flush: Flush) -> PartitionBatch:
    return PartitionBatch(
        bucket,
        flush.number,
        flush.row,
        flush.snapshot,  # Gone through in the writer's thread: it never changes.
        flush.removed,
        is_wipe=flush.is_wipe,
    )
