"""How a seat changes, and what each node is to be by it.

A seat is written first and said to the nodes afterwards, so what a node should be follows from the
seat alone: whoever is the keeper can say it, again if need be.

| seat                       | active            | pending | replicas | others that have a copy   |
|----------------------------|-------------------|---------|----------|---------------------------|
| as usual                   | ACTIVE            | PENDING | REPLICA  | dropped, when all is well |
| `is_handover`              | DEAD, still sends | PENDING | REPLICA  | left alone                |
| fenced: `active` is nobody |                   | PENDING | REPLICA  | REPLICA; all stand still  |

  I1  Every change raises the term.
  I2  Between two failover ids a seat is fenced: who answers in its term takes nothing from the
      master before, so what it says it has is all that it can have acknowledged (R-P).
  I3  The id stays only in a takeover, after the master before was DEAD in the term of the handover,
      and when a handover is undone.
  I4  A seat whose id is 0 never had a master: nothing can be lost.
  I5  A master that lives serves until it hears of another term.  So one that was deposed is named
      in the fenced seat: nobody is promoted before it has heard, or its lease is over.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies
from millrace.core.messages.documents import NO_FAILOVER_ID, HostedPartition, PartitionOrder
from millrace.types import NO_NODE, NodeId

FIRST_TERM: Final = 1
_FOLLOWING: Final = (PartitionState.REPLICA, PartitionState.PENDING)


def new_seats(wanted: Iterable[Copies]) -> tuple[Seat, ...]:
    """Of a bucket that is being made: fenced, with the wanted master in front.  The keeper gives
    each its first id, as it does after a failure."""
    return tuple(Seat(FIRST_TERM, NO_FAILOVER_ID, NO_NODE, copies.holders) for copies in wanted)


def new_bucket(
    id: int, name: str, attributes: BucketAttributes, wanted: Iterable[Copies], created_ms: int
) -> BucketRecord:
    return BucketRecord(id, name, attributes, new_seats(wanted), created_ms=created_ms)


def majority(copies: int) -> int:
    return copies // 2 + 1


def voters(seat: Seat) -> tuple[NodeId, ...]:
    """Whose acknowledgements count for durability waits.  One that is pending is not among them."""
    return tuple(node for node in (seat.active, *seat.replicas) if node != NO_NODE)


def copies_counted(seat: Seat, attributes: BucketAttributes) -> int:
    """Of how many copies a majority is wanted; those that are missing count against it.  One that
    is too many, because another is to leave, counts twice: so whoever leaves, and as long as it has
    not, every majority of those that stay has one that knows what was acknowledged."""
    copies = 1 + attributes.replicas
    return copies + 2 * max(0, len(voters(seat)) - copies)


# -- Changes ----------------------------------------------------------------------------------


def fenced(seat: Seat, is_unused: bool = False) -> Seat:
    """Nobody is the master.  The one before stays in front, so that of equals it is preferred.
    `is_unused`: the id was drawn for a master that never got it, and had nothing (I4)."""
    named = dict.fromkeys((seat.active, *seat.replicas))
    named.pop(NO_NODE, None)
    id = NO_FAILOVER_ID if is_unused else seat.id
    founded = 0 if is_unused else seat.founded
    return Seat(seat.term + 1, id, NO_NODE, tuple(named), seat.pending, founded=founded)


def deposed(seat: Seat) -> Seat:
    """As `fenced`, of a master that may live and serve.  Of equals any other is preferred to it."""
    after = fenced(seat)
    others = tuple(node for node in after.replicas if node != seat.active)
    return msgspec.structs.replace(after, replicas=(*others, seat.active), deposed=seat.active)


def promoted(seat: Seat, node: NodeId, id: FailoverId, is_founded_anew: bool = False) -> Seat:
    """Keeps I2.  `is_founded_anew`: all that was there is given up."""
    assert seat.active == NO_NODE and id not in (NO_FAILOVER_ID, seat.id)
    term, others = seat.term + 1, tuple(each for each in seat.replicas if each != node)
    is_first = seat.id == NO_FAILOVER_ID or is_founded_anew
    return Seat(term, id, node, others, founded=term if is_first else seat.founded)


def with_pending(seat: Seat, node: NodeId) -> Seat:
    return msgspec.structs.replace(seat, term=seat.term + 1, pending=node)


def handing_over(seat: Seat) -> Seat:
    assert seat.pending != NO_NODE
    return msgspec.structs.replace(seat, term=seat.term + 1, is_handover=True)


def moved(seat: Seat, active: NodeId, replicas: tuple[NodeId, ...]) -> Seat:
    """Keeps I3: `active` is the one that was, or has all that it had."""
    assert active == seat.active or seat.is_handover
    return Seat(seat.term + 1, seat.id, active, replicas, founded=seat.founded)


def undone(seat: Seat, replicas: tuple[NodeId, ...] | None = None) -> Seat:
    """The master before goes on, and nobody is pending; with the replicas from before, if a new one
    is among them."""
    before = seat.replicas if replicas is None else replicas
    return Seat(seat.term + 1, seat.id, seat.active, before, founded=seat.founded)


def raised(seat: Seat, term: int) -> Seat:
    """Above what a node has heard, e.g. of a keeper whose repository is lost."""
    return msgspec.structs.replace(seat, term=max(seat.term, term) + 1)


# -- Orders -----------------------------------------------------------------------------------


def wanted_state(seat: Seat, node: NodeId) -> PartitionState | None:
    """None: it is nothing to the partition, and its copy may go."""
    if node == seat.active:
        return PartitionState.DEAD if seat.is_handover else PartitionState.ACTIVE
    if node == seat.pending:
        return PartitionState.PENDING
    if node in seat.replicas or seat.active == NO_NODE:
        return PartitionState.REPLICA
    return None


def is_settled(seat: Seat, node: NodeId, hosted: HostedPartition | None) -> bool:
    """Whether the node is what the seat says."""
    if hosted is None:
        return node not in seat.holders
    is_current = hosted.is_ordered and hosted.term == seat.term
    is_right = is_current and hosted.state is wanted_state(seat, node)
    return is_right and not is_idle(seat, node, hosted)


def is_idle(seat: Seat, node: NodeId, hosted: HostedPartition | None) -> bool:
    """Whether the node should serve, and waits to be told so: it has started since it was told, or
    its lease is another one.  Only a seat that was read after the node said this proves that nobody
    else has become the master."""
    is_master = wanted_state(seat, node) is PartitionState.ACTIVE
    return is_master and hosted is not None and not hosted.is_confirmed


def is_doubtful(seat: Seat, node: NodeId, hosted: HostedPartition | None) -> bool:
    """Whether the node should be the master, but has perhaps less than it had when it became that:
    it lost its disk, or restarted without a shutdown in order.  Such a one must not be told
    anything: the seat is fenced, and decided anew.  One that takes over had everything on disk, so
    until it is ACTIVE a restart cost it nothing."""
    if node != seat.active:
        return False
    if hosted is None:
        return True
    has_id = hosted.log.newest == seat.id
    if hosted.is_ordered:
        return not has_id and not is_chosen(seat, hosted)
    is_taking_over = has_id and hosted.state in _FOLLOWING
    return not hosted.is_clean and not is_taking_over


def is_chosen(seat: Seat, hosted: HostedPartition) -> bool:
    """Whether it is the copy that was chosen, and waits for its id: that one had answered in the
    term before the seat's.  Else it is one that a late order made where the disk was lost."""
    return hosted.term >= seat.term - 1


def order_for(
    record: BucketRecord, partition: PartitionId, node: NodeId, hosted: HostedPartition | None
) -> PartitionOrder:
    """What to say to a node that is not settled."""
    seat = record.seat(partition)
    state = wanted_state(seat, node)
    if state is None:
        return PartitionOrder(partition, PartitionState.DEAD, seat.term, is_dropped=True)
    if node != seat.active:
        return PartitionOrder(partition, state, seat.term, master=seat.active)
    has_id = hosted is not None and hosted.log.newest == seat.id
    return PartitionOrder(
        partition,
        state,
        seat.term,
        seat.id,
        replicas=seat.replicas,
        is_takeover=has_id,
        copies=copies_counted(seat, record.attributes),
    )
