"""The mutations a store takes, and what each does inside a transaction.

The owner of the store queues them; the committer applies a batch of them to one LMDB transaction.
Rows of logs are worked on as copies and written once per batch.

Invariants:

  I1  A batch that is not committed leaves no trace: neither on disk nor in the rows.
  I2  Without its blocks a batch still does all else it was asked (contract, I3).
  I3  Blocks and runs are deleted in bounded portions; the trim point or the end of a dropped log
      becomes durable no later than the first of these deletions.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, Marks
from millrace.core.messages import Standing
from millrace.limits import RECLAIM_TIME_MS
from millrace.store.commit_table import put_runs
from millrace.store.layout import (
    IndexEntry,
    LogRow,
    Tables,
    Transaction,
    block_key,
    decode_entry,
    decode_run,
    encode,
    number_key,
    split_block_key,
)
from millrace.store.open_log import OpenLog
from millrace.store.tail import TailEntry
from millrace.types import LogId, Lsn

CLOCK_STRIDE_BLOCKS: Final = 16  # Blocks deleted between two looks at the clock.


class Create(msgspec.Struct, frozen=True):
    log: OpenLog


class Scatter(msgspec.Struct, frozen=True):
    log: OpenLog


class Amend(msgspec.Struct, frozen=True):
    log: OpenLog
    entries: tuple[IndexEntry, ...]


class SetFence(msgspec.Struct, frozen=True):
    log: OpenLog
    fence: Fence


class SetMarks(msgspec.Struct, frozen=True):
    log: OpenLog
    marks: Marks


class Trim(msgspec.Struct, frozen=True):
    log: OpenLog
    end: Lsn


class Remove(msgspec.Struct, frozen=True):
    log: OpenLog
    firsts: tuple[Lsn, ...]
    number: int
    blocks: int
    bytes: int


class PutBlock(msgspec.Struct, frozen=True):
    log: OpenLog
    entry: TailEntry
    index: IndexEntry  # As it was when the block was queued: the entry's may be amended since.
    is_marking: bool  # The first memory-acknowledged block of its log sets the flag (contract, I4).
    removal: Remove | None = None  # Of what it takes the place of, in the same transaction.


class Drop(msgspec.Struct, frozen=True):
    log: OpenLog


class CommitRuns(msgspec.Struct, frozen=True):
    log: OpenLog
    slot: int
    context: CommitContext | None
    runs: tuple[StreamCommit, ...]  # Whole rows: one that goes on is longer than it was.


class SetContext(msgspec.Struct, frozen=True):
    log: OpenLog
    context: CommitContext | None


class Uncommit(msgspec.Struct, frozen=True):
    log: OpenLog
    slot: int


class ClearVolatile(msgspec.Struct, frozen=True):
    """All blocks are durable and no more will come: closing in order leaves no log DIRTY."""


Change = (
    PutBlock
    | Create
    | Scatter
    | Amend
    | SetFence
    | SetMarks
    | Trim
    | Remove
    | Drop
    | CommitRuns
    | SetContext
    | Uncommit
    | ClearVolatile
)


def dirtied(fence: Fence) -> Fence:
    """A member that lost acknowledged blocks may not speak for the log; one that never was a
    member stays BLANK, which says less still."""
    if fence.standing is Standing.MEMBER:
        return msgspec.structs.replace(fence, standing=Standing.DIRTY)
    return fence


class Backlog:
    """Where there are blocks to delete: logs trimmed and slots dropped, in order."""

    def __init__(self, trimmed: Iterable[LogId] = (), doomed: Iterable[int] = ()) -> None:
        self.trimmed = dict.fromkeys(trimmed)
        self.doomed = dict.fromkeys(doomed)

    def __bool__(self) -> bool:
        return bool(self.trimmed or self.doomed)

    def copy(self) -> "Backlog":
        return Backlog(self.trimmed, self.doomed)


class Writing:
    """One write transaction and the rows it changes."""

    def __init__(
        self,
        transaction: Transaction,
        tables: Tables,
        rows: dict[LogId, LogRow],
        backlog: Backlog,
        last_key: bytes,
        lacking: frozenset[LogId] = frozenset(),
    ) -> None:
        """`lacking` are logs of which blocks found no room before."""
        self._transaction = transaction
        self._tables = tables
        self._rows = rows
        self.touched: dict[LogId, LogRow | None] = {}
        self.last_key = last_key
        self.backlog = backlog.copy()
        self.blocks_deleted = 0
        self.lacking = lacking

    def apply(self, changes: Iterable[Change], *, with_blocks: bool) -> None:
        for change in changes:
            match change:
                case PutBlock():
                    if change.removal is not None:
                        self._remove(change.removal)
                    if with_blocks:
                        self._put(change)
                    else:
                        self.lacking |= {change.log.log}
                case SetMarks():
                    self._row(change.log.log).marks = change.marks
                case CommitRuns():
                    self._commit_runs(change)
                case SetContext():
                    self._set_context(change)
                case Amend():
                    self._amend(change)
                case SetFence():
                    self._row(change.log.log).fence = change.fence
                case Trim():
                    self._trim(change)
                case Remove():
                    self._remove(change)
                case Create():
                    self.touched[change.log.log] = LogRow(change.log.log, change.log.slot)
                case Scatter():
                    self._row(change.log.log).is_scattered = True
                case Drop():
                    self._drop(change)
                case Uncommit():
                    self._uncommit(change)
                case ClearVolatile():
                    for log in [log for log, row in self._rows.items() if row.is_volatile]:
                        self._row(log).is_volatile = False

    def finish(self) -> None:
        """Write the rows; the last thing before the commit."""
        for log, row in self.touched.items():
            if row is None:
                self._transaction.delete(number_key(log), db=self._tables.logs)
                continue
            if not row.is_scattered:
                row.contiguous_end = self._advance(row.slot, row.contiguous_end)
            self._transaction.put(number_key(log), encode(row), db=self._tables.logs)

    def _row(self, log: LogId) -> LogRow:
        row = self.touched.get(log)
        if row is None:
            row = self.touched[log] = msgspec.structs.replace(self._rows[log])
        return row

    def _put(self, change: PutBlock) -> None:
        block, row = change.entry.block, self._row(change.log.log)
        if block.first < row.trim_end:
            self._clear_remains(row, block.first)
        key = block_key(row.slot, block.first)
        is_append = key > self.last_key  # Fills pages to the brim and skips the search.
        self._transaction.put(key, block.data, append=is_append, db=self._tables.blocks)
        value = encode(change.index)
        is_new = self._transaction.put(key, value, append=is_append, db=self._tables.index)
        assert is_new, f"{block!r} is stored already"
        if is_append:
            self.last_key = key
        row.blocks += 1
        row.bytes += block.size
        row.is_volatile |= change.is_marking
        if block.first <= row.contiguous_end <= block.last:
            row.contiguous_end = block.end

    def _amend(self, change: Amend) -> None:
        """A block that could not be stored, or was trimmed and deleted, stays away."""
        for entry in change.entries:
            key = block_key(change.log.slot, entry.extent.first)
            if self._transaction.get(key, db=self._tables.index) is not None:
                self._transaction.put(key, encode(entry), db=self._tables.index)

    def _clear_remains(self, row: LogRow, first: Lsn) -> None:
        """A block that reaches across the trim point takes the place of trimmed blocks that are
        not deleted yet; stored blocks must not overlap."""
        while True:
            with self._transaction.cursor(db=self._tables.index) as cursor:
                if not cursor.set_range(block_key(row.slot, first)):
                    return
                key = cursor.key()
            slot, at = split_block_key(key)
            if slot != row.slot or at >= row.trim_end:
                return
            self._delete(row, key)

    def _trim(self, change: Trim) -> None:
        row = self._row(change.log.log)
        if change.end <= row.trim_end:
            return
        row.trim_end = change.end
        if row.trim_end > row.contiguous_end and not row.is_scattered:
            row.contiguous_end = self._end_of_block_at(row.slot, row.trim_end)
        self.backlog.trimmed[row.log] = None

    def _remove(self, change: Remove) -> None:
        row = self._row(change.log.log)
        for first in change.firsts:
            if self._delete(row, block_key(row.slot, first)):
                row.contiguous_end = min(row.contiguous_end, max(first, row.trim_end))
                self.blocks_deleted += 1

    def _delete(self, row: LogRow, key: bytes) -> bool:
        value = self._transaction.pop(key, db=self._tables.index)
        if value is None:
            return False
        self._transaction.delete(key, db=self._tables.blocks)
        row.blocks -= 1
        row.bytes -= decode_entry(value).extent.size
        return True

    def _drop(self, change: Drop) -> None:
        runs_slot = self._row(change.log.log).runs_slot
        self.touched[change.log.log] = None
        self._doom(change.log.slot)
        if runs_slot:
            self._doom(runs_slot)

    def _doom(self, slot: int) -> None:
        self._transaction.put(number_key(slot), b"", db=self._tables.doomed)
        self.backlog.doomed[slot] = None

    def _commit_runs(self, change: CommitRuns) -> None:
        row = self._row(change.log.log)
        if self._lacks(row, change.runs[-1].local_end):
            return
        row.context, row.runs_slot = change.context, change.slot
        put_runs(self._transaction, self._tables, change.slot, change.runs)

    def _set_context(self, change: SetContext) -> None:
        row, context = self._row(change.log.log), change.context
        if context is None or not self._lacks(row, context.local_end):
            row.context = context

    def _lacks(self, row: LogRow, end: Lsn) -> bool:
        """Entries below found no room: nothing may say that they are there, and committed."""
        return row.log in self.lacking and end > row.contiguous_end

    def _uncommit(self, change: Uncommit) -> None:
        row = self._row(change.log.log)
        row.context, row.runs_slot = None, 0
        if change.slot:
            self._doom(change.slot)

    def _advance(self, slot: int, contiguous_end: Lsn) -> Lsn:
        """Keeps layout I2: blocks that came before the hole below them was filled."""
        with self._transaction.cursor(db=self._tables.index) as cursor:
            found = cursor.set_key(block_key(slot, contiguous_end))
            while found:
                contiguous_end = Lsn(decode_entry(cursor.value()).extent.last + 1)
                found = cursor.next() and cursor.key() == block_key(slot, contiguous_end)
        return contiguous_end

    def _end_of_block_at(self, slot: int, lsn: Lsn) -> Lsn:
        """The end of a block that holds `lsn` but begins below it; else `lsn`."""
        with self._transaction.cursor(db=self._tables.index) as cursor:
            is_found = cursor.set_range(block_key(slot, lsn))
            is_before = cursor.prev() if is_found else cursor.last()
            if is_before and split_block_key(cursor.key())[0] == slot:
                return max(lsn, Lsn(decode_entry(cursor.value()).extent.last + 1))
        return lsn

    def reclaim(self, blocks_max: int) -> None:
        """Delete a portion of what is trimmed or dropped, and take what is done off the list."""
        budget, backlog = _Budget(blocks_max), self.backlog
        for log in list(backlog.trimmed):
            row = self.touched.get(log, self._rows.get(log))
            if row is None or self._reclaim_trimmed(self._row(log), budget):
                del backlog.trimmed[log]
            if budget.is_spent:
                return
        for slot in list(backlog.doomed):
            if self._reclaim_doomed(slot, budget):
                self._transaction.delete(number_key(slot), db=self._tables.doomed)
                del backlog.doomed[slot]
            if budget.is_spent:
                return

    def _reclaim_trimmed(self, row: LogRow, budget: "_Budget") -> bool:
        return self._reclaim_blocks(row, budget) and self._reclaim_runs(row, budget)

    def _reclaim_blocks(self, row: LogRow, budget: "_Budget") -> bool:
        for key, value in self._portion(self._tables.index, row.slot, budget):
            if decode_entry(value).extent.last >= row.trim_end:
                return True
            self._delete(row, key)
            self.blocks_deleted += 1
        return not budget.is_spent

    def _reclaim_runs(self, row: LogRow, budget: "_Budget") -> bool:
        for key, value in self._portion(self._tables.commits, row.runs_slot, budget):
            if decode_run(value).local_end > row.trim_end:
                return True
            self._transaction.delete(key, db=self._tables.commits)
        return not budget.is_spent

    def _reclaim_doomed(self, slot: int, budget: "_Budget") -> bool:
        for key, _ in self._portion(self._tables.index, slot, budget):
            self._transaction.delete(key, db=self._tables.index)
            self._transaction.delete(key, db=self._tables.blocks)
            self.blocks_deleted += 1
        for key, _ in self._portion(self._tables.commits, slot, budget):
            self._transaction.delete(key, db=self._tables.commits)
        return not budget.is_spent

    def _portion(self, table: Any, slot: int, budget: "_Budget") -> Iterator[tuple[bytes, bytes]]:
        """The lowest entries of a slot in a table, one by one while the budget lasts."""
        start = block_key(slot, 0)
        while True:
            with self._transaction.cursor(db=table) as cursor:
                if not cursor.set_range(start):
                    return
                key, value = cursor.item()
            if split_block_key(key)[0] != slot or not budget.take():
                return
            yield key, value


class _Budget:
    """Bounds a portion by count and by time: cold blocks cost a disk read each to free."""

    def __init__(self, blocks_max: int) -> None:
        self._left = blocks_max
        self._deadline = time.monotonic() + RECLAIM_TIME_MS / 1000
        self.is_spent = False

    def take(self) -> bool:
        if self._left % CLOCK_STRIDE_BLOCKS == 0 and time.monotonic() > self._deadline:
            self._left = 0
        self.is_spent = self._left <= 0
        self._left -= 1
        return not self.is_spent
