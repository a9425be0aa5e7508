"""When a lost node counts as rebuilt: nobody names it any more, and nobody who might is away.

I1  Every node that is authoritative has finished, alive or not: what it holds may name the node.
I2  A node that is UNAVAILABLE may come back with what nobody else has.  It is waited for unless
    it, the node and all others whose data is lost or away are too few to hold a copyset: then
    somebody else holds a copy of each block, and has given it.
I3  Who is UNDERREPLICATION has nothing to give, who is AUTHORITATIVE_EMPTY gave it.
"""

from collections.abc import Collection, Iterable

from millrace.core.epochs import EpochRange
from millrace.core.replication import Locations, can_replicate
from millrace.core.statuses import Entries
from millrace.types import AuthoritativeStatus, NodeId

_FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
_AWAY = AuthoritativeStatus.UNAVAILABLE
_LOST = AuthoritativeStatus.UNDERREPLICATION


def _having(status: AuthoritativeStatus, nodes: Iterable[NodeId], entries: Entries) -> set[NodeId]:
    return {
        node for node in nodes if (entries[node].status if node in entries else _FULL) is status
    }


def unfinished(
    entries: Entries, nodes: Collection[NodeId], finished: Collection[NodeId]
) -> frozenset[NodeId]:
    """Who of the storage nodes must be waited for in any case (I1); a node that is drained is one
    of them itself."""
    return frozenset(_having(_FULL, nodes, entries).difference(finished))


def suspects(
    node: NodeId, entries: Entries, nodes: Collection[NodeId], finished: Collection[NodeId]
) -> frozenset[NodeId]:
    """Those that might hold a block alone, which then comes back with one of them or never (I2);
    none if nothing can come back."""
    away = _having(_AWAY, nodes, entries).difference(finished)
    is_whole = node in _having(_FULL, [node], entries)  # It is drained, and gave all it had.
    if is_whole or not away:
        return frozenset()
    return frozenset({node, *away, *_having(_LOST, nodes, entries)})


def may_hold_alone(
    nodes: Collection[NodeId], spans: Iterable[EpochRange], locations: Locations
) -> bool:
    """Whether these nodes can hold all copies of a block."""
    return any(
        can_replicate(span.replication, set(nodes).intersection(span.nodeset), locations)
        for span in spans
    )
