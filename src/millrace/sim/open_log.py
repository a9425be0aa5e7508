"""One log as the process of a simulated node sees it: what the queued mutations make of the disk.

I1  The picture, the blocks and the placements speak of the same blocks.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from millrace.core.log_state import LogState
from millrace.sim.disk import StoredLog
from millrace.store.picture import Outline, Picture
from millrace.types import Block, Copy, Extent, Lsn, Placement


class Fate:
    """What becomes of a block that waits to be committed: others may rest on it."""

    __slots__ = ("is_lost",)

    def __init__(self) -> None:
        self.is_lost = False


class OpenLog:
    __slots__ = (
        "blocks",
        "bytes",
        "context",
        "fates",
        "fence",
        "firsts",
        "is_marked",
        "marks",
        "picture",
        "placements",
        "runs",
    )

    def __init__(self, stored: StoredLog) -> None:
        self.fence = stored.fence
        self.marks = stored.marks
        self.context = stored.context
        self.runs = stored.runs.copy()
        self.blocks = {
            first: block
            for first, block in sorted(stored.blocks.items())
            if block.end > stored.trim_end
        }
        self.placements = {first: stored.placements[first] for first in self.blocks}
        self.firsts = list(self.blocks)
        self.bytes = sum(block.size for block in self.blocks.values())
        self.is_marked = stored.is_volatile
        self.fates: dict[Lsn, Fate] = {}  # Of the blocks that are not committed yet.
        self.picture: Picture | Outline = Picture(stored.trim_end, stored.trim_end, [])
        if stored.is_scattered:
            self.scatter()
        for block in self.blocks.values():
            self.picture.add(block.extent())

    @property
    def is_scattered(self) -> bool:
        return isinstance(self.picture, Outline)

    def scatter(self) -> None:
        self.picture = Outline(self.picture.trim_end, self.picture.end)

    def put(self, block: Block, placement: Placement) -> Fate:
        self.picture.add(block.extent())
        self.blocks[block.first] = block
        self.placements[block.first] = placement
        if not self.firsts or block.first > self.firsts[-1]:
            self.firsts.append(block.first)
        else:
            insort(self.firsts, block.first)
        self.bytes += block.size
        fate = self.fates[block.first] = Fate()
        return fate

    def settle(self, block: Block, fate: Fate) -> None:
        """The block was committed, or the disk had no room for it."""
        if self.fates.get(block.first) is fate:
            del self.fates[block.first]
            if fate.is_lost:
                self.take_out({block.first})

    def take_out(self, firsts: set[Lsn]) -> None:
        firsts = {first for first in firsts if first in self.blocks}
        if isinstance(self.picture, Picture):
            self.picture.remove(firsts, self._run_from(firsts, self.picture.contiguous_end))
        self._forget(firsts)
        if isinstance(self.picture, Outline):
            last = self.blocks[self.firsts[-1]].extent() if self.firsts else None
            self.picture.lower(last)

    def _run_from(self, firsts: set[Lsn], end: Lsn) -> list[Extent]:
        """What is held from the lowest of `firsts` up to the first hole."""
        low = min(firsts, default=end)
        above = self.firsts[bisect_left(self.firsts, low) :] if low < end else ()
        return [self.blocks[first].extent() for first in above if first < end]

    def trim(self, end: Lsn) -> None:
        below = self.firsts[: bisect_left(self.firsts, end)]
        self._forget({first for first in below if self.blocks[first].end <= end})
        self.picture.trim(end)
        self.runs.trim(end)

    def _forget(self, firsts: set[Lsn]) -> None:
        for first in firsts:
            self.bytes -= self.blocks.pop(first).size
            del self.placements[first]
            self.fates.pop(first, None)
        if firsts:
            self.firsts = [first for first in self.firsts if first in self.blocks]

    def within(self, first: Lsn, end: Lsn) -> Sequence[Lsn]:
        """First positions of the blocks that intersect [first, end)."""
        first = max(first, self.picture.trim_end)
        if first >= end:
            return ()
        low = bisect_right(self.firsts, first) - 1
        if low < 0 or self.blocks[self.firsts[low]].end <= first:
            low += 1
        return self.firsts[low : bisect_left(self.firsts, end)]

    def extents(self, first: Lsn, end: Lsn) -> list[Extent]:
        return [self.blocks[at].extent() for at in self.within(first, end)]

    def last_below(self, end: Lsn) -> Extent | None:
        at = bisect_left(self.firsts, end)
        return self.blocks[self.firsts[at - 1]].extent() if at else None

    def copy_at(self, first: Lsn) -> Copy:
        return Copy(self.blocks[first].extent(), self.placements[first])

    def state(self) -> LogState:
        picture = self.picture
        return LogState(
            self.fence,
            picture.trim_end,
            picture.contiguous_end,
            picture.end,
            list(picture.sparse),
            len(self.blocks),
            self.bytes,
            self.is_scattered,
            self.marks,
            self.context,
            self.runs.first,
            self.runs.last,
        )
