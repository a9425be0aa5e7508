"""Read transactions: begun, bounded, and ended before the map goes away.

A mapped scan pins the pages it saw: LMDB cannot reuse them until the scan is released.  So the
number of such scans is bounded, and beyond the bound blocks are copied.

Invariants:

  I1  At most `scans_max` read transactions outlive a call.
  I2  The directory is closed once the store is and no scan is outstanding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import lmdb

from millrace.core.commit.record import StreamCommit
from millrace.errors import CorruptBlock, CorruptStore
from millrace.store import committed, reading, shipment
from millrace.store.commit_table import first_above
from millrace.store.committed_reads import StoredStream
from millrace.store.directory import DataDirectory
from millrace.store.layout import IndexEntry, ViewTransaction, block_key
from millrace.store.open_log import OpenLog
from millrace.store.runs import Extents, LastBelow, find_bridge, find_runs
from millrace.store.shipment import BlockShipment, Ships
from millrace.store.weighing import weigh, weigh_scattered
from millrace.types import LSN_MAX, Block, Extent, Lsn, Run, Weight


class _Snapshot:
    """A read transaction that begins when it is first asked for."""

    def __init__(self, begin: Callable[[], ViewTransaction]) -> None:
        self._begin = begin
        self._transaction: ViewTransaction | None = None

    def __call__(self) -> ViewTransaction:
        if self._transaction is None:
            self._transaction = self._begin()
        return self._transaction

    def abort(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()


class Reader:
    def __init__(self, directory: DataDirectory, scans_max: int) -> None:
        self.scans = 0
        self.blocks_read = 0  # Handed out, from the map or from memory.
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
        found = self._stored_at(log, lsn) if entry is None else entry.block
        self.blocks_read += found is not None
        return found

    def _stored_at(self, log: OpenLog, lsn: Lsn) -> Block | None:
        if lsn >= log.tail.floor:
            return None
        with self.snapshot() as transaction:
            first = reading.start_of(transaction, self._tables, log.slot, lsn)
            data = transaction.get(block_key(log.slot, first), db=self._tables.blocks)
            if data is None or first in log.removed:
                return None
            return reading.stored_block(log, first, bytes(data))

    def bridge_over(self, log: OpenLog, lsn: Lsn) -> Block | None:
        with self._looks(log) as (_, last_below):
            return find_bridge(log.log, last_below, lsn)

    def is_whole(self, log: OpenLog, first: Lsn) -> bool:
        """Whether the block that begins at `first`, and is held, can be read."""
        try:
            return log.tail.get(first) is not None or self._stored_at(log, first) is not None
        except CorruptBlock:
            return False

    def scan(self, log: OpenLog, first: Lsn, end: Lsn, bytes_max: int) -> reading.BlockScan:
        first = max(first, log.picture.trim_end)
        if first >= log.tail.floor:
            fresh = reading.from_memory(log, first, end, bytes_max)
            self.blocks_read += len(fresh)
            return reading.BlockScan(fresh)
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
        self.blocks_read += len(blocks)
        if not mapped:
            return reading.BlockScan(blocks)
        self.scans += 1
        return reading.BlockScan(blocks, transaction, self._released)

    def ship(
        self, log: OpenLog, first: Lsn, end: Lsn, bytes_max: int, ships: Ships
    ) -> BlockShipment:
        if max(first, log.picture.trim_end) >= log.tail.floor:
            blocks, next_lsn = shipment.choose_fresh(log, first, end, bytes_max, ships)
            self.blocks_read += len(blocks)
            return BlockShipment(blocks, next_lsn)
        transaction = self._begin()
        mapped = 0
        try:
            fetch = shipment.Fetch(
                transaction, self._tables, log, copies=self.scans >= self._scans_max
            )
            values = reading.index_values(transaction, self._tables, log, first, end)
            blocks, next_lsn = shipment.choose(
                values, log, max(first, end), bytes_max, ships, fetch
            )
            mapped = fetch.mapped
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        finally:
            if not mapped:
                transaction.abort()
        self.blocks_read += len(blocks)
        if not mapped:
            return BlockShipment(blocks, next_lsn)
        self.scans += 1
        return BlockShipment(blocks, next_lsn, transaction, self._released)

    def ship_committed(
        self, logs: Sequence[OpenLog], first: Lsn, end: Lsn, bytes_max: int
    ) -> BlockShipment:
        snapshot = _Snapshot(self._begin)
        copies = self.scans >= self._scans_max
        streams = [StoredStream(log, self._tables, snapshot, copies=copies) for log in logs]
        mapped = 0
        try:
            blocks, next_lsn = committed.ship(streams, first, end, bytes_max)
            mapped = sum(stream.mapped for stream in streams)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        finally:
            if not mapped:
                snapshot.abort()
        self.blocks_read += len(blocks)
        if not mapped:
            return BlockShipment(blocks, next_lsn)
        self.scans += 1
        return BlockShipment(blocks, next_lsn, snapshot(), self._released)

    @contextmanager
    def streams(self, logs: Sequence[OpenLog]) -> Iterator[list[StoredStream]]:
        """To look at runs and index entries."""
        snapshot = _Snapshot(self._begin)
        try:
            yield [StoredStream(log, self._tables, snapshot, copies=True) for log in logs]
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        finally:
            snapshot.abort()

    def trim_runs(self, log: OpenLog, local_end: Lsn) -> None:
        def seek(low: StreamCommit, end: Lsn, local: Lsn) -> StreamCommit | None:
            with self.snapshot() as transaction:
                slot = log.commits.slot
                return first_above(transaction, self._tables, slot, low, end, local)

        log.commits.trim(local_end, seek)

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
        start = max(first, log.picture.trim_end)
        if start >= log.tail.floor:
            fresh = log.tail.within(start, end) if start < end else ()
            return [entry.index for entry in islice(fresh, limit)]
        with self.snapshot() as transaction:
            found = reading.entries(transaction, self._tables, log, first, end)
            return list(islice(found, limit))

    def entries_at(self, log: OpenLog, firsts: Sequence[Lsn]) -> list[IndexEntry]:
        with self.snapshot() as transaction:
            return list(reading.entries_at(transaction, self._tables, log, firsts))

    def last(self, log: OpenLog) -> Extent | None:
        """The block at the log's end."""
        with self.snapshot() as transaction:
            return reading.last_below(transaction, self._tables, log, LSN_MAX)

    def find_time(self, log: OpenLog, timestamp_us: int) -> Lsn:
        with self.snapshot() as transaction:
            return reading.find_time(transaction, self._tables, log, timestamp_us)

    def find_size(self, log: OpenLog, bytes_kept: int) -> Lsn:
        with self.snapshot() as transaction:
            return reading.find_size(transaction, self._tables, log, bytes_kept)

    def weigh(self, log: OpenLog, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
        with self._looks(log) as (extents, last_below):
            if log.is_scattered:
                return weigh_scattered(extents, last_below, first, end, pieces)
            return weigh(extents, first, end, pieces)

    def runs(self, log: OpenLog, first: Lsn, end: Lsn, limit: int) -> list[Run]:
        with self._looks(log) as (extents, last_below):
            return find_runs(extents, last_below, first, end, limit)

    @contextmanager
    def _looks(self, log: OpenLog) -> Iterator[tuple[Extents, LastBelow]]:
        """Into the index of the log, as it is now."""
        with self.snapshot() as transaction:

            def extents(begin: Lsn, stop: Lsn) -> Iterator[Extent]:
                for entry in reading.entries(transaction, self._tables, log, begin, stop):
                    yield entry.extent

            def last_below(stop: Lsn) -> Extent | None:
                return reading.last_below(transaction, self._tables, log, stop)

            yield extents, last_below
