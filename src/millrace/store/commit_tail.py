"""What is committed of an open log: the context, and the newest runs in memory.

Readers at the tail and the next commit need the newest runs alone; older ones are on disk
(`commit_table.py`).  Of those only the oldest is kept here, as it says where the stream begins.

Invariants:

  I1  A run that is not in `runs` is durable, complete, and below all that are.
  I2  The last run is in memory: it may still grow.
  I3  Durable runs do not keep `runs` above its bound.
  I4  `slot`, under which the runs are filed, is another one after they were forgotten: what is left
      of them on disk is never met.
"""

from collections.abc import Callable, Sequence

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.store.commit_runs import RunList
from millrace.types import Lsn

# (lowest run on disk, where in the commit log to stop, position of the stream): the lowest run
# that has anything at or above it.
Seek = Callable[[StreamCommit, Lsn, Lsn], StreamCommit | None]


class CommitTail:
    __slots__ = ("_durable_end", "context", "oldest", "runs", "slot")

    def __init__(self, context: CommitContext | None = None, slot: int = 0) -> None:
        self.context = context
        self.slot = slot  # 0: there never was a run.
        self.runs = RunList()
        self.oldest: StreamCommit | None = None  # If it is on disk alone.
        self._durable_end = Lsn(0)

    def load(self, first: StreamCommit, last: StreamCommit) -> None:
        """These are the outer ones of those on disk."""
        self.runs.add([last])
        self._durable_end = last.end
        if first != last:
            self.oldest = first

    @property
    def first(self) -> StreamCommit | None:
        return self.oldest or self.runs.first

    def commit(
        self, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> list[StreamCommit]:
        """The rows that are new or other than before."""
        self.context = context
        return self.runs.add(runs)

    def settled(self, slot: int, end: Lsn, runs_max: int) -> None:
        """All runs of this slot below `end` are durable."""
        if slot != self.slot:
            return
        self._durable_end = max(self._durable_end, end)
        while len(self.runs) > max(runs_max, 1):  # Keeps I2 and I3.
            first = self.runs.first
            assert first is not None
            if first.end > self._durable_end:
                return
            self.oldest = self.oldest or first
            self.runs.take_first()

    def trim(self, local_end: Lsn, seek: Seek) -> None:
        held = self.runs.first
        self.runs.trim(local_end)
        if self.oldest is None or self.oldest.local_end > local_end or held is None:
            return
        is_all = held.local <= local_end  # What is on disk alone lies below it.
        self.oldest = None if is_all else seek(self.oldest, held.first, local_end)

    def forget(self) -> int:
        """Returns the slot under which the runs were filed."""
        slot, self.slot = self.slot, 0
        self.context = self.oldest = None
        self.runs.clear()
        self._durable_end = Lsn(0)
        return slot
