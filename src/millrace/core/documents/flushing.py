"""What of a partition is to be written next, one flush at a time (R-I).

A flush is the row and the documents of one moment, for one transaction.  The same is given again if
the write fails; nothing leaves the queue before it is on disk.

  I1  A flush has all that is not on disk, or, while an undo is being carried out, the row alone: an
      undo becomes durable as a whole (U2).  Seqs of two histories would stand in each other's
      place on disk, and a crash between two halves would lose who is still to be undone.
  I2  Tombstones leave memory when they are on disk, and their keys have not changed since (R-I.4).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from millrace.core.documents.document import Document, PartitionId
from millrace.core.documents.memory import DocumentMemory
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.documents.write_queue import QueueSnapshot, WriteQueue

NO_DOCUMENTS: Final = WriteQueue().snapshot()


class Flush(msgspec.Struct, frozen=True, eq=False):
    """Wipe first, then forget, then store."""

    number: PartitionId
    row: PartitionRow
    snapshot: QueueSnapshot
    removed: tuple[bytes, ...] = ()
    is_wipe: bool = False
    tombstones: tuple[Document, ...] = ()  # Of the snapshot.


class Flushing:
    __slots__ = ("_memory", "_number", "_removed", "_taken", "is_undoing", "is_wipe", "row_on_disk")

    def __init__(self, number: PartitionId, memory: DocumentMemory, row: PartitionRow) -> None:
        self._number = number
        self._memory = memory
        self._removed: list[bytes] = []
        self._taken: Flush | None = None
        self.is_wipe = False
        self.is_undoing = False
        self.row_on_disk = row

    def remove(self, keys: Iterable[bytes]) -> None:
        """The disk is to forget them, before it stores anything of the same flush."""
        self._removed += keys

    def wipe(self) -> None:
        self._removed.clear()
        self.is_wipe = True

    def take(self, row: PartitionRow) -> Flush | None:
        assert self._taken is None, "one flush at a time"
        if self.is_undoing:  # Keeps I1.
            if row != self.row_on_disk:
                self._taken = Flush(self._number, row, NO_DOCUMENTS)
            return self._taken
        memory = self._memory
        if memory.queue.count or self._removed or self.is_wipe or row != self.row_on_disk:
            self._taken = Flush(
                self._number,
                row,
                memory.queue.snapshot(),
                tuple(self._removed),
                self.is_wipe,
                tuple(memory.fresh_tombstones),
            )
            self._removed.clear()
            self.is_wipe = False
            memory.fresh_tombstones.clear()
        return self._taken

    def succeeded(self, flush: Flush) -> None:
        self._end(flush)
        self.row_on_disk = flush.row
        self._memory.queue.discard(flush.snapshot)
        self._memory.drop_persisted(flush.tombstones)  # Keeps I2.

    def failed(self, flush: Flush) -> None:
        self._end(flush)
        self._removed[:0] = flush.removed
        self.is_wipe |= flush.is_wipe
        self._memory.fresh_tombstones[:0] = flush.tombstones

    def _end(self, flush: Flush) -> None:
        assert flush is self._taken, "a flush that is not under way"
        self._taken = None
