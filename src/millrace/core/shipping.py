"""Who ships a block: single copy delivery, its local form, and donors for rebuilding (seed 000).

Every holder decides alone, from the copyset that lies beside its copy and from what the reader
said in START; nobody asks anybody.  That the holders agree rests on each of them computing the
same function of the same values, so nothing here depends on the node but the last step, "is it
me?".  Where copies disagree about the copyset it may be that nobody ships, or more than one: the
reader drops duplicates, and all-send-all is for the rest.

  I1  With a live member in a copyset exactly one live member ships.  A member that is known to be
      down ships what it would ship if it were not, so that the reader sees that it is back (R2).
  I2  If a whole copyset is known to be down, every holder ships.
  I3  One more node known to be down moves that node's blocks alone: the full copyset is shuffled,
      and the nodes that are down are skipped afterwards (R1).
  I4  The order is the same on all nodes and in all versions: it hashes node ids, with a hash that
      a standard defines.
  I5  What the decision needs is in the copyset index; no block is read for it.
"""

import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import shake_256
from typing import Final

from millrace.core.messages.streams import Shipping
from millrace.types import Copy, CopysetOrder, EntryKind, LocalScd, NodeId, Placement

SCOPES_OF_LOCATION: Final = 5  # region.dc.cluster.row.rack
FIXED_SEED: Final = 0  # Of `shuffled`: one order for all readers, so that their reads share caches.
# Sticky copysets repeat for megabytes, so a few thousand are those of a very long read.
COPYSETS_REMEMBERED_MAX: Final = 4_096

# From which priority on nodes are equally near to the reader (R3).
_PRIORITY_MAX: Final = {
    LocalScd.OFF: 0,
    LocalScd.REGION: 1,
    LocalScd.RACK: SCOPES_OF_LOCATION,
}


def delivery_order(
    copyset: tuple[NodeId, ...], order: CopysetOrder, seed: int
) -> tuple[NodeId, ...]:
    """The copyset as its members are asked to ship, first to last."""
    match order:
        case CopysetOrder.SHUFFLED:
            return _shuffled(copyset, FIXED_SEED)
        case CopysetOrder.SHUFFLED_PER_CLIENT:
            return _shuffled(copyset, seed)
        case CopysetOrder.STORED:
            return copyset


@lru_cache(maxsize=COPYSETS_REMEMBERED_MAX)
def _shuffled(copyset: tuple[NodeId, ...], seed: int) -> tuple[NodeId, ...]:
    """Each member draws a ticket from the hash of the seed and the copyset as it is stored."""
    size = len(copyset)
    told = struct.pack(f"<{size + 1}Q", seed & (2**64 - 1), *copyset)
    tickets = struct.unpack(f"<{size}I", shake_256(told).digest(4 * size))
    return tuple(node for _, node in sorted(zip(tickets, copyset, strict=True)))


def shared_scopes(one: str, other: str) -> int:
    """How many scopes two locations share, from the region down to the first that differs.  What
    is not told is not shared."""
    shared = 0
    for mine, its in zip(one.split("."), other.split("."), strict=False):
        if not mine or mine != its or shared == SCOPES_OF_LOCATION:
            break
        shared += 1
    return shared


def donor(placement: Placement, rebuilding: Collection[NodeId]) -> NodeId | None:
    """Who gives its copy of a block to the rebuilding of these nodes: the first of the copyset
    that is not rebuilt itself, for which, other than with readers, it makes no exception.  None:
    no copy is left."""
    return next((node for node in placement.copyset if node not in rebuilding), None)


class Shipper:
    """What one node ships to one stream, for as long as a START stands.  Locations that change
    meanwhile count from the next START on."""

    def __init__(self, me: NodeId, shipping: Shipping, locations: Mapping[NodeId, str]) -> None:
        self._me = me
        self._shipping = shipping
        self._locations = locations
        self._down = frozenset(shipping.known_down) - {me}  # A node ignores itself in the list.
        self._priority_max = _PRIORITY_MAX[shipping.local]
        self._decided: dict[tuple[NodeId, ...], bool] = {}

    def ships(self, copy: Copy) -> bool:
        # Holes and bridges come from every holder: they are small, and the reader needs but one.
        return copy.extent.kind is not EntryKind.DATA or self.ships_of(copy.placement.copyset)

    def ships_of(self, copyset: tuple[NodeId, ...]) -> bool:
        """Whether it ships data of this copyset; if that is not known, every holder does."""
        if not self._shipping.is_single_copy:
            return True
        decided = self._decided.get(copyset)
        if decided is None:
            if len(self._decided) >= COPYSETS_REMEMBERED_MAX:
                self._decided.clear()
            decided = self._decided[copyset] = self._primary(copyset) in (self._me, None)
        return decided

    def _primary(self, copyset: tuple[NodeId, ...]) -> NodeId | None:
        """The left-most of the live nodes that are nearest to the reader; None if all are down."""
        order = delivery_order(copyset, self._shipping.order, self._shipping.seed)
        live = [node for node in order if node not in self._down]
        return max(live, key=self._priority, default=None)  # Of equals, `max` takes the first.

    def _priority(self, node: NodeId) -> int:
        if not self._priority_max:
            return 0
        shared = shared_scopes(self._shipping.location, self._locations.get(node, ""))
        return min(shared, self._priority_max)
