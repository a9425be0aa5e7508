"""The newest blocks, in memory: fresh data is read without touching LMDB.

Every block passes through here.  What is not committed yet stays whatever the bound says; what is
committed leaves in the order it came, when the buffer is full.  Each log has a floor: at or above
it everything the log holds is in memory.  Below it lies what was evicted or was there at opening,
and perhaps a few late blocks that filled holes (strays).

Invariants:

  I1  An uncommitted block is in the buffer.
  I2  All blocks of a log that begin at or above its floor are in the buffer; no block reaches
      across the floor.
  I3  Committed blocks do not keep the buffer above its bound, nor forgotten ones much memory.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

from millrace.limits import MIB
from millrace.store.layout import IndexEntry
from millrace.types import Ack, Block, Lsn

ENTRY_OVERHEAD_BYTES: Final = 512  # What the objects around a small block weigh.

FORGOTTEN_BYTES_MIN: Final = MIB


class TailEntry:
    """A block in memory and what the index says about it."""

    __slots__ = ("ack", "block", "index", "is_committed", "is_held", "tail")

    def __init__(self, block: Block, index: IndexEntry, ack: Ack, tail: "LogTail") -> None:
        self.block = block
        self.index = index
        self.ack = ack
        self.tail = tail
        self.is_committed = False
        self.is_held = True

    @property
    def weight_bytes(self) -> int:
        return self.block.size + ENTRY_OVERHEAD_BYTES


class LogTail:
    """The part of the buffer that belongs to one log, in order of position."""

    __slots__ = ("_entries", "_firsts", "_start", "floor")

    def __init__(self, floor: Lsn) -> None:
        self.floor = floor
        self._firsts: list[Lsn] = []
        self._entries: list[TailEntry] = []
        self._start = 0  # Evicted entries before this are cut off now and then, not one by one.

    def __len__(self) -> int:
        return len(self._firsts) - self._start

    def add(self, entry: TailEntry) -> None:
        first = entry.block.first
        at = len(self._firsts)
        if at > self._start and self._firsts[-1] > first:
            at = bisect_left(self._firsts, first, self._start)
        if first < self.floor < entry.block.end:
            self.floor = entry.block.end  # Keeps I2 where a removed block was of another length.
        self._firsts.insert(at, first)
        self._entries.insert(at, entry)

    def discard(self, entry: TailEntry) -> None:
        at = bisect_left(self._firsts, entry.block.first, self._start)
        if at == len(self._entries) or self._entries[at] is not entry:
            return
        if at == self._start:
            self._entries[at] = self._entries[-1]  # Do not keep the block alive until the cut.
            self._start += 1
            self._cut()
        else:
            del self._firsts[at]
            del self._entries[at]

    def _cut(self) -> None:
        if self._start * 2 >= len(self._firsts):
            del self._firsts[: self._start]
            del self._entries[: self._start]
            self._start = 0

    def get(self, first: Lsn) -> TailEntry | None:
        at = bisect_left(self._firsts, first, self._start)
        return self._entries[at] if self._firsts[at : at + 1] == [first] else None

    def holding(self, lsn: Lsn) -> TailEntry | None:
        """The entry whose block holds `lsn`."""
        at = self._at(lsn)
        if at < len(self._entries) and self._firsts[at] <= lsn:
            return self._entries[at]
        return None

    def within(self, first: Lsn, end: Lsn) -> Iterator[TailEntry]:
        """Entries that intersect [first, end), in order; costs nothing for those not taken.  The
        log must not change meanwhile."""
        for at in range(self._at(first), bisect_left(self._firsts, end, self._start)):
            yield self._entries[at]

    def within_backward(self, first: Lsn, end: Lsn) -> Iterator[TailEntry]:
        stop = bisect_left(self._firsts, end, self._start)
        for at in range(stop - 1, self._at(first) - 1, -1):
            yield self._entries[at]

    def _at(self, lsn: Lsn) -> int:
        """Where the first entry that ends above `lsn` stands."""
        at = bisect_left(self._firsts, lsn, self._start)
        if at > self._start and self._entries[at - 1].block.end > lsn:
            return at - 1
        return at


class TailBuffer:
    """All entries of a store in the order they came, and their weight."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._order: deque[TailEntry] = deque()
        self._forgotten_bytes = 0  # Still in the order, behind an older entry.

    def add(self, entry: TailEntry) -> None:
        entry.tail.add(entry)
        self._order.append(entry)
        self.bytes += entry.weight_bytes

    def forget(self, entry: TailEntry) -> None:
        """Take a trimmed, removed or failed block out at once."""
        if not entry.is_held:
            return
        self._let_go(entry)
        self._forgotten_bytes += entry.weight_bytes
        if self._forgotten_bytes > max(self.bytes_max // 4, FORGOTTEN_BYTES_MIN):
            self._order = deque(one for one in self._order if one.is_held)
            self._forgotten_bytes = 0

    def _let_go(self, entry: TailEntry) -> None:
        entry.is_held = False
        entry.tail.discard(entry)
        self.bytes -= entry.weight_bytes

    def evict(self) -> None:
        """Keeps I3.  Commits happen in order, so the first uncommitted one ends the search."""
        order = self._order
        while order and (self.bytes > self.bytes_max or not order[0].is_held):
            entry = order[0]
            if entry.is_held:
                if not entry.is_committed:
                    return
                entry.tail.floor = max(entry.tail.floor, entry.block.end)
                self._let_go(entry)
            else:
                self._forgotten_bytes -= entry.weight_bytes
            order.popleft()
