"""Which commit logs keep a node from being drained or given up: those whose replicas on it no other
node can take.

A committer moves replicas by itself as long as there are nodes to move them to; whether there are
follows from what the repository knows.

  I1  Asked only while some node is to be left: of a cluster that is well nothing more is read.
  I2  At most BLOCKED_MAX logs are told of a node.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from millrace.client.blocked_rebuilds import BLOCKED_MAX, BlockedLog
from millrace.core.commit.holding import resting_on
from millrace.core.commit.record import CommitRecord
from millrace.core.procedure import ClusterView
from millrace.core.replication import Replication, cannot_replicate
from millrace.core.statuses import Entries, lost_nodes
from millrace.types import NodeId, Role

if TYPE_CHECKING:
    from millrace.client.cluster import Client


async def blocked_streams(
    client: "Client", entries: Entries
) -> dict[NodeId, tuple[BlockedLog, ...]]:
    """Of the nodes that are to be left."""
    wanted = [node for node, entry in entries.items() if entry.rebuild]
    if not wanted:  # Keeps I1.
        return {}
    view = await client.directory.view()
    names = {info.id: info.name for info in await client.directory.logs()}
    named = [record for record in await client.directory.commits() if record.log in names]
    takers = takers_of(view, [node for node, entry in entries.items() if entry.is_disabled])
    found: dict[NodeId, tuple[BlockedLog, ...]] = {}
    for node in wanted:
        held = resting_on(node, named, lost_nodes(entries))
        lacks = [(names[record.log], lack_of_takers(record, takers, view)) for record in held]
        blocked = [BlockedLog(name, lack) for name, lack in lacks if lack]
        found[node] = tuple(blocked[:BLOCKED_MAX])  # Keeps I2.
    return found


def takers_of(view: ClusterView, disabled: Collection[NodeId]) -> frozenset[NodeId]:
    """The nodes that may get a replica."""
    storage = {info.id for info in view.nodes if Role.STORAGE in info.roles}
    return frozenset((view.live & storage).difference(disabled))


def lack_of_takers(record: CommitRecord, takers: Collection[NodeId], view: ClusterView) -> str:
    """Why these nodes cannot have all replicas of a stream; empty if they can."""
    locations = {info.id: info.location for info in view.nodes}
    return cannot_replicate(Replication.of(record.copies), takers, locations)
