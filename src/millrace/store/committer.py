"""Group commit: one thread that turns queued mutations into LMDB transactions.

The owner queues; the thread takes all there is, applies it to one transaction, commits it with
fsync, and hands the outcome back to the owner's event loop, one call per commit.  While a commit
runs the next batch gathers, so the number of fsyncs falls as load rises.  Work that nobody waits
for (memory-acknowledged blocks) is held back a little so that it does not compete.

Invariants:

  I1  Mutations are committed in the order they were queued.
  I2  An outcome is told in commit order; a barrier's after the mutations it speaks for.
  I3  A barrier speaks for what was queued since the barrier before it; failure of a block is told
      to exactly one barrier.
  I4  After an error other than a full disk nothing is written any more.
  I5  Marks and contexts make no commit by themselves: they go with the next one that takes all
      that was queued before them.
  I6  While the thread sleeps without a time limit the queue is empty: whoever queues the first
      item wakes it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import lmdb
import msgspec

from millrace.core.messages import Refusal
from millrace.limits import (
    COMMIT_BACKLOG_SHARE,
    COMMIT_BYTES_CALM,
    COMMIT_BYTES_MAX,
    COMMIT_WAIT_BYTES,
    COMMIT_WAIT_MS,
    RECLAIM_BLOCKS_MAX,
)
from millrace.store.changes import Backlog, Change, PutBlock, SetContext, SetMarks, Writing
from millrace.store.contract import Done, StoreFailed
from millrace.store.layout import LogRow, Tables
from millrace.store.open_log import OpenLog
from millrace.store.room import Room
from millrace.types import EntryKind, LogId

CallSoon = Callable[[Callable[[], None]], None]


class Barrier(msgspec.Struct, frozen=True):
    """`done` is None when it was answered already and only marks the place (I3)."""

    done: Done | None


_ANSWERED: Final = Barrier(None)

Note = SetMarks | SetContext


class Outcome(msgspec.Struct):
    """What became of a batch; `failure` is that of its blocks."""

    changes: list[Change]
    answers: list[tuple[Done, StoreFailed | None]]
    failure: StoreFailed | None
    counts: dict[LogId, tuple[int, int, int]]  # Slot, blocks, bytes of each row that changed.


class Committer:
    def __init__(
        self,
        environment: lmdb.Environment,
        tables: Tables,
        room: Room,
        rows: dict[LogId, LogRow],
        backlog: Backlog,
        call_soon: CallSoon,
        deliver: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._tables = tables
        self._room = room
        self.rows = rows  # Of the last commit; the thread's alone while it runs.
        self._backlog = backlog
        self._reclaim_blocks = RECLAIM_BLOCKS_MAX
        self._call_soon = call_soon
        self._deliver = deliver
        self._last_key = self._find_last_key()
        self._lacking: frozenset[LogId] = frozenset()  # Of their blocks some found no room.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)  # Taking the lock itself is the quicker way.
        self._queue: list[Change | Barrier] = []
        self._queued_bytes = 0
        self._queued_at = 0.0
        self._notes: dict[tuple[type[Note], OpenLog], Note] = {}
        self._is_urgent = False
        self._is_committing = False
        self._is_stopping = False
        self._unreported: StoreFailed | None = None
        self.failure: StoreFailed | None = None  # For good (I4).
        self.outcomes: deque[Outcome] = deque()
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="store-commit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _find_last_key(self) -> bytes:
        with (
            self._environment.begin() as transaction,
            transaction.cursor(db=self._tables.index) as cursor,
        ):
            return cursor.key() if cursor.last() else b""

    # -- The owner's side -----------------------------------------------------------------------

    def submit(self, change: Change, size: int = 0) -> None:
        with self._lock:
            if not self._queue:
                self._queued_at = time.monotonic()
                self._wake.notify()
            self._queue.append(change)
            self._queued_bytes += size
            if self._queued_bytes >= COMMIT_WAIT_BYTES:
                self._wake.notify()

    def note(self, note: Note) -> None:
        with self._lock:
            self._notes[type(note), note.log] = note

    def forget_note(self, kind: type[Note], log: OpenLog) -> None:
        """What is queued next says otherwise."""
        with self._lock:
            self._notes.pop((kind, log), None)

    def barrier(self, done: Done) -> None:
        with self._lock:
            self._queue.append(Barrier(done))
            self._is_urgent = True
            self._wake.notify()

    def mark(self) -> None:
        """A barrier that is answered already: failures behind it are not told to later ones."""
        with self._lock:
            if self._queue or self._is_committing:
                if not self._queue:
                    self._queued_at = time.monotonic()
                    self._wake.notify()
                self._queue.append(_ANSWERED)
            else:
                self._unreported = None  # Keeps I3; the thread is not at a batch.

    def stop(self, *, discards: bool = False) -> None:
        """End the thread once all that is queued is committed, or at once if it discards."""
        with self._wake:
            if discards:
                self._queue.clear()
                self._queued_bytes = 0
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    def commit_now(self) -> None:
        """Commit on the caller's thread; only after `stop`."""
        assert not self._thread.is_alive()
        while self._queue:
            self._process(self._take())

    # -- The thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Wait for work and do it; false when there will be none.  A function of its own, so that
        whoever waits keeps no block of the last batch alive."""
        with self._wake:
            self._is_committing = False  # Keeps I6: who sleeps is not at work.
            while (wait := self._wait_s()) is None or wait > 0:
                self._wake.wait(wait)
            if self._is_stopping and not self._queue:
                return False
            batch = self._take()
            self._is_committing = bool(batch)
        if batch:
            self._process(batch)
            self._announce()
        elif self._backlog:
            self._reclaim_idle()
        return True

    def _wait_s(self) -> float | None:
        """Seconds until there is something to do; None: until woken."""
        if self._is_urgent or self._is_stopping or self._queued_bytes >= COMMIT_WAIT_BYTES:
            return 0
        if self._backlog and self._reclaim_blocks and not self.failure:
            return 0
        if self._queue:
            return self._queued_at + COMMIT_WAIT_MS / 1000 - time.monotonic()
        return None

    def _take(self) -> list[Change | Barrier]:
        """The queue, or as much of its front as one transaction should hold."""
        end, taken = len(self._queue), self._queued_bytes
        bytes_max = self._commit_bytes()
        if taken > bytes_max:
            end = taken = 0
            while taken < bytes_max:
                change = self._queue[end]
                taken += change.entry.block.size if isinstance(change, PutBlock) else 0
                end += 1
        batch, self._queue = self._queue[:end], self._queue[end:]
        self._queued_bytes -= taken
        self._is_urgent = self._is_urgent and bool(self._queue)
        if self._notes and not self._queue and not all(isinstance(one, Barrier) for one in batch):
            batch += self._notes.values()
            self._notes.clear()
        return batch

    def _commit_bytes(self) -> int:
        """About how much one transaction should hold.  Whoever waits for the disk pays for each
        fsync, so those commits are large.  Otherwise small ones cost the system half the time:
        the pages that LMDB writes were touched a moment before."""
        if self._is_urgent:
            return COMMIT_BYTES_MAX
        share = self._queued_bytes // COMMIT_BACKLOG_SHARE
        return max(COMMIT_BYTES_CALM, min(COMMIT_BYTES_MAX, share))

    def _process(self, batch: list[Change | Barrier]) -> None:
        changes: list[Change] = [one for one in batch if not isinstance(one, Barrier)]
        failure, counts = self.failure, dict[LogId, tuple[int, int, int]]()
        if changes and failure is None:
            failure, counts = self._commit_batch(changes)
        answers = self._answer(batch, failure)
        self.outcomes.append(Outcome(changes, answers, failure, counts))

    def _commit_batch(
        self, changes: list[Change]
    ) -> tuple[StoreFailed | None, dict[LogId, tuple[int, int, int]]]:
        blocks = [one.entry.block for one in changes if isinstance(one, PutBlock)]
        is_junk = all(block.kind is not EntryKind.DATA for block in blocks)
        try:
            failure = None
            need_bytes = self._room.need([block.size for block in blocks])
            if blocks and not self._room.prepare(need_bytes, is_junk):
                failure = self._full(
                    need_bytes, "the store is full: trim logs or give it more room"
                )
            else:
                try:
                    data_bytes = 0 if is_junk else need_bytes
                    return None, self._commit(changes, True, self._reclaim_blocks, data_bytes)
                except lmdb.Error as error:
                    if not self._room.is_full_error(error):
                        raise
                    failure = self._full(need_bytes, f"no room for blocks: {error}")
            return failure, self._commit(changes, False, 0)
        except Exception as error:  # Whatever it is: a thread that ended would answer nobody.
            return self._fail(error), {}

    def _fail(self, error: Exception) -> StoreFailed:
        self.failure = StoreFailed(
            Refusal.UNAVAILABLE,
            f"the store failed and takes no more writes: {type(error).__name__}: {error}; "
            "check the disk, then restart the node",
        )
        return self.failure

    def _full(self, need_bytes: int, detail: str) -> StoreFailed:
        self._room.refused(need_bytes)
        return StoreFailed(Refusal.DISK_FULL, detail)

    def _commit(
        self,
        changes: Sequence[Change],
        with_blocks: bool,
        reclaim_blocks: int,
        data_bytes: int = 0,
    ) -> dict[LogId, tuple[int, int, int]]:
        with self._environment.begin(write=True) as transaction:
            writing = Writing(
                transaction, self._tables, self.rows, self._backlog, self._last_key, self._lacking
            )
            writing.apply(changes, with_blocks=with_blocks)
            if reclaim_blocks and writing.backlog:
                writing.reclaim(reclaim_blocks)
            writing.finish()
            used_bytes = self._room.measure(transaction)
        self.commits += 1
        self._adopt(writing)
        self._room.committed(used_bytes, writing.blocks_deleted, data_bytes)
        return {
            row.log: (row.slot, row.blocks, row.bytes) for row in writing.touched.values() if row
        }

    def _adopt(self, writing: Writing) -> None:
        """The transaction is durable: what it worked on becomes what is."""
        self._last_key = writing.last_key
        self._backlog = writing.backlog
        self._lacking = writing.lacking
        self._reclaim_blocks = self._reclaim_blocks or 1
        for log, row in writing.touched.items():
            if row is None:
                self.rows.pop(log, None)
            else:
                self.rows[log] = row

    def _reclaim_idle(self) -> None:
        """Delete a portion while nobody waits.  A full disk may have room for a smaller one; if
        not even for one block, wait for the next commit."""
        outcome = Outcome([], [], None, {})
        try:
            outcome.counts = self._commit((), False, self._reclaim_blocks)
        except Exception as error:  # As in a commit that somebody waits for.
            if isinstance(error, lmdb.Error) and self._room.is_full_error(error):
                self._reclaim_blocks //= 2
                return
            outcome.failure = self._fail(error)
        self._reclaim_blocks = min(RECLAIM_BLOCKS_MAX, 2 * self._reclaim_blocks)
        self.outcomes.append(outcome)
        self._announce()

    def _answer(
        self, batch: list[Change | Barrier], failure: StoreFailed | None
    ) -> list[tuple[Done, StoreFailed | None]]:
        answers: list[tuple[Done, StoreFailed | None]] = []
        for one in batch:
            if isinstance(one, Barrier):
                if one.done is not None:
                    answers.append((one.done, self.failure or self._unreported))
                self._unreported = None
            elif isinstance(one, PutBlock):
                self._unreported = failure or self._unreported
        return answers

    def _announce(self) -> None:
        """Tell the owner's loop.  A closed loop hears nothing: the owner looks when it closes."""
        try:
            self._call_soon(self._deliver)
        except RuntimeError:
            return
