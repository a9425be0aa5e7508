"""The documents of a partition that are in memory: the hash table, and the write queue beside it.

Both hold the same immutable objects (R-D).  There is one thread, so the seed's locks are the order
of the statements: the table's entry is set first, then the older seq leaves the queue and the new
one enters it (R-F.5, R-F.6).

  I1  The table has an entry for every live document, and for every tombstone that is not on disk.
  I2  What is in the queue is not on disk; its table entry is the same object, value and all.
  I3  Only a value that is on disk leaves memory; key and metadata stay.
  I4  Of every live document that expires the key is in `_expiring`, so nobody has to look through
      all documents for them; keys of others are there until somebody looks.
"""

from collections.abc import Iterable, Iterator, Sequence

from millrace.core.documents.document import DOCUMENT_BYTES, Document
from millrace.core.documents.write_queue import WriteQueue


class DocumentMemory:
    __slots__ = ("_evicting", "_expiring", "fresh_tombstones", "queue", "size_bytes", "table")

    def __init__(self) -> None:
        self.table: dict[bytes, Document] = {}
        self.queue = WriteQueue()
        self.size_bytes = 0  # Of the table; what snapshots still hold besides is theirs.
        self.fresh_tombstones: list[Document] = []  # Put since the last flush was taken.
        self._evicting: Iterator[bytes] = iter(())
        self._expiring: dict[bytes, None] = {}  # Keys, in an order that is the same in every run.

    def put(self, document: Document) -> None:
        key = document.key
        held = self.table.get(key)
        self.table[key] = document
        value = document.value
        if held is None:
            self.size_bytes += DOCUMENT_BYTES + len(key) + (len(value) if value else 0)
            self.queue.put(document)
        else:
            old = held.value
            self.size_bytes += (len(value) if value else 0) - (len(old) if old else 0)
            self.queue.put(document, held.seq)
        if document.kind:
            self.fresh_tombstones.append(document)
        elif document.expiry_s:
            self._expiring[key] = None  # Keeps I4.

    def overwrite(self, document: Document) -> None:
        """As `put`, while seqs of two histories are side by side (U2).

        What stands at the older seq may be another document by now: only this one's goes."""
        self.forget(document.key)
        self.put(document)

    def forget(self, key: bytes) -> None:
        held = self.table.pop(key, None)
        if held is None:
            return
        self.size_bytes -= held.size
        if self.queue.get(held.seq) is held:
            self.queue.remove(held.seq)

    def clear(self) -> None:
        self.table.clear()
        self.queue.clear()
        self.fresh_tombstones.clear()
        self._expiring.clear()
        self.size_bytes = 0

    def load(self, documents: Iterable[Document]) -> None:
        """They come from disk, so they are not queued."""
        for document in documents:
            if document.key not in self.table:
                self.table[document.key] = document
                self.size_bytes += document.size
                if document.expiry_s:
                    self._expiring[document.key] = None  # Keeps I4: tombstones are not loaded.

    def expiring(self) -> list[bytes]:
        """Keys to look at with `expired`, in bites as large as is wanted."""
        return list(self._expiring)

    def expired(self, keys: Iterable[bytes], now_s: int) -> list[bytes]:
        """Of these the ones whose document is live, and its time over; those whose document does
        not expire (any more) are forgotten."""
        found: list[bytes] = []
        for key in keys:
            held = self.table.get(key)
            if held is None or held.kind or not held.expiry_s:
                self._expiring.pop(key, None)
            elif held.expiry_s <= now_s:
                found.append(key)
        return found

    def drop_persisted(self, tombstones: Sequence[Document]) -> None:
        """Keeps I1: the disk has them.  A key that changed since has another entry (R-I.4)."""
        for tombstone in tombstones:
            if self.table.get(tombstone.key) is tombstone:
                del self.table[tombstone.key]
                self.size_bytes -= tombstone.size

    def evict(self, bytes_wanted: int) -> int:
        """Lets go of values that are on disk, each in its turn; returns how many bytes that was.

        Less than wanted means that nothing else is on disk."""
        freed = 0
        for key in self._turn():
            held = self.table.get(key)
            if held is None or not held.value or self.queue.get(held.seq) is not None:
                continue  # Keeps I3.
            self.table[key] = held.without_value()
            freed += len(held.value)
            if freed >= bytes_wanted:
                break
        self.size_bytes -= freed
        return freed

    def _turn(self) -> Iterator[bytes]:
        """The keys from where the last eviction stopped, to the end, and once more around."""
        yield from self._evicting
        self._evicting = iter(list(self.table))
        yield from self._evicting

    def restore(self, document: Document) -> None:
        """A value was read from disk; it comes back unless the document changed meanwhile."""
        held = self.table.get(document.key)
        if held is None or held.value is not None:
            return
        if held.seq != document.seq or held.cas != document.cas:  # The same seq of another history.
            return
        self.table[document.key] = document
        self.size_bytes += len(document.value or b"")
