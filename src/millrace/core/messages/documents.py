"""Said by the keeper to nodes that hold partitions of buckets (R-O, R-P, R-Q).

The keeper decides by compare-and-set of a bucket's record, and only then tells the nodes; what it
says follows from the record alone (`core/documents/seats.py`), so it can be said again by whoever
is the keeper.  Two things keep an order out that comes late:

  I1  A node has one state CAS for each bucket, drawn anew at every start and with every order
      taken.  SetPartitions with another one is answered with CasMismatch, and nothing is done; the
      sender reads the state again before it decides anything (U8).
  I2  A partition takes no order of a lower term than it has.
"""

from typing import Final

import msgspec

from millrace.core.documents.document import (
    NO_SEQ,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.operations import Command, Outcome
from millrace.core.messages.root import Message
from millrace.types import NO_NODE, NodeId

NO_FAILOVER_ID: Final = FailoverId(0)
NO_STATE_CAS: Final = 0  # Of a bucket that a node does not know.


class HostedPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition as its holder has it.  Until `is_ordered`, that is until an order has named it
    since the node's last start, it serves nobody and follows nobody, whatever its state says.
    `is_clean`: it has all it had when it was ordered last, because every shutdown since was in
    order.  So a shutdown in order leaves a partition clean only if it was ordered, or was clean at
    the start: after a crash and an orderly restart the crash still counts."""

    number: PartitionId
    state: PartitionState
    term: int
    log: FailoverLog = NO_LOG
    high: Seq = NO_SEQ
    seen: Seq = NO_SEQ
    complete: Seq = NO_SEQ
    persisted: Seq = NO_SEQ
    has_undo: bool = False
    is_clean: bool = False
    is_ordered: bool = False
    created: int = 0  # The term in which the copy was made.
    is_confirmed: bool = True  # By an order under the node's present lease: a master may serve.


class HostedBucket(msgspec.Struct, frozen=True, array_like=True):
    """`is_warm`: its partitions are loaded, so that `partitions` is all of them.  `is_serving`: the
    front end is on, which the first SetPartitions since the start does.  `documents` are those that
    the node is the master of; the bytes are of all partitions here."""

    id: int
    cas: int
    is_warm: bool
    is_serving: bool
    partitions: tuple[HostedPartition, ...] = ()
    documents: int = 0
    memory_bytes: int = 0
    queued_bytes: int = 0  # Not on disk yet.


class DescribeBuckets(Message, frozen=True):
    """How are these partitions of a bucket here?  Without `partitions` all of them are told.
    `bucket` 0 asks which buckets are here: they are told without their partitions, which could be
    too many for one answer.  Answered with BucketsDescribed; a bucket that is not here is not in
    it."""

    bucket: int = 0
    partitions: tuple[PartitionId, ...] = ()


class BucketsDescribed(Message, frozen=True):
    buckets: tuple[HostedBucket, ...]


class PartitionOrder(msgspec.Struct, frozen=True, array_like=True):
    """What the node is to be to a partition from `term` on; it makes one that it does not have.

    ACTIVE comes with the failover `id`, state and id in one step (R-P): unless `is_takeover` it
    begins an entry of the failover log.  A master's durability waits want a majority of `copies`,
    and beside its own count those of `replicas` alone.  DEAD gives no more seqs, but streams what
    it has.  REPLICA and PENDING follow `master`; NO_NODE: nobody, the partition stands still until
    a master is chosen.  `is_dropped`: forget the partition and its documents.
    """

    number: PartitionId
    state: PartitionState
    term: int
    id: FailoverId = NO_FAILOVER_ID
    master: NodeId = NO_NODE
    replicas: tuple[NodeId, ...] = ()
    is_takeover: bool = False
    is_dropped: bool = False
    copies: int = 0


class SetPartitions(Message, frozen=True):
    """Take all of these orders, or none; turns the front end on (R-Q.4).  `cas` is NO_STATE_CAS for
    a bucket that the node does not know.  Answered with PartitionsSet when the rows are durable and
    not before: a master serves only then, and one that is DEAD has given its last seq.  Or with
    CasMismatch; Refused EPOCH for a lower term, NOT_READY before the node is warm, CONFLICT for a
    partition whose undo stands in the way.  Without a `name` the bucket is no more: what of it is
    damaged on the node's disk, which nobody can be told of, goes with what is ordered dropped."""

    bucket: int
    name: str
    attributes: BucketAttributes
    cas: int
    orders: tuple[PartitionOrder, ...]


class PartitionsSet(Message, frozen=True):
    cas: int


class CasMismatch(Message, frozen=True):
    """Nothing was done; `cas` is the right one."""

    cas: int


# -- Between nodes, for clients that do not know the map ----------------------------------------


class CarryOut(Message, frozen=True):
    """A client's command, passed on to the master.  Answered with CarriedOut."""

    bucket: int
    partition: PartitionId
    command: Command


class CarriedOut(Message, frozen=True):
    outcome: Outcome


class PartitionMark(msgspec.Struct, frozen=True, array_like=True):
    """A partition as it was at some time: what was changed since can be told from it, whoever has
    become the master meanwhile."""

    number: PartitionId
    log: FailoverLog
    high: Seq


class EmptyBucket(Message, frozen=True):
    """Delete the documents of these partitions that are as old as the marks, one change each.
    Answered with BucketEmptied."""

    bucket: int
    marks: tuple[PartitionMark, ...]


class BucketEmptied(Message, frozen=True):
    """Those that the node was the master of, from the first document to the last."""

    partitions: tuple[PartitionId, ...]
