"""On which nodes the blocks of a log's next epoch may lie.

A nodeset should change rarely: every change is a record that readers must know of, and one more
set of nodes that must answer before a gap in an old epoch can be told.  So members stay as long as
they exist, dead or not, and others join only where some are missing.

  I1  The same arguments give the same nodeset, in the same order.
  I2  If the live nodes can hold a copyset at all, those of the nodeset can, even if that takes
      more nodes than were asked for.
  I3  What was chosen is chosen again: with it as `current` nothing changes.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from millrace.core.replication import Locations, Replication, can_replicate, domain_of
from millrace.core.sequenced.preferred import weight
from millrace.limits import NODESET_SIZE_MAX
from millrace.types import LogId, NodeId, NodeInfo, Role

METADATA_NODES: Final = 5  # Of a metadata log, if there are so many.


def choose_nodeset(
    log: LogId,
    replication: Replication,
    nodes: Iterable[NodeInfo],
    live: Collection[NodeId],
    size: int | None = None,
    current: Iterable[NodeId] = (),
    leaving: Collection[NodeId] = (),
    counted: Collection[NodeId] = (),
) -> tuple[NodeId, ...]:
    """The current members that are still registered and do not leave, and live nodes up to `size`
    members in all; None: as many as there are.  Of more live members than that the ones stay that
    are preferred.  Dead members that are `counted` on need no others in their place."""
    able = {
        node.id: node.location
        for node in nodes
        if Role.STORAGE in node.roles and node.id not in leaving
    }
    members = [node for node in current if node in able]
    others = sorted(
        (node for node in able if node in live and node not in members),
        key=lambda node: weight(log, node),
    )
    size = NODESET_SIZE_MAX if size is None else min(size, NODESET_SIZE_MAX)
    while others and len(members) < NODESET_SIZE_MAX:
        is_enough = len(members) >= size and can_replicate(
            replication, (node for node in members if node in live or node in counted), able
        )
        if is_enough:
            break
        pick = _loneliest(replication, others, members, able)
        others.remove(pick)
        members.append(pick)
    present = [node for node in members if node in live]
    for node in _dropped(log, replication, present, len(present) - size, able):
        members.remove(node)
    return tuple(members)


def _dropped(
    log: LogId,
    replication: Replication,
    members: Sequence[NodeId],
    count: int,
    locations: Locations,
) -> list[NodeId]:
    """So many of the members that the others can do without: those that were the last to be
    preferred.  Keeps I2."""
    left = list(members)
    dropped: list[NodeId] = []
    for node in sorted(members, key=lambda node: weight(log, node)):
        others = [each for each in left if each != node]
        if len(dropped) < count and can_replicate(replication, others, locations):
            left, dropped = others, [*dropped, node]
    return dropped


def _loneliest(
    replication: Replication,
    candidates: Iterable[NodeId],
    members: Collection[NodeId],
    locations: Locations,
) -> NodeId:
    """The candidate with the fewest members in its domains, bigger domains first; of equals the
    last."""
    scopes = [scope for scope, _ in replication.factors]
    taken = [[domain_of(node, scope, locations) for node in members] for scope in scopes]

    def company(node: NodeId) -> list[int]:
        return [
            domains.count(domain_of(node, scope, locations))
            for scope, domains in zip(scopes, taken, strict=True)
        ]

    return min(reversed(list(candidates)), key=company)
