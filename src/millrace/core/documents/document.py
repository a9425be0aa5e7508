"""A document, and the words of its partition.

A document is immutable: an update is another one.  The hash table, the write queue, snapshots and
whoever reads it hold the same object, which is freed when the last of them lets go (seed 001,
"Immutable Values").
"""

from enum import Enum, IntEnum
from typing import Final, NewType

import msgspec

PartitionId = NewType("PartitionId", int)  # From 0.
Seq = NewType("Seq", int)  # Of a change in its partition; from 1, 0 means "before the first".
Cas = NewType("Cas", int)  # Microseconds since 1970 of the change, made unique; never 0.
FailoverId = NewType("FailoverId", int)  # 64 bits, drawn; never 0.

NO_SEQ: Final = Seq(0)
NO_CAS: Final = Cas(0)
SEQ_MAX: Final = Seq(2**63 - 1)


class PartitionState(Enum):
    """What a node is to a partition.  Only ACTIVE serves documents."""

    ACTIVE = "active"
    REPLICA = "replica"
    PENDING = "pending"  # A replica that is being made, to become the master.
    DEAD = "dead"  # Takes nothing: it is handed over, or nobody wants it any more.


class ChangeKind(IntEnum):
    """What a change did.  The numbers are on disk and on the wire: never renumber."""

    MUTATION = 0
    DELETION = 1
    EXPIRATION = 2


class Document(msgspec.Struct, frozen=True, gc=False):
    """One version of a document, or the tombstone of one.

    `value` is None when it is on disk alone (evicted); a tombstone has an empty one.
    `expiry_s` is in seconds since 1970, 0 for never; of a tombstone it is when it was made.
    `gc=False`: it holds no other containers, so the collector has nothing to look for in it.
    """

    key: bytes
    value: bytes | None
    seq: Seq
    cas: Cas
    flags: int = 0
    expiry_s: int = 0
    kind: ChangeKind = ChangeKind.MUTATION
    datatype: int = 0  # The protocol's: bit 0 JSON, bit 1 compressed.  Kept, not interpreted.

    @property
    def is_deleted(self) -> bool:
        return self.kind is not ChangeKind.MUTATION

    @property
    def size(self) -> int:
        """About what it costs in memory and on the wire."""
        return DOCUMENT_BYTES + len(self.key) + len(self.value or b"")

    def without_value(self) -> "Document":
        """As it is held when its value is on disk alone."""
        return Document(
            self.key,
            None,
            self.seq,
            self.cas,
            self.flags,
            self.expiry_s,
            self.kind,
            self.datatype,
        )


DOCUMENT_BYTES: Final = 120
