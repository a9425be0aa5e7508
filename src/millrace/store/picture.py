"""What a log holds, without the data: a contiguous run and the extents above its first hole.

Kept in memory for every open log and changed by each mutation at once, so that deciding about a
write never reads the disk.  Of a scattered log, which is all holes, only the outline is kept: then
a write above everything else is decided without reading the disk, and others look at the index.
Pure: no store, no thread.

Invariants:

  I1  All of [trim_end, contiguous_end) is written; contiguous_end is not.
  I2  `sparse` is in order, does not overlap, and begins above contiguous_end.
  I3  trim_end <= contiguous_end <= end.
  I4  An outline's size does not depend on how many blocks the log has.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from millrace.types import Extent, Lsn

_FIRST: Final = attrgetter("first")


class Picture:
    __slots__ = ("contiguous_end", "sparse", "trim_end")

    def __init__(self, trim_end: Lsn, contiguous_end: Lsn, sparse: list[Extent]) -> None:
        self.trim_end = trim_end
        self.contiguous_end = contiguous_end
        self.sparse = sparse

    @property
    def end(self) -> Lsn:
        return Lsn(self.sparse[-1].last + 1) if self.sparse else self.contiguous_end

    def overlaps(self, first: Lsn, last: Lsn) -> bool:
        """Whether a block of this range would touch what is written or trimmed.  A block that
        reaches across the trim point may still arrive, from a replica that kept it."""
        if max(first, self.trim_end) < self.contiguous_end or last < self.trim_end:
            return True
        if not self.sparse:
            return False
        at = bisect_right(self.sparse, last, key=_FIRST)
        return at > 0 and self.sparse[at - 1].last >= first

    def add(self, extent: Extent) -> None:
        assert not self.overlaps(extent.first, extent.last), (
            f"{extent.first}..{extent.last} is taken: write-once is decided above the store"
        )
        if extent.first <= self.contiguous_end:
            self.contiguous_end = Lsn(extent.last + 1)
            self._absorb()
        else:
            self.sparse.insert(bisect_left(self.sparse, extent.first, key=_FIRST), extent)

    def trim(self, end: Lsn) -> None:
        if end <= self.trim_end:
            return
        self.trim_end = end
        if end > self.contiguous_end:
            self.contiguous_end = end
            self._absorb()

    def remove(self, firsts: set[Lsn], above_hole: Iterable[Extent]) -> None:
        """Forget the blocks that begin at `firsts`.  `above_hole` lists what was held from the
        lowest of them up to contiguous_end: removing one makes a hole below the rest."""
        former = list(above_hole)
        if former:
            self.contiguous_end = Lsn(max(former[0].first, self.trim_end))
        self.sparse = [one for one in (*former, *self.sparse) if one.first not in firsts]
        self._absorb()

    def _absorb(self) -> None:
        """Keeps I1 and I2: move extents that touch contiguous_end into the run."""
        taken = 0
        for extent in self.sparse:
            if extent.first > self.contiguous_end:
                break
            self.contiguous_end = Lsn(max(self.contiguous_end, extent.last + 1))
            taken += 1
        if taken:
            del self.sparse[:taken]


class Outline:
    """The picture of a scattered log: its holes mean nothing."""

    __slots__ = ("end", "trim_end")

    sparse: Sequence[Extent] = ()

    def __init__(self, trim_end: Lsn, end: Lsn) -> None:
        self.trim_end = trim_end
        self.end = max(trim_end, end)

    @property
    def contiguous_end(self) -> Lsn:
        return self.trim_end

    def add(self, extent: Extent) -> None:
        if extent.last >= self.end:
            self.end = Lsn(extent.last + 1)

    def trim(self, end: Lsn) -> None:
        self.trim_end = max(self.trim_end, end)
        self.end = max(self.trim_end, self.end)

    def lower(self, last: Extent | None) -> None:
        """The highest blocks are gone, and `last` is the highest that is left."""
        self.end = self.trim_end if last is None else Lsn(max(self.trim_end, last.last + 1))
