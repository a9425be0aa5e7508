"""Partitions to begin tests with, and a disk that does what the store promises."""

from collections.abc import Iterable

from millrace.core.documents.document import (
    NO_SEQ,
    Cas,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.partition import Flush, Partition
from millrace.core.documents.partition_row import PartitionRow

NUMBER = PartitionId(7)
CAFE, DEAD, BA5E = FailoverId(0xCAFE), FailoverId(0xDEAD), FailoverId(0xBA5E)
NOW_US = 1_700_000_000_000_000


def log(*entries: tuple[FailoverId, int]) -> FailoverLog:
    return FailoverLog(tuple(FailoverEntry(id, Seq(seq)) for id, seq in entries))


def mutation(key: bytes, seq: int, value: bytes = b"value") -> Document:
    return Document(key, value, Seq(seq), Cas(NOW_US + seq))


def deletion(key: bytes, seq: int) -> Document:
    made_s = NOW_US // 1_000_000
    return Document(
        key, b"", Seq(seq), Cas(NOW_US + seq), 0, expiry_s=made_s, kind=ChangeKind.DELETION
    )


def master(*keys: bytes) -> Partition:
    """With a document of each key, in this order from seq 1 on, none of them on disk."""
    partition = Partition(NUMBER)
    partition.promote(1, CAFE, is_takeover=False)
    for key in keys:
        partition.store(key, b"value of " + key, 0, 0, NOW_US)
    return partition


def replica(*documents: Document, last: int | None = None) -> Partition:
    """It has these of one snapshot, which goes on to `last`."""
    partition = Partition(NUMBER)
    partition.set_state(PartitionState.REPLICA, 1)
    partition.finish_undo(log((CAFE, 0)))
    if documents:
        partition.begin_snapshot(NO_SEQ, Seq(last or documents[-1].seq))
        partition.apply(documents)
    return partition


def flush(partition: Partition) -> Flush:
    taken = partition.take_flush()
    assert taken is not None, "there was nothing to flush"
    partition.flushed(taken)
    return taken


def values(partition: Partition) -> dict[bytes, bytes | None]:
    """The live documents."""
    return {key: held.value for key, held in partition.table.items() if not held.is_deleted}


def seqs(documents: Iterable[Document]) -> list[int]:
    return [document.seq for document in documents]


class Disk:
    """One partition on disk: a write is atomic, and a crash leaves the last of them."""

    def __init__(self) -> None:
        self.row = PartitionRow()
        self.documents: dict[bytes, Document] = {}

    def write(self, flush: Flush) -> None:
        if flush.is_wipe:
            self.documents.clear()
        for key in flush.removed:
            self.documents.pop(key, None)
        for document in flush.snapshot:
            assert document.value is not None, "a value that is nowhere"
            self.documents[document.key] = document
        self.row = flush.row

    def flush(self, partition: Partition) -> None:
        taken = partition.take_flush()
        if taken is not None:
            self.write(taken)
            partition.flushed(taken)

    def start(self) -> Partition:
        """The partition as a node has it that starts from this disk."""
        partition = Partition(NUMBER, self.row)
        live = [document for document in self.documents.values() if not document.is_deleted]
        partition.load(sorted(live, key=lambda document: document.seq), self.row)
        return partition

    def above(self, seq: Seq) -> list[bytes]:
        return [key for key, document in self.documents.items() if document.seq > seq]
