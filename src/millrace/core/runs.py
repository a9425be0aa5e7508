"""The records of a log as one line, whatever lies between its epochs.

Positions of a sequenced log are consecutive within an epoch only, so two of them say nothing of how
many records lie between.  Put end to end, the runs of all epochs are a line on which arithmetic
holds again: a *flat* position is one on that line.  Of a chain log, which is one run, each flat
position is the position itself.

  I1  `flat` and `lsn` keep the order, and `flat(lsn(n)) == n`.
  I2  `lsn(n)` lies right behind the record before it: a range that ends there takes exactly the
      records before n, and one that begins there steps over what follows without any.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from millrace.lsn import epoch_of
from millrace.types import Epoch, Lsn, Run


class Runs:
    """In order, without overlap; empty ones are left out.  `begin` and `end` are flat."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = tuple(run for run in runs if run.first < run.end)
        self._firsts = [run.first for run in self._runs]
        self.begin: int = self._firsts[0] if self._runs else 0
        lengths = (run.end - run.first for run in self._runs)
        *self._flats, self.end = accumulate(lengths, initial=self.begin)

    @property
    def count(self) -> int:
        """Positions in all runs: the records, and what was filled between them."""
        return self.end - self.begin

    def flat(self, lsn: Lsn) -> int:
        """How far on the line all that lies below the position reaches."""
        at = bisect_right(self._firsts, lsn) - 1
        if at < 0:
            return self.begin
        run = self._runs[at]
        return self._flats[at] + min(lsn, run.end) - run.first

    def lsn(self, flat: int) -> Lsn:
        """Keeps I2."""
        assert self._runs and self.begin <= flat <= self.end, f"{flat} is not on the line"
        at = max(0, bisect_left(self._flats, flat) - 1)
        return Lsn(self._runs[at].first + flat - self._flats[at])

    def within(self, first: Lsn, end: Lsn) -> int:
        """How many positions of [first, end) are in runs."""
        return max(0, self.flat(end) - self.flat(first))


def joined(found: Iterable[Run]) -> list[Run]:
    """What several nodes have found, each of which holds a part: one run for each epoch."""
    known: dict[Epoch, Run] = {}
    for run in found:
        epoch = epoch_of(run.first)
        other = known.get(epoch, run)
        known[epoch] = Run(min(other.first, run.first), max(other.end, run.end))
    return [known[epoch] for epoch in sorted(known)]
