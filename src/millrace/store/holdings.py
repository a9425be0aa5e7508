"""What the open logs hold, in memory: changed by each mutation at once, before it is written.

The pictures, the tail buffer and what is amended are changed together here, so that a reader sees
every queued mutation; what the disk is to do about it is the store's business.

Invariant:

  I1  A block that is taken out is in no picture, not in the tail, and nothing of it is amended.
"""

from collections.abc import Iterable

from millrace.store.layout import IndexEntry
from millrace.store.open_log import OpenLog
from millrace.store.picture import Outline, Picture
from millrace.store.reader import Reader
from millrace.store.tail import TailBuffer, TailEntry
from millrace.types import FIRST_LSN, Extent, Lsn


class Holdings:
    def __init__(self, reader: Reader, tail_bytes: int) -> None:
        self._reader = reader
        self.tail = TailBuffer(tail_bytes)

    def trim(self, log: OpenLog, end: Lsn) -> None:
        for entry in list(log.tail.within(FIRST_LSN, end)):
            if entry.block.end <= end:
                self.tail.forget(entry)
        log.picture.trim(end)

    def forget(self, log: OpenLog) -> None:
        """The log is dropped."""
        for entry in list(log.tail.within(FIRST_LSN, log.picture.end)):
            self.tail.forget(entry)

    def take_out(self, log: OpenLog, firsts: set[Lsn]) -> list[Extent]:
        """Take out the blocks that begin at `firsts`; returns those that were there.  Once they
        are known to be gone from disk too, `lower` is to be called."""
        if isinstance(log.picture, Picture):
            found = self._take_out_of_picture(log, log.picture, firsts)
        else:
            found = [entry.extent for entry in self._reader.entries_at(log, sorted(firsts))]
        for extent in found:
            log.amended.pop(extent.first, None)
            entry = log.tail.get(extent.first)
            if entry is not None:
                self.tail.forget(entry)
        return found

    def _take_out_of_picture(
        self, log: OpenLog, picture: Picture, firsts: set[Lsn]
    ) -> list[Extent]:
        low = min(firsts)
        above: list[Extent] = []
        if low < picture.contiguous_end:
            run = self._reader.entries(log, low, picture.contiguous_end, None)
            above = [entry.extent for entry in run]
        found = [one for one in (*above, *picture.sparse) if one.first in firsts]
        inside = [one.first for one in found if one.first < picture.contiguous_end]
        picture.remove(firsts, [one for one in above if inside and one.first >= min(inside)])
        return found

    def lower(self, log: OpenLog, removed: list[Extent]) -> None:
        """A scattered log from which these were taken out may end earlier now."""
        picture = log.picture
        if isinstance(picture, Outline) and any(one.last + 1 == picture.end for one in removed):
            picture.lower(self._reader.last(log))

    def amend(self, log: OpenLog, entries: Iterable[IndexEntry]) -> None:
        for index in entries:
            first = index.extent.first
            log.amended[first] = index
            entry = log.tail.get(first)
            if entry is not None:
                entry.index = index

    def uncommitted(self, log: OpenLog, firsts: Iterable[Lsn]) -> list[TailEntry]:
        """Those of the blocks that begin at `firsts` that may still fail to be stored."""
        found = (log.tail.get(first) for first in firsts)
        return [entry for entry in found if entry is not None and not entry.is_committed]
