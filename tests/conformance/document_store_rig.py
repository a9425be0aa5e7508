"""What the conformance suite of document stores works with: a store that things happen to."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from millrace.core.documents.document import (
    SEQ_MAX,
    Cas,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import NO_LOG
from millrace.core.documents.partition_row import PartitionRow
from millrace.limits import MIB
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import DocumentStore, PartitionBatch

BUCKET = 3
PARTITION = PartitionId(5)
OTHER = PartitionId(6)
ROOM_BYTES = 512 * MIB
SMALL_ROOM_BYTES = 16 * MIB
UNBOUNDED = 1 << 40


class DocumentRig(Protocol):
    """A store under test and what can happen to it."""

    @property
    def store(self) -> DocumentStore: ...

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        """Run the owner's loop."""

    def crash(self) -> None:
        """Lose what is not durable, or some of it, then open again."""

    def reopen(self) -> None:
        """Close in order, then open again."""

    def damage(self, key: bytes) -> None:
        """Change a byte of the stored value of this key of PARTITION."""


OpenDocumentRig = Callable[[int], DocumentRig]


def row_at(high: int, term: int = 1) -> PartitionRow:
    log = NO_LOG.begin(FailoverId(2**64 - 1), Seq(0))
    return PartitionRow(PartitionState.ACTIVE, term, log, Seq(high), Seq(high), Seq(high))


def doc(key: str, seq: int, value: bytes = b"value", flags: int = 0) -> Document:
    return Document(key.encode(), value, Seq(seq), Cas(1_000 + seq), flags)


def tombstone(key: str, seq: int, made_s: int = 100) -> Document:
    kind = ChangeKind.DELETION if seq % 2 else ChangeKind.EXPIRATION
    return Document(key.encode(), b"", Seq(seq), Cas(1_000 + seq), 0, made_s, kind)


def batch(
    *documents: Document,
    partition: PartitionId = PARTITION,
    bucket: int = BUCKET,
    row: PartitionRow | None = None,
    removed: Sequence[bytes] = (),
    purged: Sequence[Document] = (),
    is_wipe: bool = False,
) -> PartitionBatch:
    high = max((document.seq for document in documents), default=0)
    return PartitionBatch(
        bucket, partition, row or row_at(high), documents, removed, purged, is_wipe
    )


def write(rig: DocumentRig, *batches: PartitionBatch) -> StoreFailed | None:
    """Write, and wait for the answer."""
    answers: list[StoreFailed | None] = []
    rig.store.write(batches, answers.append)
    rig.run_until(lambda: bool(answers))
    return answers[0]


def drop(rig: DocumentRig, partition: PartitionId = PARTITION) -> StoreFailed | None:
    answers: list[StoreFailed | None] = []
    rig.store.drop(BUCKET, partition, answers.append)
    rig.run_until(lambda: bool(answers))
    return answers[0]


def scanned(rig: DocumentRig, partition: PartitionId = PARTITION) -> list[Document]:
    """All of a partition, in the order of seqs."""
    view = rig.store.view(BUCKET, partition)
    try:
        return view.scan(Seq(0), SEQ_MAX, UNBOUNDED, UNBOUNDED)
    finally:
        view.close()


def names(documents: Iterable[Document]) -> list[tuple[str, int]]:
    return [(document.key.decode(), document.seq) for document in documents]
