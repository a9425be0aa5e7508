"""What has arrived and cannot be delivered yet, in order and without duplicates.

Nodes send at different paces, so blocks wait here for those before them.  Two copies of a block
are the same bytes, with one exception: a node that missed a recovery may still hold a block where
the others hold what the recovery wrote.  Nothing was acknowledged there, and all readers should see
the same, so what the recovery wrote takes the block's place.  A LOSS is written where nothing was
found: a block that is found after all takes its place.

  I1  Entries do not overlap, and lie in the order of their positions.
  I2  Bytes are counted for the node that sent them, from `add` until the entry leaves.
  I3  What waits is bounded by the credit of the nodes (`credit.py`).
"""

from bisect import bisect_left, insort
from enum import Enum
from typing import Final

import msgspec

from millrace.lsn import epoch_of, first_of
from millrace.types import Block, EntryKind, Epoch, GapKind, Lsn, NodeId

_GAP_KINDS: Final = {
    EntryKind.HOLE: GapKind.HOLE,
    EntryKind.LOSS: GapKind.DATALOSS,
    EntryKind.BRIDGE: GapKind.BRIDGE,
}
# What stands where two differ: what a recovery decided, then data, then what was not found.
_RANKS: Final = {
    GapKind.BRIDGE: 3,
    GapKind.HOLE: 2,
    GapKind.FILTERED_OUT: 1,
    None: 1,
    GapKind.DATALOSS: 0,
}


class Entry(msgspec.Struct):
    """Positions [first, end) are those of the block, or a gap of this kind."""

    first: Lsn
    end: Lsn
    node: NodeId
    size_bytes: int = 0
    block: Block | None = None
    gap: GapKind | None = None

    @property
    def rank(self) -> int:
        return _RANKS[self.gap]


def end_of(block: Block) -> Lsn:
    """Where what a block stands for ends: a bridge is about all that follows in its epoch."""
    if block.kind is EntryKind.BRIDGE:
        return first_of(Epoch(epoch_of(block.first) + 1))
    return block.end


def entry_of(block: Block, end: Lsn, node: NodeId, size_bytes: int) -> Entry:
    """A block as it waits; `end` is where what it stands for ends."""
    kind = _GAP_KINDS.get(block.kind)
    return Entry(block.first, end, node, size_bytes, None if kind else block, kind)


class Added(Enum):
    NEW = "new"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"  # Another block is at one of its positions: one of the nodes is wrong.


class BlockBuffer:
    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._bytes: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> Entry | None:
        return self._entries[0] if self._entries else None

    def bytes_of(self, node: NodeId) -> int:
        return self._bytes.get(node, 0)

    def add(self, entry: Entry) -> Added:
        begin, end = self._overlapping(entry)
        overlapped = self._entries[begin:end]
        if not overlapped:
            self._insert(entry)
            return Added.NEW
        if any(_is_conflict(entry, old) for old in overlapped):
            return Added.CONFLICT
        beaten = [old for old in overlapped if old.rank < entry.rank]
        pieces = _without(entry, [old for old in overlapped if old.rank >= entry.rank])
        if not pieces:
            return Added.DUPLICATE
        for old in beaten:
            self._take_out(old)
            for rest in _without(old, pieces):
                self._insert(rest)
        for piece in pieces:
            self._insert(piece)
        return Added.NEW

    def drop_below(self, lsn: Lsn) -> None:
        """Nothing below this position is wanted any more."""
        while self._entries and self._entries[0].end <= lsn:
            self._take_out(self._entries[0])
        if self._entries and self._entries[0].first < lsn:
            self._entries[0].first = lsn

    def take_at(self, lsn: Lsn) -> Entry | None:
        """The entry at the head, if it holds this position."""
        self.drop_below(lsn)
        if not self._entries or self._entries[0].first > lsn:
            return None
        entry = self._entries[0]
        self._take_out(entry)
        return entry

    def clear(self) -> None:
        self._entries.clear()
        self._bytes.clear()

    def _overlapping(self, entry: Entry) -> tuple[int, int]:
        """The slice of the entries that overlap this one."""
        end = bisect_left(self._entries, entry.end, key=_first)
        begin = end
        while begin > 0 and self._entries[begin - 1].end > entry.first:
            begin -= 1
        return begin, end

    def _insert(self, entry: Entry) -> None:
        insort(self._entries, entry, key=_first)
        self._bytes[entry.node] = self._bytes.get(entry.node, 0) + entry.size_bytes

    def _take_out(self, entry: Entry) -> None:
        at = bisect_left(self._entries, entry.first, key=_first)
        del self._entries[at]
        self._bytes[entry.node] -= entry.size_bytes


def _first(entry: Entry) -> Lsn:
    return entry.first


def _is_conflict(one: Entry, other: Entry) -> bool:
    mine, its = one.block, other.block
    if mine is None or its is None:
        return False
    is_same_range = (mine.first, mine.count) == (its.first, its.count)
    # What is left of a block after a selection need not have been cut by one version of the code.
    return not is_same_range or (mine.checksum != its.checksum and not mine.is_cut)


def _without(entry: Entry, others: list[Entry]) -> list[Entry]:
    """The parts of an entry that the others, which are in order, leave; the first has the bytes."""
    cuts: list[tuple[Lsn, Lsn]] = []
    at = entry.first
    for other in others:
        if at < other.first:
            cuts.append((at, min(other.first, entry.end)))
        at = max(at, other.end)
    if at < entry.end:
        cuts.append((at, entry.end))
    return [
        msgspec.structs.replace(
            entry, first=first, end=end, size_bytes=entry.size_bytes if number == 0 else 0
        )
        for number, (first, end) in enumerate(cuts)
        if first < end
    ]
