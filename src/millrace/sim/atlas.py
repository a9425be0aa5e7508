"""What may be destroyed without breaking more than the design promises to bear.

G1 holds while at most R-1 nodes of a chain have lost what they held.  If faults went beyond it,
every failure would be excused, so the atlas is asked first: may this node lose its disk, or its
memory, now?  A node whose log took memory-acknowledged blocks loses data by a mere crash.

The chain that counts is that of the current projection.  A node that somebody has sealed into a
later epoch may be about to become a chain of its own: it is spared until that is decided.
"""

from typing import TYPE_CHECKING

from millrace.core.messages import Standing
from millrace.core.projection import Projection
from millrace.types import LogId

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World


class Atlas:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.gone: set[int] = set()  # Nodes that will not come back.

    def may_lose_disk(self, node: "Node") -> bool:
        is_spared = all(self._may_lose(node, log) for log in self._world.log_ids)
        return is_spared and all(part.may_lose_disk(node) for part in self._world.parts)

    def may_stay_away(self, node: "Node") -> bool:
        """For good, together with those that are gone."""
        is_spared = all(self._may_lose(node, log) for log in self._world.log_ids)
        return is_spared and all(part.may_stay_away(node, self.gone) for part in self._world.parts)

    def may_crash(self, node: "Node") -> bool:
        """A crash loses nothing but what was acknowledged from memory."""
        is_spared = all(
            self._may_lose(node, log)
            for log in self._world.log_ids
            if self.is_volatile(node, log) and node.is_up
        )
        return is_spared and all(part.may_lose_memory(node) for part in self._world.parts)

    def is_volatile(self, node: "Node", log: LogId) -> bool:
        stored = node.disk.logs.get(log)
        opened = node.store.opened(log) if node.is_up else None
        return (stored is not None and stored.is_volatile) or (
            opened is not None and opened.is_marked
        )

    def may_rot(self, node: "Node", log: LogId) -> bool:
        for part in self._world.parts:
            if part.owns(log):
                return part.may_rot(node, log)
        return self._may_lose(node, log)

    def whole(self, log: LogId, *, is_rot_forgiven: bool = False) -> list["Node"]:
        """Members of the chain that hold all that was acknowledged."""
        projection = self._world.projection(log)
        members = [self._world.node(number) for number in projection.chain]
        return [
            node
            for node in members
            if self._is_whole(node, log, projection)
            and (is_rot_forgiven or not node.disk.rotten.get(log))
        ]

    def is_being_changed(self, node: "Node", log: LogId) -> bool:
        """Somebody sealed the node into an epoch that has no projection yet."""
        epoch = self._world.projection(log).epoch
        stored = node.disk.logs.get(log)
        opened = node.store.opened(log) if node.is_up else None
        return (stored is not None and stored.fence.epoch > epoch) or (
            opened is not None and opened.fence.epoch > epoch
        )

    def _may_lose(self, node: "Node", log: LogId) -> bool:
        projection = self._world.projection(log)
        if self.is_being_changed(node, log):
            return False
        if node.node not in projection.chain:
            return True
        return any(other is not node for other in self.whole(log))

    def _is_whole(self, node: "Node", log: LogId, projection: Projection) -> bool:
        stored = node.disk.logs.get(log)
        if stored is None or node.number in self.gone:
            return False
        is_member = stored.fence.standing is Standing.MEMBER
        if not is_member or stored.fence.epoch < projection.epoch:
            return False
        return not self.is_volatile(node, log) or (node.is_up and not node.is_disk_full)
