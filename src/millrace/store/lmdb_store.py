"""The store of a node: LMDB behind a tail buffer, with group commit.

Everything here runs on the thread that owns the store, normally a node's event loop.  A mutation
changes the open log at once, so that the next read sees it, and is queued for the committer's
thread; `_deliver` learns what became of it.  Only LMDB itself, the queue and the outcomes are
shared between the two threads.

Invariants beyond those of the contract:

  I1  `done` is called from the owner's loop; from inside `barrier` only with ack MEMORY.
  I2  A block that could not be stored is gone from memory before any barrier is told.
  I3  The map stays until the last scan is released, even if the store is closed before.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from millrace.codec.header import timestamp_max_us
from millrace.core.log_state import Fence, LogState
from millrace.errors import CorruptStore
from millrace.limits import (
    SCANS_OUTSTANDING_MAX,
    STORE_MAP_BYTES,
    TAIL_BUFFER_BYTES,
    UNSYNCED_BYTES_MAX,
)
from millrace.store import changes
from millrace.store.committer import CallSoon, Committer, Outcome
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.directory import DataDirectory, open_directory
from millrace.store.layout import IndexEntry, LogRow
from millrace.store.open_log import OpenLog
from millrace.store.reader import Reader
from millrace.store.reading import BlockScan
from millrace.store.recovery import Recovered, open_log_of, recover
from millrace.store.room import Room
from millrace.store.tail import TailBuffer, TailEntry
from millrace.types import FIRST_LSN, Ack, Block, Extent, LogId, Lsn, NodeId, Weight


class LmdbStore:
    def __init__(
        self,
        directory: DataDirectory,
        call_soon: CallSoon,
        *,
        tail_bytes: int = TAIL_BUFFER_BYTES,
        unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
        scans_max: int = SCANS_OUTSTANDING_MAX,
        on_dirty: Callable[[LogId], None] = lambda log: None,
    ) -> None:
        self.directory = directory
        self._environment = directory.environment
        self._tables = directory.tables
        self._call_soon = call_soon
        self._unsynced_bytes_max = unsynced_bytes_max
        self._reader = Reader(directory, scans_max)
        self._on_dirty = on_dirty
        self._tail = TailBuffer(tail_bytes)
        self._room = Room(directory.data_file, self._environment, self._tables)
        recovered = recover(self._environment, self._tables)
        self._logs = recovered.logs
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
        return self._tail.bytes

    @property
    def scans_outstanding(self) -> int:
        return self._reader.scans

    @property
    def is_full(self) -> bool:
        """As in `usage`, for the one who asks at each write."""
        return self._room.is_full(self._unsynced_bytes)

    def usage(self) -> Usage:
        return self._room.usage(self._unsynced_bytes)

    # -- Mutations ------------------------------------------------------------------------------

    def put(self, block: Block, copyset: tuple[NodeId, ...], ack: Ack) -> None:
        if self.failure:
            return
        assert not block.is_cut, f"{block!r} was cut for a reader: no store takes it"
        log = self._open(block.log)
        extent = block.extent()
        log.picture.add(extent)
        index = IndexEntry(extent, block.epoch, timestamp_max_us(block.data), copyset)
        entry = TailEntry(block, index, ack, log.tail)
        self._tail.add(entry)
        log.queue(1, block.size)
        self._unsynced_bytes += block.size
        is_marking = ack is Ack.MEMORY and not log.is_marked
        if is_marking:
            self._unmarked[log] = self._unmarked.get(log, 0) + 1
        self._is_uncovered |= ack is Ack.DISK
        self._committer.submit(changes.PutBlock(log, entry, is_marking), block.size)
        if self._tail.bytes > self._tail.bytes_max:
            self._tail.evict()

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
        for entry in list(opened.tail.within(FIRST_LSN, end)):
            if entry.block.end <= end:
                self._tail.forget(entry)
        opened.picture.trim(end)
        opened.trims_queued += 1
        self._submit(changes.Trim(opened, end))

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        opened = self._logs.get(log)
        if self.failure or opened is None or not firsts:
            return
        found = self._take_out(opened, set(firsts))
        self._removals += 1
        for extent in found:
            opened.removed[extent.first] = self._removals
        size = sum(extent.size for extent in found)
        opened.queue(-len(found), -size)
        held = tuple(extent.first for extent in found)
        self._submit(changes.Remove(opened, held, self._removals, len(found), size))

    def _take_out(self, log: OpenLog, firsts: set[Lsn]) -> list[Extent]:
        """Take blocks out of the picture and the tail; returns those that were there."""
        picture = log.picture
        low = min(firsts)
        above: list[Extent] = []
        if low < picture.contiguous_end:
            above = self.index(log.log, low, picture.contiguous_end)
        found = [one for one in (*above, *picture.sparse) if one.first in firsts]
        inside = [one.first for one in found if one.first < picture.contiguous_end]
        picture.remove(firsts, [one for one in above if inside and one.first >= min(inside)])
        for extent in found:
            entry = log.tail.get(extent.first)
            if entry is not None:
                self._tail.forget(entry)
        return found

    def drop(self, log: LogId) -> None:
        opened = None if self.failure else self._logs.pop(log, None)
        if opened is None:
            return
        for entry in list(opened.tail.within(FIRST_LSN, opened.picture.end)):
            self._tail.forget(entry)
        self._unmarked.pop(opened, None)
        self._submit(changes.Drop(opened))

    def barrier(self, ack: Ack, done: Done) -> None:
        failure = self.failure
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
            opened = self._logs[log] = OpenLog(LogRow(log, self._next_slot), [])
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
                case changes.Remove():
                    self._settle_remove(change)
                case changes.Trim():
                    change.log.trims_queued -= 1
        if self.failure is not None:
            self._reload()
            return
        for log, entries in lost.items():
            self._lose(log, entries)
        for number, (slot, blocks, size) in outcome.counts.items():
            opened = self._logs.get(number)
            if opened is not None and opened.slot == slot:
                opened.blocks_stored, opened.bytes_stored = blocks, size
        self._tail.evict()

    def _settle_put(self, change: changes.PutBlock, failure: StoreFailed | None) -> None:
        log, entry = change.log, change.entry
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
            self._take_out(log, held)
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

    def _reload(self) -> None:
        """Writing is over: show what the disk holds, or nothing if it cannot be read either."""
        if self._is_reloaded:
            return
        self._is_reloaded = True
        self._unmarked.clear()
        self._tail = TailBuffer(self._tail.bytes_max)
        self._logs = {}
        with suppress(CorruptStore), self._reader.snapshot() as transaction:
            rows = self._committer.rows.values()
            self._logs = {row.log: open_log_of(transaction, self._tables, row) for row in rows}

    # -- Reading --------------------------------------------------------------------------------

    def logs(self) -> list[LogId]:
        return sorted(self._logs)

    def state(self, log: LogId) -> LogState | None:
        opened = self._logs.get(log)
        return None if opened is None else opened.state()

    def block_at(self, log: LogId, lsn: Lsn) -> Block | None:
        opened = self._logs.get(log)
        return None if opened is None else self._reader.block_at(opened, lsn)

    def scan(self, log: LogId, first: Lsn, end: Lsn, bytes_max: int) -> BlockScan:
        opened = self._logs.get(log)
        if opened is None:
            return BlockScan([])
        return self._reader.scan(opened, first, end, bytes_max)

    def index(self, log: LogId, first: Lsn, end: Lsn, limit: int | None = None) -> list[Extent]:
        return [entry.extent for entry in self.entries(log, first, end, limit)]

    def entries(
        self, log: LogId, first: Lsn, end: Lsn, limit: int | None = None
    ) -> list[IndexEntry]:
        """Index entries with epoch, newest timestamp and copyset."""
        opened = self._logs.get(log)
        return [] if opened is None else self._reader.entries(opened, first, end, limit)

    def find_time(self, log: LogId, timestamp_us: int) -> Lsn:
        opened = self._logs.get(log)
        return FIRST_LSN if opened is None else self._reader.find_time(opened, timestamp_us)

    def find_size(self, log: LogId, bytes_kept: int) -> Lsn:
        opened = self._logs.get(log)
        return FIRST_LSN if opened is None else self._reader.find_size(opened, bytes_kept)

    def weigh(self, log: LogId, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        opened = self._logs.get(log)
        return [] if opened is None else self._reader.weigh(opened, first, end, pieces)

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


def open_store(
    path: Path,
    cluster: str,
    node: NodeId,
    call_soon: CallSoon,
    *,
    map_bytes: int = STORE_MAP_BYTES,
    tail_bytes: int = TAIL_BUFFER_BYTES,
    unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
    on_dirty: Callable[[LogId], None] = lambda log: None,
) -> LmdbStore:
    """Open the store in a node's data directory, making it if there is none.  `on_dirty` hears,
    on the owner's loop, of a running member that lost memory-acknowledged blocks."""
    directory = open_directory(path, cluster, node, map_bytes)
    return LmdbStore(
        directory,
        call_soon,
        tail_bytes=tail_bytes,
        unsynced_bytes_max=unsynced_bytes_max,
        on_dirty=on_dirty,
    )
