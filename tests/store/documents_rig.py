"""LMDB's store of documents with its owner's loop in the test's own thread."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from millrace.store.documents.layout import Tables, find_slot, open_tables, place_of, slot_prefix
from millrace.store.documents.lmdb_documents import LmdbDocuments, open_documents
from millrace.store.layout import Transaction
from tests.conformance.document_store_rig import BUCKET, PARTITION

WAIT_S = 20.0


class LmdbDocumentRig:
    def __init__(self, path: Path, map_bytes: int) -> None:
        self.path = path
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._map_bytes = map_bytes
        self.store = self.open()

    def open(self) -> LmdbDocuments:
        self.calls = queue.SimpleQueue()
        return open_documents(self.path, self.calls.put, self._map_bytes)

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self.calls.get(timeout=WAIT_S)()

    def crash(self) -> None:
        self.store.abandon()
        self.store = self.open()

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @contextmanager
    def tampering(self) -> Iterator[tuple[Transaction, Tables]]:
        """The store is closed, its tables are changed, and it is opened again."""
        self.store.close()
        with lmdb.open(str(self.path), map_size=self._map_bytes, max_dbs=8) as environment:
            tables = open_tables(environment)
            with environment.begin(write=True) as transaction:
                yield transaction, tables
        self.store = self.open()

    def damage(self, key: bytes) -> None:
        with self.tampering() as (transaction, tables):
            slot_key = slot_prefix(find_slot(transaction, tables, BUCKET, PARTITION)) + key
            place = place_of(slot_key, transaction.get(slot_key, b"", db=tables.keys))
            record = transaction.get(place, b"", db=tables.seqs)
            transaction.put(place, record[:-1] + bytes([record[-1] ^ 1]), db=tables.seqs)
