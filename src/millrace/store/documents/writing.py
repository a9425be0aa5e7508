"""One write transaction: what a flush, a rollback or a drop does to the tables.

Everything is looked up in the transaction itself, so nothing has to be taken back when it fails.
Documents of a batch are filed in bulk, in the order of the table that is written: neighbours lie
on the same page, and the library goes through them without coming back to the interpreter.

  I1  Old versions leave `seqs` before new ones come: a rollback may swap the seqs of two keys.
  I2  Deletion of what is doomed is bounded by count and by time.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from millrace.core.documents.document import Document, PartitionId
from millrace.limits import RECLAIM_TIME_MS
from millrace.store.documents.contract import CorruptDocument, PartitionBatch
from millrace.store.documents.layout import (
    KIND_AT,
    NO_SLOT,
    SLOT_BYTES,
    Tables,
    check_row,
    encode_document,
    encode_made,
    encode_row,
    encode_version,
    find_slot,
    place_of,
    place_prefix,
    row_key,
    slot_of,
    slot_prefix,
)
from millrace.store.layout import Transaction

CLOCK_STRIDE_ENTRIES: Final = 64  # Deleted between two looks at the clock.


class Writing:
    def __init__(self, transaction: Transaction, tables: Tables, next_slot: int) -> None:
        self._transaction = transaction
        self._tables = tables
        self.next_slot = next_slot
        self.deleted = 0  # Records that left: there may be room again.

    def apply(self, batch: PartitionBatch, documents: Sequence[Document]) -> None:
        """`documents` are the batch's."""
        slot = find_slot(self._transaction, self._tables, batch.bucket, batch.partition)
        if batch.is_wipe and slot:
            self._doom(slot)
        if batch.is_wipe or not slot:
            slot, self.next_slot = self.next_slot, self.next_slot + 1
        prefix = slot_prefix(slot)
        if batch.removed:
            self._remove([prefix + key for key in batch.removed])
        if batch.purged:
            self._purge(prefix, batch.purged)
        if documents:
            self._put(slot, documents)
        key = row_key(batch.bucket, batch.partition)
        self._transaction.put(key, encode_row(key, slot, batch.row), db=self._tables.rows)

    def drop(self, bucket: int, partition: PartitionId) -> None:
        try:
            slot = find_slot(self._transaction, self._tables, bucket, partition)
        except CorruptDocument:
            slot = (
                NO_SLOT  # Whose documents it had is not known: their room is lost, nobody else's.
            )
        if slot:
            self._doom(slot)
        self._transaction.delete(row_key(bucket, partition), db=self._tables.rows)

    def _put(self, slot: int, documents: Sequence[Document]) -> None:
        prefix, tables = slot_prefix(slot), self._tables
        newest = {prefix + document.key: document for document in documents}
        versions = sorted(
            (slot_key, encode_version(document.seq, document.kind))
            for slot_key, document in newest.items()
        )
        records: list[tuple[bytes, bytes]] = []
        tombs: list[tuple[bytes, bytes]] = []
        for document in newest.values():
            place = place_prefix(slot, document.seq) + document.key
            records.append((place, encode_document(place, document)))
            if document.kind:
                tombs.append((place, encode_made(document.expiry_s)))
        records.sort()
        self._forget_versions([slot_key for slot_key, _ in versions])
        self._put_all(tables.keys, versions)
        self._put_all(tables.seqs, records)
        if tombs:
            self._put_all(tables.tombstones, sorted(tombs))

    def _put_all(self, table: Any, entries: list[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=table) as cursor:
            cursor.putmulti(entries)

    def _remove(self, slot_keys: list[bytes]) -> None:
        for slot_key in self._forget_versions(sorted(slot_keys)):
            self._transaction.delete(slot_key, db=self._tables.keys)

    def _purge(self, prefix: bytes, tombstones: Iterable[Document]) -> None:
        wanted = {
            prefix + one.key: encode_version(one.seq, one.kind) for one in tombstones if one.kind
        }
        with self._transaction.cursor(db=self._tables.keys) as cursor:
            found = cursor.getmulti(sorted(wanted))
        self._remove([slot_key for slot_key, version in found if wanted[slot_key] == version])

    def _forget_versions(self, slot_keys: list[bytes]) -> list[bytes]:
        """The documents leave `seqs`; those of the keys that there are.  Keeps I1."""
        with self._transaction.cursor(db=self._tables.keys) as cursor:
            found: list[tuple[bytes, bytes]] = cursor.getmulti(slot_keys)
        delete, seqs = self._transaction.delete, self._tables.seqs
        for place in sorted(place_of(slot_key, version) for slot_key, version in found):
            delete(place, db=seqs)
        for slot_key, version in found:
            if version[KIND_AT]:
                delete(place_of(slot_key, version), db=self._tables.tombstones)
        self.deleted += len(found)
        return [slot_key for slot_key, _ in found]

    # -- What is dropped or wiped ---------------------------------------------------------------

    def _doom(self, slot: int) -> None:
        self._transaction.put(slot_prefix(slot), b"", db=self._tables.doomed)

    @property
    def has_doomed(self) -> bool:
        return bool(self._transaction.stat(self._tables.doomed)["entries"])

    def reclaim(self, entries_max: int) -> None:
        """Delete a portion of what is doomed."""
        budget = _Budget(entries_max)
        tables = self._tables
        while self.has_doomed:
            with self._transaction.cursor(db=tables.doomed) as cursor:
                cursor.first()
                slot = cursor.key()
            for table in (tables.keys, tables.tombstones, tables.seqs):
                if not self._reclaim_table(table, slot, budget):
                    return
            self._transaction.delete(slot, db=tables.doomed)

    def _reclaim_table(self, table: Any, slot: bytes, budget: "_Budget") -> bool:
        """Whether nothing of the slot is left in this table."""
        with self._transaction.cursor(db=table) as cursor:
            is_found = cursor.set_range(slot)
            while is_found and cursor.key()[:SLOT_BYTES] == slot:
                if not budget.take():
                    return False
                is_found = cursor.delete() and bool(cursor.key())  # It stands on the next one.
                self.deleted += 1
        return True


class _Budget:
    """Documents whose pages are cold cost a disk read each to free."""

    def __init__(self, entries_max: int) -> None:
        self._left = entries_max
        self._deadline = time.monotonic() + RECLAIM_TIME_MS / 1000

    def take(self) -> bool:
        if self._left % CLOCK_STRIDE_ENTRIES == 0 and time.monotonic() > self._deadline:
            self._left = 0
        self._left -= 1
        return self._left >= 0


def find_next_slot(transaction: Transaction, tables: Tables) -> int:
    """Above all that anything is filed under, even if its row cannot be read (layout, I4)."""
    highest = 0
    for table in (tables.keys, tables.seqs, tables.tombstones, tables.doomed):
        with transaction.cursor(db=table) as cursor:
            if cursor.last():
                highest = max(highest, slot_of(cursor.key()))
    with transaction.cursor(db=tables.rows) as cursor:
        for key, record in cursor.iternext():
            with suppress(CorruptDocument):
                check_row(key, record)
                highest = max(highest, slot_of(record))
    return highest + 1
