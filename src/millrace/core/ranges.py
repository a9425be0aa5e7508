"""Which positions of a log are taken: a solid prefix and the islands above it.

Blocks of one log arrive nearly in order, so the prefix takes in almost everything and the list
of islands stays as short as the number of blocks in flight.
"""

from bisect import bisect_right, insort

from millrace.types import LSN_MAX, Lsn


class TakenRanges:
    """[trim_end, contiguous_end) is taken; `islands` are the (first, end) above, in order."""

    __slots__ = ("contiguous_end", "islands", "trim_end")

    def __init__(self, trim_end: Lsn, contiguous_end: Lsn) -> None:
        assert trim_end <= contiguous_end
        self.trim_end = trim_end
        self.contiguous_end = contiguous_end
        self.islands: list[tuple[Lsn, Lsn]] = []

    @property
    def end(self) -> Lsn:
        return self.islands[-1][1] if self.islands else self.contiguous_end

    def overlaps(self, first: Lsn, end: Lsn) -> bool:
        if first < self.contiguous_end:
            return True
        if not self.islands:
            return False
        at = bisect_right(self.islands, (first, end))
        if at and self.islands[at - 1][1] > first:
            return True
        return at < len(self.islands) and self.islands[at][0] < end

    def holds(self, lsn: Lsn) -> bool:
        return self.trim_end <= lsn and self.overlaps(lsn, Lsn(lsn + 1))

    def covers(self, first: Lsn, end: Lsn) -> bool:
        """Whether every position of [first, end) is taken."""
        if first < self.contiguous_end:
            return end <= self.contiguous_end
        at = bisect_right(self.islands, (first, LSN_MAX))
        while at and first < end and self.islands[at - 1][0] <= first < self.islands[at - 1][1]:
            first = self.islands[at - 1][1]
            at = bisect_right(self.islands, (first, LSN_MAX))
        return first >= end

    def copy(self) -> "TakenRanges":
        twin = TakenRanges(self.trim_end, self.contiguous_end)
        twin.islands = list(self.islands)
        return twin

    def take(self, first: Lsn, end: Lsn) -> None:
        assert not self.overlaps(first, end), f"{first}..{end - 1} is taken"
        if first == self.contiguous_end:
            self.contiguous_end = end
            self._absorb()
        else:
            insort(self.islands, (first, end))

    def release(self, first: Lsn, end: Lsn) -> None:
        """Give a block's range back; what lies above it becomes an island."""
        if first < self.contiguous_end:
            assert end <= self.contiguous_end
            if end < self.contiguous_end:
                self.islands.insert(0, (end, self.contiguous_end))
            self.contiguous_end = max(first, self.trim_end)
            return
        at = bisect_right(self.islands, (first, LSN_MAX)) - 1
        low, high = self.islands[at]
        assert low <= first and end <= high, f"{first}..{end - 1} is not taken"
        left = [(low, first)] if low < first else []
        right = [(end, high)] if end < high else []
        self.islands[at : at + 1] = left + right

    def trim(self, end: Lsn) -> None:
        self.trim_end = max(self.trim_end, end)
        if self.contiguous_end < self.trim_end:
            self.contiguous_end = self.trim_end
            while self.islands and self.islands[0][1] <= self.trim_end:
                self.islands.pop(0)
            if self.islands and self.islands[0][0] < self.trim_end:
                self.contiguous_end = self.islands.pop(0)[1]
            self._absorb()

    def _absorb(self) -> None:
        while self.islands and self.islands[0][0] == self.contiguous_end:
            self.contiguous_end = self.islands.pop(0)[1]
