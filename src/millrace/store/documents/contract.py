"""What a node asks of the store of its documents (seed 001, "Couchstore").

Of each document there is one record, filed by key and by the seq of its newest version.  A flush
is one write: documents and the row that speaks of them, all or nothing.  The invariants, which
`tests/conformance/document_store_suite.py` checks of every store:

  I1  Writes and drops take effect in call order, each whole or not at all.  After a crash the
      store holds those of a beginning of that order, and at least all that were answered with None.
  I2  `done` is called once, on the owner's loop, never from inside the call, in call order.
  I3  A write that fails changed nothing, unless the store failed for good: then it may have.
      Writes queued behind it that share a partition with it fail too, until it is told: their rows
      may speak of documents that are not there.
  I4  By seq there is exactly the newest version of each key.  "Newest" is what was written last,
      whatever its seq: a rollback goes back (R-B.3).  Until a rollback is over two keys may have
      the same seq, and both are there.
  I5  A document or a row is served only if its checksum matches; a damaged one raises
      CorruptDocument.
  I6  A view shows one moment between two writes, however long it is held.
  I7  Rows, removals, purges, wipes and drops are kept even when the disk is too full for
      documents; deletions find room longer than mutations do.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from millrace.core.documents.document import Document, PartitionId, Seq
from millrace.core.documents.partition_row import PartitionRow
from millrace.errors import Corruption
from millrace.store.contract import Done, StoreFailed, Usage


class CorruptDocument(Corruption):
    """A stored document or a partition's row is damaged; a replica has another copy."""

    code = "corrupt_document"


class PartitionBatch(msgspec.Struct, frozen=True):
    """What changes in one partition, in the order of the fields: first wiped, documents last.

    `documents` are gone through once, in the writer's thread, so they may come from a snapshot of
    the write queue.  Each has its value.  Of two with one key the latter counts.
    """

    bucket: int
    partition: PartitionId
    row: PartitionRow
    documents: Iterable[Document] = ()  # In the order of their seqs.
    removed: Sequence[bytes] = ()  # Keys to forget, as if they had never been.
    purged: Sequence[Document] = ()  # Tombstones to forget, unless their key has another version.
    is_wipe: bool = False


class DiskView(Protocol):
    """A partition as it was when the view was taken.  It keeps the disk from reusing what it
    shows: hold it for a short time, and close it once."""

    def scan(self, after: Seq, last: Seq, count_max: int, bytes_max: int) -> list[Document]:
        """Documents and tombstones of (after, last] in the order of their seqs; empty: there are
        no more.  Up to about these bounds, but at least one, and never some of those that share a
        seq.  Stops before a damaged one; raises CorruptDocument when that is the first."""

    def close(self) -> None: ...


class DocumentStore(Protocol):
    @property
    def failure(self) -> StoreFailed | None:
        """Why it writes nothing any more, for good."""

    def buckets(self) -> list[int]:
        """Those of which there is a partition."""

    def rows(self, bucket: int) -> dict[PartitionId, PartitionRow]:
        """Of all its partitions but those whose row is damaged (`damaged`)."""

    def damaged(self, bucket: int) -> list[PartitionId]:
        """Whose row cannot be read: they can be dropped, and made anew."""

    def write(self, batches: Sequence[PartitionBatch], done: Done) -> None:
        """All of it in one transaction, off the loop's thread, made durable before `done` is told
        None.  Writes that are queued meanwhile may share a transaction."""

    def drop(self, bucket: int, partition: PartitionId, done: Done) -> None:
        """The partition is gone, and may be made anew at once; its room comes back by and by."""

    def get(self, bucket: int, partition: PartitionId, key: bytes) -> Document | None:
        """The newest version that is durable, tombstones included; the other reads likewise."""

    def get_many(
        self, bucket: int, partition: PartitionId, keys: Sequence[bytes]
    ) -> list[Document]:
        """Those that are there, in the order of `keys`."""

    def view(self, bucket: int, partition: PartitionId) -> DiskView: ...

    def load(
        self, bucket: int, partition: PartitionId, after: Seq, count_max: int, with_values: bool
    ) -> list[Document]:
        """For warming up: documents above `after` in the order of their seqs, without tombstones;
        empty: there are no more.  Without values (None) the disk reads metadata alone.  Bounded as
        `scan` is, and so are damaged ones."""

    def tombstones(
        self, bucket: int, partition: PartitionId, before_s: int, count_max: int
    ) -> list[Document]:
        """For purging: tombstones from the lowest seq on, up to the first that was not made before
        `before_s`."""

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Write all that is queued, tell everybody, and let go of the disk."""
