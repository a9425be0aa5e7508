"""A simulated disk for documents, and the store on it.

The disk outlives crashes and holds what was committed; the store is the process's side, which
lets a write take the disk's time.  A crash keeps a beginning of the writes that were under way:
the disk may have had them before the process could say so.

  I1  The contract's (`store/documents/contract.py`), checked with the suite that LMDB passes.
  I2  Only a commit changes the disk, except rot, which takes a document's readability.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from millrace.core.documents.document import SEQ_MAX, Document, PartitionId, Seq
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.messages import Refusal
from millrace.store.contract import Done, StoreFailed, Usage
from millrace.store.documents.contract import CorruptDocument, PartitionBatch

After = Callable[[int, Callable[[], None]], object]  # (delay in microseconds, call)
Home = tuple[int, PartitionId]  # A bucket's partition.

CAPACITY_BYTES: Final = 1 << 40
WRITE_US: Final = 500
RECORD_BYTES: Final = 64  # What a document takes beside its key and value.
RESERVE_SHARE: Final = 16
_FULL: Final = StoreFailed(Refusal.DISK_FULL, "there is no room for documents")


def _size(document: Document) -> int:
    return RECORD_BYTES + len(document.key) + len(document.value or b"")


class StoredPartition:
    """One partition as it lies on the disk."""

    __slots__ = ("_by_seq", "documents", "rotten", "row", "size_bytes")

    def __init__(self, row: PartitionRow) -> None:
        self.row = row
        self.documents: dict[bytes, Document] = {}
        self.size_bytes = 0
        self.rotten: frozenset[bytes] = frozenset()
        self._by_seq: tuple[Document, ...] | None = None  # Views share it until a change.

    def apply(self, batch: PartitionBatch, documents: Sequence[Document]) -> None:
        if batch.is_wipe:
            self.documents, self.size_bytes = {}, 0
        for key in batch.removed:
            self._remove(key)
        for tombstone in batch.purged:
            held = self.documents.get(tombstone.key)
            if held is not None and held.kind and held.seq == tombstone.seq:
                self._remove(tombstone.key)
        for document in documents:
            self._remove(document.key)
            self.documents[document.key] = document
            self.size_bytes += _size(document)
        self.row = batch.row
        self.rotten &= self.documents.keys() - {document.key for document in documents}
        self._by_seq = None

    def _remove(self, key: bytes) -> None:
        removed = self.documents.pop(key, None)
        self.size_bytes -= _size(removed) if removed else 0

    @property
    def by_seq(self) -> tuple[Document, ...]:
        if self._by_seq is None:
            held = self.documents.values()
            self._by_seq = tuple(sorted(held, key=lambda one: (one.seq, one.key)))
        return self._by_seq

    def read(self, key: bytes) -> Document | None:
        document = self.documents.get(key)
        return None if document is None else _whole(document, self.rotten)


def _whole(document: Document, rotten: frozenset[bytes]) -> Document:
    if document.key in rotten:
        raise CorruptDocument(f"document {document.key!r} at seq {document.seq} is rotten")
    return document


class DocumentDisk:
    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.partitions: dict[Home, StoredPartition] = {}

    @property
    def used_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.partitions.values())

    def room_bytes(self, is_deletions: bool) -> int:
        """A reserve is kept for rows and removals; half of it, for deletions."""
        reserve = self.capacity_bytes // RESERVE_SHARE
        return self.capacity_bytes - (reserve // 2 if is_deletions else reserve) - self.used_bytes

    def write(self, batches: Sequence[PartitionBatch]) -> StoreFailed | None:
        prepared = [(batch, tuple(batch.documents)) for batch in batches]
        documents = [one for _, some in prepared for one in some]
        need_bytes = sum(_size(one) for one in documents)
        if need_bytes and need_bytes > self.room_bytes(all(one.kind for one in documents)):
            return _FULL
        for batch, some in prepared:
            home = batch.bucket, batch.partition
            stored = self.partitions.setdefault(home, StoredPartition(batch.row))
            stored.apply(batch, some)
        return None

    def rot(self, bucket: int, partition: PartitionId, key: bytes) -> None:
        stored = self.partitions[bucket, partition]
        stored.rotten |= {key}


class SimView:
    def __init__(self, stored: StoredPartition | None) -> None:
        self._documents = stored.by_seq if stored else ()
        self._rotten = stored.rotten if stored else frozenset()
        self._is_closed = False

    def scan(self, after: Seq, last: Seq, count_max: int, bytes_max: int) -> list[Document]:
        assert not self._is_closed, "the view is closed"
        found: list[Document] = []
        size_bytes = 0
        for document in self._documents:
            if not after < document.seq <= last:
                continue
            size_bytes += _size(document)
            is_enough = size_bytes > bytes_max or len(found) >= count_max
            if is_enough and found and document.seq != found[-1].seq:
                break
            if document.key in self._rotten:
                found = [one for one in found if one.seq != document.seq]
                return found or [_whole(document, self._rotten)]
            found.append(document)
        return found

    def close(self) -> None:
        assert not self._is_closed, "a view is closed once"
        self._is_closed = True


class _Task:
    """A write, or a drop of `dropped`."""

    __slots__ = ("batches", "done", "dropped", "failure", "homes")

    def __init__(
        self, batches: Sequence[PartitionBatch], done: Done, dropped: Home | None = None
    ) -> None:
        self.batches = tuple(batches)
        self.done = done
        self.dropped = dropped
        self.failure: StoreFailed | None = None
        self.homes = frozenset((batch.bucket, batch.partition) for batch in batches)


class SimDocuments:
    """Opens what the disk holds; after a crash another one is opened on the same disk."""

    def __init__(
        self, after: After, disk: DocumentDisk | None = None, write_us: int = WRITE_US
    ) -> None:
        self.failure: StoreFailed | None = None  # It never fails for good.
        self.disk = DocumentDisk() if disk is None else disk
        self.write_us = write_us
        self.commits = 0
        self._after = after
        self._queue: deque[_Task] = deque()
        self._untold: deque[_Task] = deque()
        self._is_committing = False
        self._is_refused = False
        self._is_closed = False
        self._is_crashed = False

    # -- Writing --------------------------------------------------------------------------------

    def write(self, batches: Sequence[PartitionBatch], done: Done) -> None:
        self._submit(_Task(batches, done))

    def drop(self, bucket: int, partition: PartitionId, done: Done) -> None:
        self._submit(_Task((), done, (bucket, partition)))

    def _submit(self, task: _Task) -> None:
        assert not self._is_closed, "the store is closed"
        self._queue.append(task)
        if not self._is_committing:
            self._begin()

    def _begin(self) -> None:
        self._is_committing = True
        count = len(self._queue)  # What comes later goes with the next commit.
        self._after(self.write_us, lambda: self._commit(count))

    def _commit(self, count: int) -> None:
        if self._is_closed:
            return
        for _ in range(count):
            self._settle(self._queue.popleft())
        self.commits += 1
        self._tell()
        self._is_committing = False
        if self._queue and not self._is_closed:
            self._begin()

    def _settle(self, task: _Task) -> None:
        self._condemn(task)
        if task.failure is None and task.dropped is not None:
            self.disk.partitions.pop(task.dropped, None)
            self._is_refused = False
        elif task.failure is None:
            task.failure = self.disk.write(task.batches)
            self._is_refused = task.failure is not None
        self._untold.append(task)

    def _condemn(self, task: _Task) -> None:
        """A write fails that shares a partition with a failed one before it (contract, I3)."""
        for before in self._untold:
            if before.failure is not None and not before.homes.isdisjoint(task.homes):
                task.failure = task.failure or before.failure

    def _tell(self) -> None:
        """What is queued before one is told may rest on it."""
        while self._untold and not self._is_crashed:
            for behind in self._queue:
                self._condemn(behind)
            task = self._untold.popleft()
            task.done(task.failure)

    # -- Reading --------------------------------------------------------------------------------

    def buckets(self) -> list[int]:
        return sorted({bucket for bucket, _ in self.disk.partitions})

    def rows(self, bucket: int) -> dict[PartitionId, PartitionRow]:
        stored = sorted(self.disk.partitions.items(), key=lambda item: item[0])
        return {home[1]: partition.row for home, partition in stored if home[0] == bucket}

    def damaged(self, bucket: int) -> list[PartitionId]:
        return []  # Rows do not rot here: `rot` strikes documents.

    def get(self, bucket: int, partition: PartitionId, key: bytes) -> Document | None:
        stored = self.disk.partitions.get((bucket, partition))
        return stored.read(key) if stored else None

    def get_many(
        self, bucket: int, partition: PartitionId, keys: Sequence[bytes]
    ) -> list[Document]:
        found = (self.get(bucket, partition, key) for key in keys)
        return [document for document in found if document is not None]

    def view(self, bucket: int, partition: PartitionId) -> SimView:
        return SimView(self.disk.partitions.get((bucket, partition)))

    def load(
        self, bucket: int, partition: PartitionId, after: Seq, count_max: int, with_values: bool
    ) -> list[Document]:
        view = self.view(bucket, partition)
        while found := view.scan(after, SEQ_MAX, count_max, CAPACITY_BYTES):
            documents = [one for one in found if not one.kind]
            if documents:
                return documents if with_values else [one.without_value() for one in documents]
            after = found[-1].seq
        return []

    def tombstones(
        self, bucket: int, partition: PartitionId, before_s: int, count_max: int
    ) -> list[Document]:
        stored = self.disk.partitions.get((bucket, partition))
        found: list[Document] = []
        for document in stored.by_seq if stored else ():
            if document.kind and (document.expiry_s >= before_s or len(found) >= count_max):
                break
            if document.kind and stored is not None:
                found.append(_whole(document, stored.rotten))
        return found

    def usage(self) -> Usage:
        is_full = self._is_refused or self.disk.room_bytes(is_deletions=False) <= 0
        return Usage(self.disk.used_bytes, self.disk.capacity_bytes, is_full)

    # -- Endings --------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            while self._queue:
                self._settle(self._queue.popleft())
            self._tell()

    def crash(self, kept: int = 0) -> None:
        """The process dies: the first `kept` of the writes under way are on the disk all the same,
        and nobody hears of any."""
        self._is_closed = self._is_crashed = True
        for _ in range(min(kept, len(self._queue))):
            self._settle(self._queue.popleft())
