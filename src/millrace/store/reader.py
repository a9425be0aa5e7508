"""Read transactions: begun, bounded, and ended before the map goes away.

A mapped scan pins the pages it saw: LMDB cannot reuse them until the scan is released.  So the
number of such scans is bounded, and beyond the bound blocks are copied.

Invariants:

  I1  At most `scans_max` read transactions outlive a call.
  I2  The directory is closed once the store is and no scan is outstanding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import lmdb

from millrace.errors import CorruptStore
from millrace.store import reading
from millrace.store.directory import DataDirectory
from millrace.store.layout import IndexEntry, ViewTransaction, block_key
from millrace.store.open_log import OpenLog
from millrace.store.weighing import weigh
from millrace.types import Block, Extent, Lsn, Weight


class Reader:
    def __init__(self, directory: DataDirectory, scans_max: int) -> None:
        self.scans = 0
        self._directory = directory
        self._tables = directory.tables
        self._scans_max = scans_max
        self._is_closing = False

    @contextmanager
    def snapshot(self) -> Iterator[ViewTransaction]:
        transaction = self._begin()
        try:
            yield transaction
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        finally:
            transaction.abort()

    def _begin(self) -> ViewTransaction:
        try:
            return self._directory.environment.begin(buffers=True)
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: lmdb.Error) -> CorruptStore:
        return CorruptStore(f"{self._directory.path} cannot be read: {error}")

    def block_at(self, log: OpenLog, lsn: Lsn) -> Block | None:
        if lsn < log.picture.trim_end:
            return None
        entry = log.tail.holding(lsn)
        if entry is not None:
            return entry.block
        if lsn >= log.tail.floor:
            return None
        with self.snapshot() as transaction:
            first = reading.start_of(transaction, self._tables, log.slot, lsn)
            data = transaction.get(block_key(log.slot, first), db=self._tables.blocks)
            if data is None or first in log.removed:
                return None
            return reading.stored_block(log, first, bytes(data))

    def scan(self, log: OpenLog, first: Lsn, end: Lsn, bytes_max: int) -> reading.BlockScan:
        first = max(first, log.picture.trim_end)
        if first >= log.tail.floor:
            return reading.BlockScan(reading.from_memory(log, first, end, bytes_max))
        copies = self.scans >= self._scans_max
        transaction = self._begin()
        mapped = 0
        try:
            blocks, mapped = reading.from_disk(
                transaction, self._tables, log, first, end, bytes_max, copies
            )
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        finally:
            if not mapped:
                transaction.abort()
        if not mapped:
            return reading.BlockScan(blocks)
        self.scans += 1
        return reading.BlockScan(blocks, transaction, self._released)

    def _released(self) -> None:
        self.scans -= 1
        if self._is_closing and not self.scans:
            self._directory.close()

    def close(self) -> None:
        """Close the directory, now or with the last scan."""
        self._is_closing = True
        if not self.scans:
            self._directory.close()

    def entries(self, log: OpenLog, first: Lsn, end: Lsn, limit: int | None) -> list[IndexEntry]:
        if first >= end:
            return []
        with self.snapshot() as transaction:
            found = reading.entries(transaction, self._tables, log, first, end)
            return list(islice(found, limit))

    def find_time(self, log: OpenLog, timestamp_us: int) -> Lsn:
        with self.snapshot() as transaction:
            return reading.find_time(transaction, self._tables, log, timestamp_us)

    def find_size(self, log: OpenLog, bytes_kept: int) -> Lsn:
        with self.snapshot() as transaction:
            return reading.find_size(transaction, self._tables, log, bytes_kept)

    def weigh(self, log: OpenLog, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        with self.snapshot() as transaction:

            def extents(begin: Lsn, stop: Lsn) -> Iterator[Extent]:
                for entry in reading.entries(transaction, self._tables, log, begin, stop):
                    yield entry.extent

            return weigh(extents, first, end, pieces)
