"""Who gives the copies of lost nodes to whom (R11, logdevice 2.22).

Every holder of a block decides for itself whether it is the donor, and any of them would choose the
same node to take the place of a lost one; nobody is asked.

  I1  Of a block's holders the first is the donor that is not rebuilt itself and has not finished:
      one that has finished does not hold the block, as one that says so does not.  A holder that
      nobody helps helps itself.
  I2  Copies go where the replication wants them, and first to nodes that have their disks.  Only
      if these are too few is a node that lives again, empty, given its own copies back.
  I3  The same node is chosen for all blocks of one copyset, whoever chooses: a donor that was
      interrupted makes no more copies than needed, and runs of blocks stay together.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from struct import pack

import msgspec

from millrace.core.epochs import EpochRange
from millrace.core.replication import Locations, Replication, domain_of, requirements
from millrace.core.shipping import donor
from millrace.types import LogId, NodeId, Placement

Copyset = tuple[NodeId, ...]


class Ward(msgspec.Struct, frozen=True):
    """Who is to be rebuilt, as one donor knows it."""

    me: NodeId
    rebuilding: frozenset[NodeId]
    leaving: frozenset[NodeId] = frozenset()  # Of these, the drained: they still have their copies.
    refillable: frozenset[NodeId] = frozenset()  # Of these, the ones that are alive and empty.
    forsaken: frozenset[NodeId] = frozenset()  # Of these, the dead that nobody waits for.
    disabled: frozenset[NodeId] = frozenset()  # Take no copies: all of the above, and more.
    finished: Mapping[NodeId, frozenset[NodeId]] = {}  # Node to be rebuilt: donors that are done.

    def lost_of(self, copyset: Collection[NodeId]) -> frozenset[NodeId]:
        return self.rebuilding.intersection(copyset)

    def donor_of(
        self, placement: Placement, lost: Collection[NodeId], absent: Collection[NodeId] = ()
    ) -> NodeId:
        """Of a block that this node holds, and that lacks those that are `lost`; `absent` are known
        to have no copy.  Keeps I1.  What only drained nodes hold they give themselves; holes and
        bridges are held by more nodes than their copysets name."""
        finished = (self.finished.get(node, ()) for node in lost)
        done = {node for nodes in finished for node in nodes if node != self.me}.union(absent)
        dead = self.rebuilding - self.leaving
        named = donor(placement, self.rebuilding | done) or donor(placement, dead | done)
        return named or self.me


class Replacement(msgspec.Struct, frozen=True):
    """The copyset that a block gets, and who of it is to be sent the block."""

    copyset: Copyset
    added: Copyset


def replace(
    log: LogId,
    copyset: Copyset,
    gone: Collection[NodeId],
    span: EpochRange,
    locations: Locations,
    ward: Ward,
    avoided: Collection[NodeId] = (),
) -> Replacement | None:
    """In the place of those that are `gone`, as many others as the replication asks for; if there
    are too few, as many as there are.  None: nothing can be done."""
    holders = [node for node in copyset if node not in gone]
    others = set(span.nodeset).difference(holders, ward.disabled, gone, avoided)
    candidates = sorted(others, key=lambda node: _weight(log, copyset, node))
    candidates += sorted(ward.refillable.intersection(gone).difference(avoided))  # Keeps I2.
    added, is_enough = _missing_members(span.replication, holders, candidates, locations)
    if not added and not is_enough:
        return None
    return Replacement(_substitute(copyset, gone, added, is_enough), tuple(added))


def _missing_members(
    replication: Replication,
    holders: Sequence[NodeId],
    candidates: Sequence[NodeId],
    locations: Locations,
) -> tuple[list[NodeId], bool]:
    """The candidates that make a copyset of the holders, and whether they do.  Big scopes first: a
    node that a rack lacks counts as a node as well."""
    added: list[NodeId] = []
    is_enough = True
    for scope, factor in requirements(replication):
        touched = {domain_of(node, scope, locations) for node in (*holders, *added)}
        for node in candidates:
            domain = domain_of(node, scope, locations)
            if len(touched) < factor and domain not in touched:
                touched.add(domain)
                added.append(node)
        is_enough = is_enough and len(touched) >= factor
    return added, is_enough


def _substitute(
    copyset: Copyset, gone: Collection[NodeId], added: Sequence[NodeId], is_enough: bool
) -> Copyset:
    """The new ones where the lost ones were, so that the work of sending stays as it was spread.
    Without enough of them the rest of the lost ones stay named: they are not forgotten."""
    fresh = [node for node in added if node not in copyset]
    slots: list[NodeId] = []
    for node in copyset:
        if node not in gone or node in added:
            slots.append(node)
        elif fresh:
            slots.append(fresh.pop(0))
        elif not is_enough:
            slots.append(node)
    return (*slots, *fresh)


def _weight(log: LogId, copyset: Copyset, node: NodeId) -> bytes:
    """Keeps I3: rendezvous hashing, as in `preferred.py`."""
    told = pack(f"<{len(copyset) + 2}Q", log, node, *copyset)
    return blake2b(told, digest_size=8).digest()
