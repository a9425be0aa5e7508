"""Buckets and the map of their partitions, as the repository holds them.

I1  `Seat.term` rises with every change of the seat, and a node takes orders of a lower term from
    nobody.
I2  A failover id is drawn by whoever writes it here by compare-and-set, and belongs to one master
    from then on; only a clean takeover hands it to another node, after the one before is dead.
"""

import zlib
from typing import Final

import msgspec

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.types import NO_NODE, NodeId

PARTITIONS_DEFAULT: Final = 64
PARTITIONS_MAX: Final = 1024
REPLICAS_MAX: Final = 3


class BucketAttributes(msgspec.Struct, frozen=True):
    """What a user chooses for a bucket."""

    partitions: int = PARTITIONS_DEFAULT
    replicas: int = 1
    memory_bytes: int = 256 << 20  # On each node; values beyond it are on disk alone.
    value_bytes_max: int = 20 << 20
    purge_after_s: int = 3 * 86_400  # How long tombstones are kept.


class Seat(msgspec.Struct, frozen=True):
    """Who has a partition."""

    term: int
    id: FailoverId
    active: NodeId = NO_NODE  # NO_NODE: nobody can be it now.
    replicas: tuple[NodeId, ...] = ()
    pending: NodeId = NO_NODE  # It is being moved there.
    is_handover: bool = False  # The active one is told to be dead, for the pending one.
    founded: int = 0  # The term of its first master; 0: there was none yet.
    deposed: NodeId = NO_NODE  # Was the master until an operator's wish, and may not know it yet.

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Everybody who has, or is to have, a copy; each once."""
        named = (self.active, *self.replicas, self.pending)
        return tuple(dict.fromkeys(node for node in named if node != NO_NODE))


class BucketRecord(msgspec.Struct, frozen=True):
    id: int
    name: str
    attributes: BucketAttributes
    seats: tuple[Seat, ...]  # By partition.
    revision: int = 1  # Rises with every change; clients compare maps by it.
    created_ms: int = 0

    def seat(self, partition: PartitionId) -> Seat:
        return self.seats[partition]

    def partition_of(self, key: bytes) -> PartitionId:
        return partition_of(key, len(self.seats))


def partition_of(key: bytes, partitions: int) -> PartitionId:
    """As Couchbase's clients do it, so that theirs find documents here."""
    return PartitionId(((zlib.crc32(key) >> 16) & 0x7FFF) % partitions)
