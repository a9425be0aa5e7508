"""The store of a node's documents: LMDB, with one thread that writes.

Everything here runs on the thread that owns the store, normally a node's event loop.  A write is
queued for the writer's thread (`writer.py`); reads see what is committed, and nothing is kept in
memory: that is the partition's business.

Invariants beyond those of the contract:

  I1  Views that are still held when the store is closed show nothing more, and may still be closed.
  I2  What LMDB says of a damaged page is told as CorruptDocument: it costs who lies there, and
      nobody else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from millrace.core.documents.document import Document, PartitionId, Seq
from millrace.core.documents.partition_row import PartitionRow
from millrace.limits import STORE_MAP_BYTES
from millrace.store import layout as log_layout
from millrace.store.committer import CallSoon
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.documents import reading
from millrace.store.documents.contract import CorruptDocument, PartitionBatch
from millrace.store.documents.directory import DocumentsFolder, open_folder
from millrace.store.documents.layout import (
    damage_told,
    decode_row,
    find_slot,
    row_key,
    split_row_key,
)
from millrace.store.documents.reading import LmdbView
from millrace.store.documents.writer import Drop, Write, Writer
from millrace.store.room import Room


class LmdbDocuments:
    def __init__(self, folder: DocumentsFolder, call_soon: CallSoon) -> None:
        self.folder = folder
        self._environment = folder.environment
        self._tables = folder.tables
        # Room goes through the tables, whichever they are, to count their pages.
        tables = cast("log_layout.Tables", folder.tables)
        self._room = Room(folder.data_file, self._environment, tables)
        self._writer = Writer(self._environment, self._tables, self._room, call_soon)
        self._is_closed = False

    # -- What an operator sees ------------------------------------------------------------------

    @property
    def commits(self) -> int:
        return self._writer.commits

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store takes no writes any more; only a restart helps."""
        return self._writer.failure

    def usage(self) -> Usage:
        return self._room.usage(0)

    # -- Writing --------------------------------------------------------------------------------

    def write(self, batches: Sequence[PartitionBatch], done: Done) -> None:
        assert not self._is_closed, "the store is closed"
        self._writer.submit(Write(tuple(batches), done))

    def drop(self, bucket: int, partition: PartitionId, done: Done) -> None:
        assert not self._is_closed, "the store is closed"
        self._writer.submit(Drop(bucket, partition, done))

    # -- Reading (keeps I2) ---------------------------------------------------------------------

    def buckets(self) -> list[int]:
        found: list[int] = []
        with (
            damage_told(),
            self._environment.begin() as transaction,
            transaction.cursor(db=self._tables.rows) as cursor,
        ):
            while cursor.set_range(row_key(found[-1] + 1 if found else 0, 0)):
                found.append(split_row_key(cursor.key())[0])
        return found

    def rows(self, bucket: int) -> dict[PartitionId, PartitionRow]:
        found = self._rows(bucket).items()
        return {number: row for number, row in found if isinstance(row, PartitionRow)}

    def damaged(self, bucket: int) -> list[PartitionId]:
        found = self._rows(bucket).items()
        return [number for number, row in found if isinstance(row, CorruptDocument)]

    def _rows(self, bucket: int) -> dict[PartitionId, PartitionRow | CorruptDocument]:
        rows: dict[PartitionId, PartitionRow | CorruptDocument] = {}
        with (
            damage_told(),
            self._environment.begin() as transaction,
            transaction.cursor(db=self._tables.rows) as cursor,
        ):
            is_found = cursor.set_range(row_key(bucket, 0))
            for key, record in cursor.iternext() if is_found else ():
                found, partition = split_row_key(key)
                if found != bucket:
                    break
                try:
                    rows[PartitionId(partition)] = decode_row(key, record)
                except CorruptDocument as error:
                    rows[PartitionId(partition)] = error
        return rows

    def get(self, bucket: int, partition: PartitionId, key: bytes) -> Document | None:
        found = self.get_many(bucket, partition, (key,))
        return found[0] if found else None

    def get_many(
        self, bucket: int, partition: PartitionId, keys: Sequence[bytes]
    ) -> list[Document]:
        with damage_told(), self._environment.begin() as transaction:
            slot = find_slot(transaction, self._tables, bucket, partition)
            return reading.find_many(transaction, self._tables, slot, keys)

    def view(self, bucket: int, partition: PartitionId) -> LmdbView:
        transaction = self._environment.begin()
        try:
            with damage_told():
                slot = find_slot(transaction, self._tables, bucket, partition)
        except BaseException:
            transaction.abort()
            raise
        return LmdbView(transaction, self._tables, slot)

    def load(
        self, bucket: int, partition: PartitionId, after: Seq, count_max: int, with_values: bool
    ) -> list[Document]:
        if with_values:
            with damage_told(), self._environment.begin() as transaction:
                slot = find_slot(transaction, self._tables, bucket, partition)
                return reading.load(transaction, self._tables, slot, after, count_max)
        with damage_told(), self._environment.begin(buffers=True) as views:
            slot = find_slot(views, self._tables, bucket, partition)
            return reading.load_metadata(views, self._tables, slot, after, count_max)

    def tombstones(
        self, bucket: int, partition: PartitionId, before_s: int, count_max: int
    ) -> list[Document]:
        with damage_told(), self._environment.begin() as transaction:
            slot = find_slot(transaction, self._tables, bucket, partition)
            return reading.find_tombstones(transaction, self._tables, slot, before_s, count_max)

    # -- Closing --------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.stop()
        self._writer.deliver()
        self._let_go()

    def abandon(self) -> None:
        """Stop as if the process had died: commit nothing more, answer nobody.  For a node that
        must not go on, and to show what a crash leaves."""
        if not self._is_closed:
            self._is_closed = True
            self._writer.stop(discards=True)
            self._let_go()

    def _let_go(self) -> None:
        self._room.close()
        self.folder.close()


def open_documents(
    path: Path, call_soon: CallSoon, map_bytes: int = STORE_MAP_BYTES
) -> LmdbDocuments:
    """Open the documents in a folder of the node's data directory, making it if there is none.
    `call_soon` runs a call on the owner's loop, from any thread."""
    return LmdbDocuments(open_folder(path, map_bytes), call_soon)
