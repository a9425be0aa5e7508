"""Runs of a stream in memory: which of its entries lie where in the commit log.

Entries of a stream are committed in their own order, so runs go up in both numbers, and one list
in order answers questions by either.  Pure, and the same for every store.

Invariants:

  I1  A run begins at or above the end of the one before, by local and by global position.
  I2  No run continues the one before in both numbers: such runs are one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from millrace.core.commit.record import StreamCommit
from millrace.types import Lsn

_FIRST: Final = attrgetter("first")
_LOCAL: Final = attrgetter("local")
_LOCAL_END: Final = attrgetter("local_end")


class RunList:
    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[StreamCommit] = ()) -> None:
        self._runs = list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def copy(self) -> "RunList":
        return RunList(self._runs)

    @property
    def first(self) -> StreamCommit | None:
        return self._runs[0] if self._runs else None

    @property
    def last(self) -> StreamCommit | None:
        return self._runs[-1] if self._runs else None

    def add(self, runs: Iterable[StreamCommit]) -> list[StreamCommit]:
        """Returns the runs of the list that are new or longer now."""
        changed: list[StreamCommit] = []
        for run in runs:
            last = self.last
            assert run.count > 0, f"{run} is empty: it has no place among runs"
            assert last is None or (run.first >= last.end and run.local >= last.local_end), (
                f"{run} does not lie above {last}: the order is decided above the store"
            )
            if last is not None and run.first == last.end and run.local == last.local_end:
                run = StreamCommit(run.version, last.local, last.first, last.count + run.count)
                self._runs.pop()
                if changed:
                    changed.pop()
            self._runs.append(run)
            changed.append(run)
        return changed

    def within(self, first: Lsn, end: Lsn) -> Iterator[StreamCommit]:
        """Runs that intersect [first, end) of the commit log, in order.  The list must not change
        meanwhile."""
        at = bisect_right(self._runs, first, key=_FIRST)
        if at and self._runs[at - 1].end > first:
            at -= 1
        for each in range(at, bisect_left(self._runs, end, key=_FIRST)):
            yield self._runs[each]

    def holding(self, local: Lsn) -> StreamCommit | None:
        """The run that has the entry at this position of the stream."""
        at = bisect_right(self._runs, local, key=_LOCAL)
        return self._runs[at - 1] if at and self._runs[at - 1].local_end > local else None

    def trim(self, local_end: Lsn) -> None:
        """Forget the runs that lie wholly below this position of the stream."""
        del self._runs[: bisect_right(self._runs, local_end, key=_LOCAL_END)]

    def take_first(self) -> StreamCommit:
        return self._runs.pop(0)

    def clear(self) -> None:
        self._runs.clear()


def place_of(run: StreamCommit | None, local: Lsn) -> Lsn | None:
    """Where the entry at this position of the stream lies, if the run has it."""
    if run is None or not run.local <= local < run.local_end:
        return None
    return Lsn(run.first + local - run.local)
