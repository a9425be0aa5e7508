"""Group commit: one thread that turns queued writes into LMDB transactions.

The owner queues; the thread takes what there is, up to a bound, applies it to one transaction,
commits it with fsync, and hands the outcomes back to the owner's loop, one call per commit.  While
a commit runs the next writes gather.  A transaction that fails for one of its writes is done again
write by write, so that the others do not pay for it.

Invariants, besides the contract's I1 to I3 and I7:

  I1  A full disk, a damaged row, or a key that LMDB cannot file fails a write; after any other
      error nothing is written any more, and everybody is told so.
  I2  What is dropped is deleted in portions, one with each commit, or by themselves when nobody
      waits; a disk too full for a portion is tried with a smaller one.  If it lies on a damaged
      page it stays until the next start: its room is lost, and nothing else.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

import lmdb
import msgspec

from millrace.core.documents.document import Document, PartitionId
from millrace.core.messages import Refusal
from millrace.limits import COMMIT_BYTES_MAX
from millrace.store.committer import CallSoon
from millrace.store.contract import Done, StoreFailed
from millrace.store.documents.contract import CorruptDocument, PartitionBatch
from millrace.store.documents.layout import DAMAGES, Tables
from millrace.store.documents.writing import Writing, find_next_slot
from millrace.store.room import Room

RECLAIM_ENTRIES_MAX: Final = 4_096  # Deleted per transaction: nobody waits long for it.
RIPENED_KEY: Final = b"ripened"  # Beside the identity; what it says does not matter.
MAKE_ROOM: Final = "delete documents, or give the node more disk"

Home = tuple[int, PartitionId]  # A bucket's partition.
Prepared = tuple[PartitionBatch, list[Document]]


class Write(msgspec.Struct, eq=False):
    batches: tuple[PartitionBatch, ...]
    done: Done
    failure: StoreFailed | None = None  # Told before its turn came (contract, I3).
    prepared: list[Prepared] = []
    need_bytes: int = 0
    is_deletions: bool = False  # It has documents, and all are tombstones.

    @property
    def homes(self) -> list[Home]:
        return [(batch.bucket, batch.partition) for batch in self.batches]


class Drop(msgspec.Struct, eq=False):
    bucket: int
    partition: PartitionId
    done: Done
    failure: StoreFailed | None = None
    need_bytes: int = 0

    @property
    def homes(self) -> list[Home]:
        return []  # Nothing that is queued behind it rests on it.


Task = Write | Drop


class Writer:
    def __init__(
        self,
        environment: lmdb.Environment,
        tables: Tables,
        room: Room,
        call_soon: CallSoon,
    ) -> None:
        self._environment = environment
        self._tables = tables
        self._room = room
        self._call_soon = call_soon
        self._wake = threading.Condition(threading.Lock())
        self._queue: deque[Task] = deque()
        self._untold: dict[Home, deque[StoreFailed]] = {}  # Failures the owner has not heard of.
        self._outcomes: deque[Task] = deque()
        self._is_stopping = False
        self._reclaim_entries = RECLAIM_ENTRIES_MAX
        self._is_doomed_damaged = False
        with environment.begin() as transaction:
            writing = Writing(transaction, tables, find_next_slot(transaction, tables))
            self._next_slot = writing.next_slot
            self._has_doomed = writing.has_doomed
        self.failure: StoreFailed | None = None  # For good (I1).
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="documents-commit", daemon=True)
        self._thread.start()

    # -- The owner's side -----------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        with self._wake:
            task.failure = self._failure_before(task)
            self._queue.append(task)
            self._wake.notify()

    def deliver(self) -> None:
        """Tell what became of writes; on the owner's loop."""
        while self._outcomes:
            task = self._outcomes.popleft()
            if task.failure is not None:
                with self._wake:
                    self._forget_failure(task)
            task.done(task.failure)

    def _forget_failure(self, task: Task) -> None:
        for home in task.homes:
            failures = self._untold[home]
            failures.popleft()
            if not failures:
                del self._untold[home]

    def stop(self, *, discards: bool = False) -> None:
        """End the thread once all that is queued is committed, or at once if it discards."""
        with self._wake:
            if discards:
                self._queue.clear()
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    # -- The thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Wait for work and do it; false when there will be none.  A function of its own, so that
        whoever waits keeps no document of the last group alive."""
        with self._wake:
            while not (self._queue or self._is_stopping or self._wants_to_reclaim):
                self._wake.wait()
            if self._is_stopping and not self._queue:
                return False
            is_idle = not self._queue
        if is_idle:
            self._reclaim_idle()
        else:
            self._process(self._take_group())
            self._announce()
        return True

    @property
    def _wants_to_reclaim(self) -> bool:
        is_possible = self._reclaim_entries > 0 and not self._is_doomed_damaged
        return self._has_doomed and is_possible and self.failure is None

    def _take_group(self) -> list[Task]:
        """As much of the queue's front as one transaction should hold, and there is room for.
        A write that fails anyway stands alone."""
        group: list[Task] = []
        need_bytes = 0
        while need_bytes < COMMIT_BYTES_MAX and (task := self._front()) is not None:
            has_room = task.failure is None and self._has_room(task, need_bytes)
            if group and not has_room:
                break  # What is before it may make room.
            group.append(task)
            with self._wake:
                if self._queue:  # Else it was discarded meanwhile.
                    self._queue.popleft()
            if not has_room:
                task.failure = task.failure or self.failure or self._full(MAKE_ROOM)
                break
            need_bytes += task.need_bytes
        return group

    def _front(self) -> Task | None:
        with self._wake:
            return self._queue[0] if self._queue else None

    def _has_room(self, task: Task, need_bytes: int) -> bool:
        try:
            return self._prepare(task, need_bytes)
        except Exception as error:  # As in `_process`.
            self._fail(error)
            return False

    def _prepare(self, task: Task, need_bytes: int) -> bool:
        """Walk through the documents, and see whether there is room for them beside the others."""
        if isinstance(task, Drop) or task.failure is not None:
            return True
        if not task.prepared:
            task.prepared = [(batch, list(batch.documents)) for batch in task.batches]
            sizes = [
                len(document.key) + len(document.value or b"")
                for _, documents in task.prepared
                for document in documents
            ]
            task.need_bytes = self._room.need(sizes)
            task.is_deletions = all(
                document.kind for _, documents in task.prepared for document in documents
            )
        if not task.need_bytes:
            return True
        return self._room.prepare(need_bytes + task.need_bytes, task.is_deletions)

    def _process(self, group: list[Task]) -> None:
        is_committed = False
        try:
            if self.failure is None and group and group[0].failure is None:
                is_committed = self._commit_together(group)
        except Exception as error:  # Whatever it is: a thread that ended would answer nobody.
            self._fail(error)
        for task in group:
            if not is_committed:
                self._commit_alone(task)
            self._settle(task)

    def _commit_together(self, tasks: list[Task]) -> bool:
        try:
            self._commit(tasks, 0 if self._is_doomed_damaged else self._reclaim_entries)
            return True
        except DAMAGES:  # If it is a write that lies there, it shows again.
            self._is_doomed_damaged = True
            return False
        except (CorruptDocument, lmdb.BadValsizeError):
            return False
        except lmdb.Error as error:
            if not self._room.is_full_error(error):
                raise
            self._ripen()
            return False

    def _ripen(self) -> None:
        """LMDB gives out pages that were freed not in the last commit, but before.  A write that
        failed is no commit: without another one it would fail again for ever."""
        try:
            with self._environment.begin(write=True) as transaction:
                transaction.put(RIPENED_KEY, b"%d" % self.commits, db=self._tables.identity)
            self.commits += 1
        except lmdb.Error as error:
            if not self._room.is_full_error(error):
                raise

    def _commit_alone(self, task: Task) -> None:
        """Keeps I1, and I3 of the contract: one before it in the group may have failed."""
        with self._wake:
            task.failure = task.failure or self._failure_before(task) or self.failure
        if task.failure is not None:
            return
        try:
            self._commit([task], 0)
        except (CorruptDocument, lmdb.BadValsizeError) as error:
            task.failure = StoreFailed(Refusal.UNAVAILABLE, str(error))
        except Exception as error:  # As in `_process`.
            if isinstance(error, lmdb.Error) and self._room.is_full_error(error):
                task.failure = self._full(f"{MAKE_ROOM} ({type(error).__name__})")
            else:
                self._fail(error)
                task.failure = self.failure

    def _commit(self, tasks: Iterable[Task], reclaim_entries: int) -> None:
        has_documents = False
        with self._environment.begin(write=True) as transaction:
            writing = Writing(transaction, self._tables, self._next_slot)
            for task in tasks:
                has_documents |= task.need_bytes > 0
                _apply(writing, task)
            if reclaim_entries:
                writing.reclaim(reclaim_entries)
            has_doomed = writing.has_doomed
            used_bytes = self._room.measure(transaction)
        self.commits += 1
        self._next_slot = writing.next_slot
        self._has_doomed = has_doomed
        self._reclaim_entries = self._reclaim_entries or 1
        # Documents that found room say as much as a deletion: it is full no longer.
        self._room.committed(used_bytes, writing.deleted + has_documents)

    def _settle(self, task: Task) -> None:
        """The outcome stands.  Keeps I3 of the contract."""
        if isinstance(task, Write):
            task.prepared = []
        if task.failure is not None:
            with self._wake:
                for home in task.homes:
                    self._untold.setdefault(home, deque()).append(task.failure)
                for behind in self._queue:
                    behind.failure = behind.failure or self._failure_before(behind)
        self._outcomes.append(task)

    def _failure_before(self, task: Task) -> StoreFailed | None:
        """Of a write that shares a partition with it, and that the owner has not heard of."""
        untold = (self._untold[home][-1] for home in task.homes if home in self._untold)
        return next(untold, None)

    def _reclaim_idle(self) -> None:
        try:
            self._commit((), self._reclaim_entries)
            self._reclaim_entries = min(RECLAIM_ENTRIES_MAX, 2 * self._reclaim_entries)
        except Exception as error:  # As in a commit that somebody waits for.
            if isinstance(error, lmdb.Error) and self._room.is_full_error(error):
                self._reclaim_entries //= 2
            elif isinstance(error, DAMAGES):
                self._is_doomed_damaged = True
            else:
                self._fail(error)

    def _full(self, detail: str) -> StoreFailed:
        self._room.is_refused = True
        return StoreFailed(Refusal.DISK_FULL, f"there is no room for documents: {detail}")

    def _fail(self, error: Exception) -> None:
        self.failure = StoreFailed(
            Refusal.UNAVAILABLE,
            f"the store of documents failed and takes no more writes: {type(error).__name__}: "
            f"{error}; check the disk, then restart the node",
        )

    def _announce(self) -> None:
        """Tell the owner's loop.  A closed loop hears nothing: the owner looks when it closes."""
        try:
            self._call_soon(self.deliver)
        except RuntimeError:
            return


def _apply(writing: Writing, task: Task) -> None:
    if isinstance(task, Drop):
        writing.drop(task.bucket, task.partition)
        return
    for batch, documents in task.prepared:
        writing.apply(batch, documents)
