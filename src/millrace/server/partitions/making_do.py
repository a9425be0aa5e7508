"""What of a partition is written when the disk has no room for its documents.

A flush is all or nothing.  One that does not fit would keep the partition's row from the disk, so
that no order of the keeper is ever carried out, and its deletions, which alone make room again.  So
what needs no room, or little, is written by itself, and the flush stays as it is: all of this goes
to the disk once more with it.

  I1  The row that is written speaks of the documents that are on disk: their seqs stay, state, term
      and failover log are the partition's.  After a crash it is one whose last changes were lost.
  I2  Tombstones may come before mutations of lower seqs.  They lie above `seen` then, like what an
      undo has fetched (U3): whoever is promoted takes them along, whoever follows undoes them.
  I3  Nothing of an undo is written in parts (U2): while there is one, in memory or on disk, only
      state and term are.
  I4  What is on disk already is not written again.
"""

from typing import Final

from msgspec.structs import replace

from millrace.core.documents.document import Document
from millrace.core.documents.partition import Flush, Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.store.documents.contract import PartitionBatch

TOMBSTONES_MAX: Final = 1_000  # The room that is kept for deletions is small.


def without_documents(bucket: int, flush: Flush, disk: PartitionRow) -> PartitionBatch | None:
    """The row, and what is to be forgotten; None: the disk, whose row this is, has it."""
    if has_undo(flush, disk):  # Keeps I3.
        row = replace(disk, state=flush.row.state, term=flush.row.term, is_clean=False)
        removed: tuple[bytes, ...] = ()
    else:
        row = replace(
            flush.row,
            high=disk.high,
            seen=disk.seen,
            complete=disk.complete,
            running=disk.running,
            is_clean=False,
            last_cas=disk.last_cas,
        )
        removed = flush.removed
    if row == disk:  # Whatever is forgotten raises the purge seq.
        return None
    return PartitionBatch(bucket, flush.number, row, (), removed)


def deletions(
    bucket: int, partition: Partition, flush: Flush, row: PartitionRow
) -> PartitionBatch | None:
    """Some tombstones that the disk does not have; `row` is what it has by then."""
    if has_undo(flush, row):
        return None
    found = sorted(
        (one for one in flush.tombstones if one.seq > row.high and _is_newest(partition, one)),
        key=lambda one: one.seq,
    )[:TOMBSTONES_MAX]
    if not found:
        return None
    last_cas = max(row.last_cas, *(one.cas for one in found))
    row = replace(row, high=found[-1].seq, last_cas=last_cas)
    return PartitionBatch(bucket, flush.number, row, found)


def has_undo(flush: Flush, disk: PartitionRow) -> bool:
    return flush.is_wipe or flush.row.undo is not None or disk.undo is not None


def _is_newest(partition: Partition, tombstone: Document) -> bool:
    return partition.table.get(tombstone.key) is tombstone
