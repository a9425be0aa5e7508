"""What outlives a query's processes: its checkpoint, its ring, the table that it is merged into."""

from collections.abc import Iterable

import msgspec

from millrace.core.documents.change_query import (
    PartitionRange,
    QueryPlace,
    Receipt,
    droppable,
    version,
)
from millrace.core.documents.change_ring import RingPart
from millrace.core.documents.document import Document, PartitionId, Seq


class Row(msgspec.Struct, frozen=True):
    partition: PartitionId
    era: int
    seq: Seq
    key: bytes
    document: Document | None  # None: it is deleted.

    @property
    def version(self) -> int:
        return version(self.era, self.seq)


class Batch(msgspec.Struct, frozen=True):
    """An offset, as `spark/changes/offsets.py` writes it."""

    ends: dict[PartitionId, QueryPlace]
    ranges: dict[PartitionId, PartitionRange]  # What is read to come there.
    ring_next: int  # What lies before it is settled.
    ring_began: int  # Where receipts of the batch may lie.
    doubted: frozenset[PartitionId] = frozenset()  # Not read, and still in doubt.


class SimRing:
    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.next = 0
        self._parts: list[tuple[int, PartitionId, RingPart]] = []
        self._receipts: list[tuple[int, Receipt]] = []

    def append(
        self, parts: Iterable[tuple[PartitionId, RingPart]], receipts: Iterable[Receipt] = ()
    ) -> None:
        for number, part in parts:
            self._parts.append((self.next, number, part))
            self.next += 1
        for receipt in receipts:
            self._receipts.append((self.next, receipt))
            self.next += 1

    def parts(self, number: PartitionId, settled: int) -> list[RingPart]:
        return [
            msgspec.structs.replace(part, is_settled=at < settled)
            for at, whose, part in self._parts
            if whose == number
        ]

    def receipts(self, first: int) -> list[Receipt]:
        return [receipt for at, receipt in self._receipts if at >= first]

    def trim(self, before: int) -> None:
        older = [(at, receipt.keys) for at, receipt in self._receipts if at < before]
        count = droppable([keys for _, keys in older], self.keys_max)
        if count:
            point = older[count - 1][0]
            self._parts = [each for each in self._parts if each[0] > point]
            self._receipts = [each for each in self._receipts if each[0] > point]


class Table:
    """Merges by key: the row with the largest version stays."""

    def __init__(self) -> None:
        self._rows: dict[tuple[PartitionId, bytes], Row] = {}
        self.handed_out: dict[tuple[PartitionId, bytes], list[Row]] = {}

    def note(self, rows: Iterable[Row]) -> None:
        """They were read, and perhaps seen by somebody, if not by the table."""
        for row in rows:
            self.handed_out.setdefault((row.partition, row.key), []).append(row)

    def merge(self, rows: Iterable[Row]) -> None:
        for row in rows:
            known = self._rows.get((row.partition, row.key))
            if known is None or row.version >= known.version:
                self._rows[row.partition, row.key] = row

    def rows(self, number: PartitionId) -> dict[bytes, Row]:
        return {key: row for (whose, key), row in self._rows.items() if whose == number}


class QueryCheckpoint:
    def __init__(self, partitions: int, ring: SimRing) -> None:
        places = {PartitionId(at): QueryPlace() for at in range(partitions)}
        self.batches: list[Batch] = [Batch(places, {}, 0, 0)]
        self.committed = 0  # The last batch that was.
        self.ring = ring
        self.table = Table()
        self.reread: dict[PartitionId, int] = {}  # The last era that began with reading again.

    @property
    def last(self) -> Batch:
        return self.batches[-1]

    @property
    def is_open(self) -> bool:
        """A batch was planned, and may have been run or not."""
        return len(self.batches) - 1 > self.committed
