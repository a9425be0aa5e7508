"""What a producer walks: the write queue's root, then the disk, in the order of the seqs (R-K).

A view is taken in one step: first the queue's root, then the disk.  A document leaves the queue
only after it is on disk, so what is not in the root was on disk before, and nothing is missing.
The other way round a flush between the two would hide what it wrote.

  I1  Seqs rise, each comes once, none lies at or below where the walk began nor above `last`.
  I2  Every document that was current when the view was taken is met.  An older version may be met
      too, at its own seq, before the current one: duplicates are allowed, omission is not.
  I3  Of two with one seq the queue's is taken: it is what the partition holds by now.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, Protocol

from millrace.core.documents.document import DOCUMENT_BYTES, Document, Seq

SCAN_DOCUMENTS_MAX: Final = 4_096  # Read from disk at once: keeps a step within some milliseconds.


class QueuedDocuments(Protocol):
    """A root of the write queue (`write_queue.py`)."""

    @property
    def last(self) -> Seq: ...

    @property
    def size_bytes(self) -> int: ...

    def after(self, seq: Seq) -> Iterator[Document]: ...


class DiskDocuments(Protocol):
    """A read transaction of the store."""

    def scan(self, after: Seq, last: Seq, count_max: int, bytes_max: int) -> list[Document]: ...

    def close(self) -> None: ...


class View(Protocol):
    """A partition as it was: all up to `last`."""

    @property
    def last(self) -> Seq: ...

    @property
    def pinned_bytes(self) -> int: ...

    @property
    def is_from_disk(self) -> bool: ...

    def read(self, after: Seq, bytes_max: int) -> list[Document]:
        """What follows `after`, at least one if there is any; empty: all was read."""
        ...

    def close(self) -> None: ...


class MergedView:
    def __init__(self, queued: QueuedDocuments, disk: DiskDocuments | None, last: Seq) -> None:
        self.last = last
        self.pinned_bytes = queued.size_bytes  # What it may keep in memory, alone at the worst.
        self.is_from_disk = disk is not None
        self._queued: QueuedDocuments | None = queued
        self._disk = disk
        self._at = Seq(-1)  # Where `_waiting` and `_rest` stand.
        self._rest: Iterator[Document] = iter(())
        self._waiting: Document | None = None  # Taken from `_rest`, and not yet read.

    def read(self, after: Seq, bytes_max: int) -> list[Document]:
        assert self._queued is not None, "the view is closed"
        if after != self._at:
            self._rest = self._queued.after(after)
            self._waiting = next(self._rest, None)
        found = self._read_disk(after, bytes_max)
        if not found:
            found = self._take_queued(self.last, bytes_max)
        elif self._waiting is not None and self._waiting.seq <= found[-1].seq:
            found = merge(found, self._take_queued(found[-1].seq, None))
        if found:
            self._at = found[-1].seq
        return found

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
        self._disk = self._queued = self._waiting = None
        self._rest = iter(())

    def _read_disk(self, after: Seq, bytes_max: int) -> list[Document]:
        if self._disk is None:
            return []
        found = self._disk.scan(after, self.last, SCAN_DOCUMENTS_MAX, bytes_max)
        if not found:  # It is read to its end: the transaction pins pages for nothing.
            self._disk.close()
            self._disk = None
        return found

    def _take_queued(self, last: Seq, bytes_max: int | None) -> list[Document]:
        """From the queue up to `last`; the first of them whatever its size."""
        taken: list[Document] = []
        left = bytes_max
        document = self._waiting
        while document is not None and document.seq <= last:
            taken.append(document)
            document = next(self._rest, None)
            if left is not None:
                left -= DOCUMENT_BYTES + len(taken[-1].key) + len(taken[-1].value or b"")
                if left <= 0:
                    break
        self._waiting = document
        return taken


def merge(disk: list[Document], queued: list[Document]) -> list[Document]:
    """Both rise.  Keeps I3."""
    held = {document.seq for document in queued}
    kept = [document for document in disk if document.seq not in held]
    return sorted(kept + queued, key=attrgetter("seq"))
