"""On which nodes the partitions of a bucket should be.

Three wishes, in this order: every node has as many masters as any other, replicas lie in other
racks than their master, every node has as many replicas as any other.  What is wanted is found from
what is: copies stay where they are unless a wish moves them.

Levelling is the search for the shortest chain of nodes along which one copy each can be handed on
from a node that has more to one that has at least two fewer.  When there is no such chain the loads
are as level as the rules allow, whatever else would be tried.

  I1  The same arguments give the same placement.
  I2  Loads of masters differ by at most one.  So do those of replicas if there are no racks; in
      racks of equal size by at most two, because a rack holds the replicas of other masters.
  I3  With the wanted placement as the current one nothing changes.
  I4  Only the nodes that are given get anything.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.replication import Locations, Scope, domain_of
from millrace.types import NO_NODE, NodeId

# If a rack has a larger part of the nodes racks do not count: the few other nodes would have to
# hold a replica of nearly everything.
RACK_SHARE_MAX: Final = 2 / 3


class Copies(msgspec.Struct, frozen=True, array_like=True):
    """Of one partition."""

    active: NodeId
    replicas: tuple[NodeId, ...] = ()

    @property
    def holders(self) -> tuple[NodeId, ...]:
        return (self.active, *self.replicas)


def place(
    nodes: Iterable[NodeId], locations: Locations, replicas: int, current: Sequence[Copies]
) -> tuple[Copies, ...]:
    """The copies wanted of each partition: a new bucket's current ones name NO_NODE.  `nodes` are
    those that may have any, at least one; with too few there are fewer replicas."""
    able = tuple(sorted(set(nodes)))
    assert able, "documents need a node"
    racks = _racks(able, locations)
    masters = _place_masters(able, racks, current)
    chosen = _Replicas(able, racks, min(replicas, len(able) - 1), masters)
    for partition, copies in enumerate(current):
        chosen.keep(partition, copies.holders)
    chosen.fill()
    chosen.level()
    return tuple(
        Copies(master, _in_order(chosen.of[partition], current[partition].replicas))
        for partition, master in enumerate(masters)
    )


def _racks(able: Sequence[NodeId], locations: Locations) -> dict[NodeId, str]:
    racks = {node: domain_of(node, Scope.RACK, locations) for node in able}
    largest = max(Counter(racks.values()).values())
    if largest > RACK_SHARE_MAX * len(able):
        return dict.fromkeys(able, "")  # As if there were none.
    return racks


def _in_order(chosen: Collection[NodeId], before: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Those that stay keep their order."""
    stay = [node for node in before if node in chosen]
    return (*stay, *sorted(node for node in chosen if node not in stay))


# -- Masters ----------------------------------------------------------------------------------


def _place_masters(
    able: Sequence[NodeId], racks: Mapping[NodeId, str], current: Sequence[Copies]
) -> list[NodeId]:
    """Racks have as many for each of their nodes as others, too: else the replicas, which lie
    elsewhere, could not be level."""
    masters = [copies.active if copies.active in able else NO_NODE for copies in current]
    sizes = Counter(racks.values())
    load = Counter(dict.fromkeys(able, 0))
    rack_load: Counter[str] = Counter()

    def rank(node: NodeId, more: int = 0) -> tuple[int, float]:
        rack = racks[node]
        return load[node] + more, (rack_load[rack] + more) / sizes[rack]

    def give(partition: int, node: NodeId, share: int = 1) -> None:
        masters[partition] = node
        load[node] += share
        rack_load[racks[node]] += share

    for partition, master in enumerate(masters):
        if master != NO_NODE:
            give(partition, master)
    for partition, master in enumerate(masters):
        if master == NO_NODE:
            # One that has a copy needs only to be promoted.
            holders = [node for node in current[partition].replicas if node in load]
            give(partition, min(holders or able, key=lambda node: (*rank(node), node)))
    while True:
        most = max(able, key=lambda node: (*rank(node), -node))
        least = min(able, key=lambda node: (*rank(node), node))
        if rank(least, more=1) >= rank(most):
            return masters
        partition = _leaving(most, least, masters, current)
        give(partition, most, share=-1)
        give(partition, least)


