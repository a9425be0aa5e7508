"""Reading committed entries: runs and blocks, each in memory or on disk, as one.

Readers at the tail find everything in memory, so a read transaction begins only when something on
disk is asked for.

Invariant:

  I1  A reader sees every queued mutation: below the oldest run that is in memory the disk's are
      read, from the oldest that is not trimmed.
"""

from collections.abc import Callable, Iterator

from millrace.core.commit.record import StreamCommit
from millrace.store import reading
from millrace.store.commit_runs import place_of
from millrace.store.commit_table import first_above, runs_within
from millrace.store.layout import Tables, ViewTransaction
from millrace.store.open_log import OpenLog
from millrace.store.shipment import Fetch
from millrace.store.tail import TailEntry
from millrace.types import Block, Extent, Lsn

Snapshot = Callable[[], ViewTransaction]  # The same at each call, begun at the first.
_Value = TailEntry | memoryview


class StoredStream:
    """One stream in a snapshot; see `committed.StreamView`."""

    def __init__(self, log: OpenLog, tables: Tables, snapshot: Snapshot, *, copies: bool) -> None:
        self._log = log
        self._tables = tables
        self._snapshot = snapshot
        self._copies = copies
        self._fetch: Fetch | None = None

    @property
    def mapped(self) -> int:
        """How many of the blocks that were read lie in the map."""
        return 0 if self._fetch is None else self._fetch.mapped

    def runs(self, first: Lsn, end: Lsn) -> Iterator[StreamCommit]:
        commits = self._log.commits
        oldest, held = commits.oldest, commits.runs.first
        if oldest is not None and held is not None and first < held.first:
            start, stop = max(first, oldest.first), min(end, held.first)
            yield from runs_within(self._snapshot(), self._tables, commits.slot, start, stop)
        yield from commits.runs.within(first, end)

    def locate(self, local: Lsn) -> Lsn | None:
        commits = self._log.commits
        if local < self._log.picture.trim_end:
            return None
        run, oldest, held = commits.runs.holding(local), commits.oldest, commits.runs.first
        if oldest is not None and held is not None and local < held.local:
            run = first_above(
                self._snapshot(), self._tables, commits.slot, oldest, held.first, local
            )
        return place_of(run, local)

    def entries(self, first: Lsn, end: Lsn) -> Iterator[tuple[Lsn, _Value]]:
        log = self._log
        start = max(first, log.picture.trim_end)
        if start < log.tail.floor:
            yield from reading.index_values(self._snapshot(), self._tables, log, first, end)
        elif start < end:
            for entry in log.tail.within(start, end):
                yield entry.block.first, entry

    def extent(self, first: Lsn, entry: _Value) -> Extent:
        return reading.index_of(self._log, first, entry).extent

    def read(self, first: Lsn, entry: _Value) -> Block:
        if isinstance(entry, TailEntry):
            return entry.block
        if self._fetch is None:
            snapshot = self._snapshot()
            self._fetch = Fetch(snapshot, self._tables, self._log, copies=self._copies)
        return self._fetch(first)
