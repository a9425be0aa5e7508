"""The store of a node: LMDB behind a tail buffer, with group commit.

Everything here runs on the thread that owns the store, normally a node's event loop.  A mutation
changes the open log at once, so that the next read sees it, and is queued for the committer's
thread; `_deliver` learns what became of it.  Only LMDB itself, the queue and the outcomes are
shared between the two threads.

Invariants beyond those of the contract:

  I1  `done` is called from the owner's loop; from inside `barrier` only with ack MEMORY.
  I2  A block that could not be stored is gone from memory before any barrier is told.
  I3  The map stays until the last scan is released, even if the store is closed before.
  I4  Whatever was decided because of a block that is not durable yet is told as failed if that
      block cannot be stored.
  I5  Whatever takes blocks away that may have been acknowledged is told through `on_dirty`, before
      any barrier; a store that failed for good tells it of every log.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from millrace.codec.header import timestamp_max_us
from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, Marks
from millrace.core.messages import Refusal
from millrace.errors import CorruptStore
from millrace.limits import (
    RUNS_HELD_MAX,
    SCANS_OUTSTANDING_MAX,
    STORE_MAP_BYTES,
    TAIL_BUFFER_BYTES,
    UNSYNCED_BYTES_MAX,
)
from millrace.store import changes
from millrace.store.committer import CallSoon, Committer, Outcome
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.directory import DataDirectory, open_directory
from millrace.store.holdings import Holdings
from millrace.store.layout import IndexEntry, LogRow
from millrace.store.open_log import OpenLog
from millrace.store.picture import Outline, Picture
from millrace.store.read_side import ReadSide
from millrace.store.reader import Reader
from millrace.store.recovery import Recovered, open_log_of, recover
from millrace.store.rivals import Verdict, judge
from millrace.store.room import Room
from millrace.store.tail import TailEntry
from millrace.types import FIRST_LSN, Ack, Block, Extent, LogId, Lsn, NodeId, Placement


class LmdbStore(ReadSide):
    def __init__(
        self,
        directory: DataDirectory,
        call_soon: CallSoon,
        *,
        tail_bytes: int = TAIL_BUFFER_BYTES,
        unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
        scans_max: int = SCANS_OUTSTANDING_MAX,
        runs_held_max: int = RUNS_HELD_MAX,
        on_dirty: Callable[[LogId], None] = lambda log: None,
    ) -> None:
        self.directory = directory
        self._environment = directory.environment
        self._tables = directory.tables
        self._call_soon = call_soon
        self._unsynced_bytes_max = unsynced_bytes_max
        self._runs_held_max = runs_held_max
        self._on_dirty = on_dirty
        self._room = Room(directory.data_file, self._environment, self._tables)
        recovered = recover(self._environment, self._tables)
        super().__init__(Reader(directory, scans_max), recovered.logs)
        self._holdings = Holdings(self._reader, tail_bytes)
        self._next_slot = recovered.next_slot
        self._committer = Committer(
            self._environment,
            self._tables,
            self._room,
            recovered.rows,
            recovered.backlog,
            call_soon,
            self._deliver,
        )
        self._unsynced_bytes = 0
        self._removals = 0
        self._unmarked: dict[OpenLog, int] = {}  # Queued blocks that set a log's flag.
        self._is_uncovered = False  # Something that needs the disk has no barrier behind it yet.
        self._leant_on: list[TailEntry] = []  # What the next barrier rests on (I4).
        self._held_answers: list[Done] = []
        self._is_reloaded = False
        self._is_closed = False
        self._note_dirty(recovered)
        self._committer.start()

    def _note_dirty(self, recovered: Recovered) -> None:
        """Make DIRTY durable, then the flag that told it is free for this run."""
        for log in recovered.dirtied:
            self._committer.submit(changes.SetFence(log, log.fence))
        if recovered.dirtied:
            self._committer.submit(changes.ClearVolatile())

    # -- What an operator sees ------------------------------------------------------------------

    @property
    def commits(self) -> int:
        return self._committer.commits

    @property
    def unsynced_bytes(self) -> int:
        return self._unsynced_bytes

    @property
    def is_busy(self) -> bool:
        """So much waits for fsync that more should be refused."""
        return self._unsynced_bytes >= self._unsynced_bytes_max

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store takes no writes any more; only a restart helps."""
        return self._committer.failure

    @property
    def tail_bytes(self) -> int:
        return self._holdings.tail.bytes

    @property
    def is_full(self) -> bool:
        """As in `usage`, for the one who asks at each write."""
        return self._room.is_full(self._unsynced_bytes)

    def usage(self) -> Usage:
        return self._room.usage(self._unsynced_bytes)

    # -- Mutations ------------------------------------------------------------------------------

    def put(self, block: Block, placement: Placement, ack: Ack) -> None:
        if self._committer.failure:
            return
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        log = self._logs.get(block.log) or self._open(block.log)
        extent, picture = block.extent(), log.picture
        removal = None
        if type(picture) is Outline and block.first < picture.end:
            rivals = self._reader.entries(log, block.first, block.end, None)
            if not self._prevails(log, extent, placement, rivals):
                return
            removal = self._take_out(log, [rival.extent.first for rival in rivals])
        picture.add(extent)
        index = IndexEntry(
            extent,
            block.epoch,
            timestamp_max_us(block.data),
            placement.copyset,
            placement.wave,
            placement.recovery,
        )
        entry = TailEntry(block, index, ack, log.tail)
        tail = self._holdings.tail
        tail.add(entry)
        log.queue(1, block.size)
        self._unsynced_bytes += block.size
        is_marking = ack is Ack.MEMORY and not log.is_marked
        if is_marking:
            self._unmarked[log] = self._unmarked.get(log, 0) + 1
        self._is_uncovered |= ack is Ack.DISK or removal is not None
        self._committer.submit(changes.PutBlock(log, entry, index, is_marking, removal), block.size)
        if tail.bytes > tail.bytes_max:
            tail.evict()

    def _prevails(
        self, log: OpenLog, extent: Extent, placement: Placement, rivals: list[IndexEntry]
    ) -> bool:
        """Whether a block is to be stored, in the place of what overlaps it."""
        if extent.last < log.picture.trim_end:
            return False
        verdict = judge(extent, placement, [rival.copy() for rival in rivals])
        if verdict is Verdict.AMEND and not self._reader.is_whole(log, extent.first):
            verdict = Verdict.TAKE
        if verdict is Verdict.TAKE:
            return True
        if verdict is Verdict.AMEND and rivals[0].placement != placement:
            self._rewrite(log, [rivals[0].placed(placement)])
        self._lean_on(log, [rival.extent.first for rival in rivals])
        return False

    def scatter(self, log: LogId) -> None:
        opened = None if self.failure else self._open(log)
        if opened is None or opened.is_scattered:
            return
        trim_end, end = opened.picture.trim_end, opened.picture.end
        assert trim_end == end, f"log {log} holds blocks: it is too late to scatter it"
        opened.picture = Outline(trim_end, end)
        self._submit(changes.Scatter(opened))

    def amend(self, log: LogId, amendments: Sequence[tuple[Lsn, Placement]]) -> list[Lsn]:
        opened, firsts = self._logs.get(log), [first for first, _ in amendments]
        if self.failure or opened is None:
            return firsts
        held = {one.extent.first: one for one in self._reader.entries_at(opened, firsts)}
        self._lean_on(opened, held)
        amended: dict[Lsn, IndexEntry] = {}
        for first, placement in amendments:
            entry = held.get(first)
            if entry is not None and placement.precedence >= entry.placement.precedence:
                amended[first] = held[first] = entry.placed(placement)
        self._rewrite(opened, list(amended.values()))
        return [first for first in firsts if first not in held]

    def _rewrite(self, log: OpenLog, entries: list[IndexEntry]) -> None:
        if entries:
            self._holdings.amend(log, entries)
            self._submit(changes.Amend(log, tuple(entries)))

    def _lean_on(self, log: OpenLog, firsts: Iterable[Lsn]) -> None:
        """Keeps I4."""
        unsafe = self._holdings.uncommitted(log, firsts)
        self._leant_on += unsafe
        self._is_uncovered |= bool(unsafe)

    def set_marks(self, log: LogId, marks: Marks) -> None:
        opened = None if self.failure else self._open(log)
        if opened is not None and opened.marks != marks:
            opened.marks = marks
            self._committer.note(changes.SetMarks(opened, marks))

    def set_fence(self, log: LogId, fence: Fence) -> None:
        if self.failure:
            return
        opened = self._open(log)
        opened.fence = fence
        self._submit(changes.SetFence(opened, fence))

    def trim(self, log: LogId, end: Lsn) -> None:
        if self.failure:
            return
        opened = self._open(log)
        if end <= opened.picture.trim_end:
            return
        self._holdings.trim(opened, end)
        self._reader.trim_runs(opened, end)
        opened.trims_queued += 1
        self._submit(changes.Trim(opened, end))

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        opened = self._logs.get(log)
        removal = None if self.failure or opened is None else self._take_out(opened, firsts)
        if removal is not None:
            self._submit(removal)

    def _take_out(self, log: OpenLog, firsts: Sequence[Lsn]) -> changes.Remove | None:
        """Blocks are gone from memory; what the disk is to do about it."""
        if not firsts:
            return None
        found = self._holdings.take_out(log, set(firsts))
        self._removals += 1
        for extent in found:
            log.removed[extent.first] = self._removals
        self._holdings.lower(log, found)
        size = sum(extent.size for extent in found)
        log.queue(-len(found), -size)
        held = tuple(extent.first for extent in found)
        return changes.Remove(log, held, self._removals, len(found), size)

    def drop(self, log: LogId) -> None:
        opened = None if self.failure else self._logs.pop(log, None)
        if opened is None:
            return
        self._holdings.forget(opened)
        self._unmarked.pop(opened, None)
        self._committer.forget_note(changes.SetMarks, opened)
        self._committer.forget_note(changes.SetContext, opened)
        self._submit(changes.Drop(opened))

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        opened = None if self.failure else self._open(log)
        if opened is None:
            return
        commits = opened.commits
        if not runs:
            commits.context = context
            self._committer.note(changes.SetContext(opened, context))
            return
        if not commits.slot:
            commits.slot = self._next_slot
            self._next_slot += 1
        rows = tuple(commits.commit(context, runs))
        self._committer.forget_note(changes.SetContext, opened)
        self._committer.submit(changes.CommitRuns(opened, commits.slot, context, rows))
        self._is_uncovered |= not opened.is_marked

    def uncommit(self, log: LogId) -> None:
        opened = None if self.failure else self._logs.get(log)
        if opened is not None:
            self._committer.forget_note(changes.SetContext, opened)
            self._submit(changes.Uncommit(opened, opened.commits.forget()))

    def barrier(self, ack: Ack, done: Done) -> None:
        failure = self.failure
        if self._leant_on:
            done = _leaning(done, self._leant_on)
            self._leant_on = []
        if failure is None and (ack is Ack.DISK or self._is_uncovered or self._unmarked):
            self._committer.barrier(done)
        elif failure is None:
            self._committer.mark()
            done(None)  # A turn of the loop would be a good part of what the append takes.
        else:
            self._answer_soon(done)
        self._is_uncovered = False

    def _answer_soon(self, done: Done) -> None:
        self._held_answers.append(done)
        if len(self._held_answers) == 1:
            self._call_soon(self._answer_held)

    def _answer_held(self) -> None:
        held, self._held_answers = self._held_answers, []
        for done in held:
            done(self.failure)

    def _submit(self, change: changes.Change) -> None:
        self._is_uncovered = True
        self._committer.submit(change)

    def _open(self, log: LogId) -> OpenLog:
        opened = self._logs.get(log)
        if opened is None:
            assert not self._is_closed, "the store is closed"
            opened = self._logs[log] = OpenLog(
                LogRow(log, self._next_slot), Picture(FIRST_LSN, FIRST_LSN, [])
            )
            self._next_slot += 1
            self._submit(changes.Create(opened))
        return opened

    # -- Outcomes -------------------------------------------------------------------------------

    def _deliver(self) -> None:
        outcomes = self._committer.outcomes
        while outcomes:
            outcome = outcomes.popleft()
            self._settle(outcome)
            for done, failure in outcome.answers:
                done(failure)

    def _settle(self, outcome: Outcome) -> None:
        lost: dict[OpenLog, list[TailEntry]] = {}
        for change in outcome.changes:
            match change:
                case changes.PutBlock():
                    self._settle_put(change, outcome.failure)
                    if outcome.failure is not None:
                        lost.setdefault(change.log, []).append(change.entry)
                case changes.CommitRuns(log, slot, _, runs):
                    log.commits.settled(slot, runs[-1].end, self._runs_held_max)
                case changes.Remove():
                    self._settle_remove(change)
                case changes.Amend():
                    self._settle_amend(change)
                case changes.Trim():
                    change.log.trims_queued -= 1
        if self.failure is not None:
            for number in self._reload():
                self._on_dirty(number)
            return
        for log, entries in lost.items():
            self._lose(log, entries)
        for number, (slot, blocks, size) in outcome.counts.items():
            opened = self._logs.get(number)
            if opened is not None and opened.slot == slot:
                opened.blocks_stored, opened.bytes_stored = blocks, size
        self._holdings.tail.evict()

    def _settle_put(self, change: changes.PutBlock, failure: StoreFailed | None) -> None:
        log, entry = change.log, change.entry
        if change.removal is not None:
            self._settle_remove(change.removal)
        log.queue(-1, -entry.block.size)
        self._unsynced_bytes -= entry.block.size
        if change.is_marking and log in self._unmarked:
            self._unmarked[log] -= 1
            log.is_marked = failure is None
            if log.is_marked or not self._unmarked[log]:
                del self._unmarked[log]
        entry.is_committed = failure is None

    def _lose(self, log: OpenLog, entries: list[TailEntry]) -> None:
        """Blocks could not be stored.  Those of a marked log may have been acknowledged; a crash
        now is noticed by the flag, else the fence says it."""
        if self._logs.get(log.log) is not log:
            return
        held = {entry.block.first for entry in entries if entry.is_held}
        if held:
            self._holdings.lower(log, self._holdings.take_out(log, held))
        fence = changes.dirtied(log.fence)
        is_acknowledged = log.is_marked and any(entry.ack is Ack.MEMORY for entry in entries)
        if is_acknowledged and fence is not log.fence:
            self.set_fence(log.log, fence)
            self._on_dirty(log.log)

    def _settle_remove(self, change: changes.Remove) -> None:
        change.log.queue(change.blocks, change.bytes)
        for first in change.firsts:
            if change.log.removed.get(first) == change.number:
                del change.log.removed[first]

    def _settle_amend(self, change: changes.Amend) -> None:
        amended = change.log.amended
        for entry in change.entries:
            if amended.get(entry.extent.first) is entry:
                del amended[entry.extent.first]

    def _reload(self) -> list[LogId]:
        """Writing is over: show what the disk holds, or nothing if it cannot be read either.
        Returns the logs that may be less than they were (I5): when it happens, all."""
        if self._is_reloaded:
            return []
        self._is_reloaded = True
        before = self.logs()
        self._unmarked.clear()
        self._holdings = Holdings(self._reader, self._holdings.tail.bytes_max)
        self._logs = {}
        with suppress(CorruptStore), self._reader.snapshot() as transaction:
            rows = self._committer.rows.values()
            self._logs = {row.log: open_log_of(transaction, self._tables, row) for row in rows}
        return before

    # -- Closing --------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_closed:
            return
        self._committer.stop()
        self._deliver()
        if self.failure is None:
            self._committer.submit(changes.ClearVolatile())
            self._committer.commit_now()
            self._deliver()
        self._answer_held()
        self._let_go()

    def abandon(self) -> None:
        """Stop as if the process had died: commit nothing more, answer nobody.  For a node that
        must not go on, and to show what a crash leaves."""
        if not self._is_closed:
            self._committer.stop(discards=True)
            self._let_go()

    def _let_go(self) -> None:
        self._is_closed = True
        self._room.close()
        self._reader.close()


def _leaning(done: Done, entries: list[TailEntry]) -> Done:
    def told(failure: StoreFailed | None) -> None:
        if failure is None and not all(entry.is_committed for entry in entries):
            failure = StoreFailed(Refusal.DISK_FULL, "a block that this rests on was not stored")
        done(failure)

    return told


def open_store(
    path: Path,
    cluster: str,
    node: NodeId,
    call_soon: CallSoon,
    *,
    map_bytes: int = STORE_MAP_BYTES,
    tail_bytes: int = TAIL_BUFFER_BYTES,
    unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
    runs_held_max: int = RUNS_HELD_MAX,
    on_dirty: Callable[[LogId], None] = lambda log: None,
) -> LmdbStore:
    """Open the store in a node's data directory, making it if there is none.  `on_dirty` hears,
    on the owner's loop, of a running member that lost memory-acknowledged blocks, and of every log
    when the store fails for good."""
    directory = open_directory(path, cluster, node, map_bytes)
    return LmdbStore(
        directory,
        call_soon,
        tail_bytes=tail_bytes,
        unsynced_bytes_max=unsynced_bytes_max,
        runs_held_max=runs_held_max,
        on_dirty=on_dirty,
    )