def _leaving(
    most: NodeId, least: NodeId, masters: Sequence[NodeId], current: Sequence[Copies]
) -> int:
    """The partition whose master moves: one that has a copy there, if there is one."""
    own = [partition for partition, master in enumerate(masters) if master == most]
    return min(own, key=lambda partition: (least not in current[partition].replicas, partition))


# -- Replicas ---------------------------------------------------------------------------------


class _Replicas:
    """The replicas of all partitions while they are being chosen."""

    def __init__(
        self,
        able: Sequence[NodeId],
        racks: Mapping[NodeId, str],
        count: int,
        masters: Sequence[NodeId],
    ) -> None:
        self.of: list[set[NodeId]] = [set() for _ in masters]
        self._able = able
        self._racks = racks
        self._count = count
        self._masters = masters
        self._rack_sizes = Counter(racks.values())
        self._load = Counter(dict.fromkeys(able, 0))
        self._partitions: dict[NodeId, set[int]] = {node: set() for node in able}

    def keep(self, partition: int, holders: Iterable[NodeId]) -> None:
        """What is there stays, as far as the racks allow."""
        for node in dict.fromkeys(holders):
            is_free = node in self._load and node != self._masters[partition]
            if is_free and len(self.of[partition]) < self._count:
                self._add(partition, node)
        home = self._racks[self._masters[partition]]
        while not self._is_apart(partition, self.of[partition]):
            at_home = [node for node in self.of[partition] if self._racks[node] == home]
            self._remove(partition, min(at_home))

    def fill(self) -> None:
        for partition, chosen in enumerate(self.of):
            taken = {self._masters[partition]}
            while len(chosen) < self._count:
                others = [node for node in self._able if node not in chosen | taken]
                apart = [node for node in others if self._is_apart(partition, {*chosen, node})]
                self._add(partition, min(apart, key=lambda node: (self._load[node], node)))

    def level(self) -> None:
        """Hand on copies until no chain of nodes makes the loads more equal."""
        hopeless: set[NodeId] = set()  # Nor can anybody whom one of them reaches.
        while len(hopeless) < len(self._able):
            able = [node for node in self._able if node not in hopeless]
            most = max(able, key=lambda node: (self._load[node], -node))
            reached = self._hand_on(most)
            hopeless = hopeless | reached if reached else set()

    def _hand_on(self, start: NodeId) -> set[NodeId]:
        """Along the shortest chain from `start` to a node that has at least two fewer; if there is
        none, whom the chains from `start` reach."""
        came_from: dict[NodeId, tuple[NodeId, int]] = {}
        reached, waiting = {start}, deque([start])
        while waiting:
            giver = waiting.popleft()
            for taker in self._able:
                partition = None if taker in reached else self._movable(giver, taker)
                if partition is None:
                    continue
                came_from[taker] = (giver, partition)
                if self._load[start] - self._load[taker] > 1:
                    self._shift(came_from, taker, start)
                    return set()
                reached.add(taker)
                waiting.append(taker)
        return reached

    def _shift(
        self, came_from: Mapping[NodeId, tuple[NodeId, int]], end: NodeId, start: NodeId
    ) -> None:
        while end != start:
            giver, partition = came_from[end]
            self._remove(partition, giver)
            self._add(partition, end)
            end = giver

    def _movable(self, giver: NodeId, taker: NodeId) -> int | None:
        """A partition whose replica the one can hand to the other."""
        for partition in sorted(self._partitions[giver] - self._partitions[taker]):
            if taker != self._masters[partition]:
                after = (self.of[partition] - {giver}) | {taker}
                if self._is_apart(partition, after):
                    return partition
        return None

    def _is_apart(self, partition: int, replicas: Collection[NodeId]) -> bool:
        """Whether as few of them as can be are in the master's rack."""
        home = self._racks[self._masters[partition]]
        outside = len(self._able) - self._rack_sizes[home]
        at_home = sum(self._racks[node] == home for node in replicas)
        return at_home <= max(0, self._count - outside)

    def _add(self, partition: int, node: NodeId) -> None:
        self.of[partition].add(node)
        self._partitions[node].add(partition)
        self._load[node] += 1

    def _remove(self, partition: int, node: NodeId) -> None:
        self.of[partition].remove(node)
        self._partitions[node].remove(partition)
        self._load[node] -= 1
