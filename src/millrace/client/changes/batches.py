"""What a consumer hands to its application."""

from collections.abc import Sequence
from enum import Enum

import msgspec
import pyarrow as pa

from millrace.codec.memcached.columns import encode_documents, to_arrow
from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import (
    NO_CAS,
    NO_SEQ,
    ChangeKind,
    Document,
    PartitionId,
    Seq,
)


class BatchCause(Enum):
    """Why a batch is handed out."""

    STREAM = "stream"  # Changes, in the order of their seqs; each document says of which kind.
    ROLLBACK = "rollback"  # Versions that replace what was handed out before, whatever is there.
    WIPE = "wipe"  # Forget all of the partition: everything comes again.


class ChangeBatch:
    """Some changes of one partition.

    After the last of them, `is_whole` says whether the state is that of a moment at the master: a
    snapshot ends there."""

    __slots__ = (
        "_body",
        "after",
        "cause",
        "documents",
        "is_acknowledged",
        "partition",
        "size_bytes",
    )

    def __init__(
        self,
        partition: PartitionId,
        cause: BatchCause,
        documents: Sequence[Document] = (),
        after: FollowerState | None = None,
        body: bytes | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.partition = partition
        self.cause = cause
        self.documents = documents
        self.after = after  # Where the consumer stands when it is acknowledged.
        self.is_acknowledged = False
        self.size_bytes = size_bytes  # For flow control.
        self._body = body  # As it was received.

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"ChangeBatch({self.partition}, {self.cause.value}, {len(self)} documents)"

    @property
    def is_whole(self) -> bool:
        return self.after is not None and self.after.seen == self.after.snapshot

    @property
    def seq(self) -> Seq:
        """The last seq that it covers; 0 for one that takes back."""
        return NO_SEQ if self.after is None else self.after.seen

    def to_arrow(self) -> pa.RecordBatch:
        """Columns key, value, seq, cas, flags, expiry, kind, datatype; of what was received as
        columns nothing is copied."""
        if self._body is None:
            self._body = encode_documents(self.documents)
        return to_arrow(self._body)


def rollback_batch(
    partition: PartitionId, documents: Sequence[Document], missing: Sequence[bytes]
) -> ChangeBatch:
    """Keys that the master does not have come as deletions without a seq."""
    gone = [Document(key, b"", NO_SEQ, NO_CAS, kind=ChangeKind.DELETION) for key in missing]
    return ChangeBatch(partition, BatchCause.ROLLBACK, (*documents, *gone))


class Lag(msgspec.Struct, frozen=True):
    """How far behind its master what was acknowledged of a partition is."""

    changes: int
    seconds: float | None  # Since the newest acknowledged change was made; None: not known.
