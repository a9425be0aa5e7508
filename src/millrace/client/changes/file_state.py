"""A consumer's offsets and ring buffers in a folder, so that it goes on after a crash.

It is one LMDB environment.  Offsets are JSON by partition; the ring buffer is stored as it came, a
record for each batch, and loses whole batches at its old end.

  I1  One process has the folder open at a time: two would acknowledge over each other.
  I2  A write is one transaction with an fsync, in a thread: the event loop goes on meanwhile.
"""

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final

import lmdb
import msgspec

from millrace.client.changes.offsets import decode_offset, encode_offset
from millrace.client.changes.states import AddEntries, Kept, MoveOffset, ReplaceAll, StateChange
from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import NO_SEQ, PartitionId, Seq
from millrace.core.documents.ring_buffer import RING_ENTRIES_DEFAULT, RingEntry
from millrace.errors import Corruption, CorruptStore, DirectoryInUse, DiskFull
from millrace.limits import MIB

MAP_BYTES: Final = 16 * 1024 * MIB  # Address space, not disk.
_BATCH: Final = Struct(">HQ")  # Partition, ordinal.
_PARTITION: Final = Struct(">H")


class _Batch(msgspec.Struct, frozen=True):
    ordinal: int
    count: int
    last: Seq  # The largest.


class _Ring:
    """The batches of one partition's ring buffer, oldest first."""

    def __init__(self) -> None:
        self.batches: deque[_Batch] = deque()
        self.count = 0
        self.floor = NO_SEQ
        self.next_ordinal = 0


class FileConsumerState:
    """Raises DirectoryInUse, CorruptStore."""

    def __init__(self, folder: Path | str, entries_max: int = RING_ENTRIES_DEFAULT) -> None:
        self.folder = Path(folder)
        self.entries_max = entries_max
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._env = lmdb.open(str(self.folder), map_size=MAP_BYTES, max_dbs=3)
            self._offsets = self._env.open_db(b"offsets")
            self._entries = self._env.open_db(b"entries")
            self._floors = self._env.open_db(b"floors")
        except lmdb.Error as error:
            os.close(self._lock)
            raise CorruptStore(f"{self.folder} cannot be opened: {error}") from error
        self._rings: dict[PartitionId, _Ring] = {}

    def load(self, partition: PartitionId) -> Kept:
        key = _PARTITION.pack(partition)
        ring = self._rings[partition] = _Ring()
        entries: list[RingEntry] = []
        with self._env.begin() as txn:
            offset = txn.get(key, db=self._offsets)
            floor = txn.get(key, db=self._floors)
            ring.floor = Seq(int.from_bytes(floor or b"", "big"))
            cursor = txn.cursor(db=self._entries)
            if cursor.set_range(_BATCH.pack(partition, 0)):
                for found, value in cursor:
                    number, ordinal = _BATCH.unpack(found)
                    if number != partition:
                        break
                    batch = self._decode(value)
                    entries += batch
                    self._note(ring, ordinal, batch)
        where = f"{self.folder}, partition {partition},"
        state = FollowerState() if offset is None else decode_offset(offset, where)
        return Kept(state, tuple(entries), ring.floor)

    async def write(self, changes: Sequence[StateChange]) -> None:
        """Raises DiskFull."""
        await asyncio.to_thread(self._write, changes)  # Keeps I2.

    def close(self) -> None:
        if self._lock >= 0:
            self._env.close()
            os.close(self._lock)
            self._lock = -1

    # -- In the thread --------------------------------------------------------------------------

    def _write(self, changes: Sequence[StateChange]) -> None:
        try:
            with self._env.begin(write=True) as txn:
                for change in changes:
                    self._make(txn, change)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise DiskFull(f"{self.folder} takes no more: {error}") from error

    def _make(self, txn: lmdb.Transaction, change: StateChange) -> None:
        match change:
            case AddEntries(partition, entries):
                self._add(txn, partition, entries)
            case MoveOffset(partition, state):
                txn.put(_PARTITION.pack(partition), encode_offset(state), db=self._offsets)
            case ReplaceAll(partition, state, entries, floor):
                ring = self._rings[partition]
                while ring.batches:
                    self._drop_oldest(txn, partition, ring)
                ring.floor = floor
                self._put_floor(txn, partition, ring)
                if entries:
                    self._add(txn, partition, entries)
                txn.put(_PARTITION.pack(partition), encode_offset(state), db=self._offsets)

    def _add(
        self, txn: lmdb.Transaction, partition: PartitionId, entries: tuple[RingEntry, ...]
    ) -> None:
        ring = self._rings[partition]
        key = _BATCH.pack(partition, ring.next_ordinal)
        txn.put(key, msgspec.msgpack.encode(entries), db=self._entries, append=False)
        self._note(ring, ring.next_ordinal, entries)
        has_room = True
        while ring.count - ring.batches[0].count >= self.entries_max:
            self._drop_oldest(txn, partition, ring)
            has_room = False
        if not has_room:
            self._put_floor(txn, partition, ring)

    def _drop_oldest(self, txn: lmdb.Transaction, partition: PartitionId, ring: _Ring) -> None:
        oldest = ring.batches.popleft()
        ring.count -= oldest.count
        ring.floor = max(ring.floor, oldest.last)
        txn.delete(_BATCH.pack(partition, oldest.ordinal), db=self._entries)

    def _put_floor(self, txn: lmdb.Transaction, partition: PartitionId, ring: _Ring) -> None:
        txn.put(_PARTITION.pack(partition), ring.floor.to_bytes(8, "big"), db=self._floors)

    @staticmethod
    def _note(ring: _Ring, ordinal: int, entries: Sequence[RingEntry]) -> None:
        last = max((entry.seq for entry in entries), default=NO_SEQ)
        ring.batches.append(_Batch(ordinal, len(entries), last))
        ring.count += len(entries)
        ring.next_ordinal = ordinal + 1

    def _decode(self, value: bytes) -> tuple[RingEntry, ...]:
        try:
            return msgspec.msgpack.decode(value, type=tuple[RingEntry, ...])
        except msgspec.DecodeError as error:
            raise Corruption(f"{self.folder}: entries cannot be read: {error}") from error


def _lock(folder: Path) -> int:
    """Keeps I1; the lock goes with the process."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DirectoryInUse(f"{folder} is in use by another consumer") from error
    return descriptor
