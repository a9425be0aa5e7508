"""A partition as a node holds it: the partition itself, and what the node was told about it."""

from collections.abc import Callable
from typing import Final

from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import WaitOutcome, Waits
from millrace.core.messages.documents import HostedPartition
from millrace.types import NO_NODE, NodeId

NO_LEASE: Final = 0

Waiter = Callable[[WaitOutcome], None]


class HeldPartition:
    def __init__(self, partition: Partition, *, was_clean: bool = False) -> None:
        self.partition = partition
        self.waits: Waits[Waiter] = Waits()
        self.was_clean = was_clean  # The shutdown before this start was in order.
        self.is_ordered = False  # An order has named it since this start.
        self.is_settled = False  # The last order is durable: a master serves.
        self.lease = NO_LEASE  # The node's when the last order came.
        self.master = NO_NODE  # Whom it follows.
        self.replicas: tuple[NodeId, ...] = ()  # Whose acknowledgements a master counts.
        self.copies = 0  # Of how many a majority is wanted; 0: as the bucket's attributes say.
        self.kept_bytes = 0  # What could not leave memory when room was made last.

    def describe(self, lease: int) -> HostedPartition:
        """`lease` is the node's now."""
        partition = self.partition
        return HostedPartition(
            partition.number,
            partition.state,
            partition.term,
            partition.log,
            partition.high,
            partition.seen,
            partition.complete,
            partition.persisted,
            partition.has_undo,
            self.was_clean,
            self.is_ordered,
            partition.created,
            is_confirmed=lease != NO_LEASE and self.lease == lease,
        )
