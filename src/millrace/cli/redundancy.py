"""How many copies are left of what a log holds, in the same words for each write path.

A chain counts its members and a stream its replicas.  The blocks of a sequenced log lie on
different nodes of its nodeset, so what counts is the block that suffers most: each node of the
nodeset that is away may have been in its copyset.

  I1  A node whose copies of sequenced logs have been made anew elsewhere is missed by none of them.
  I2  One that lives with an empty disk is missed by them, as one that is dead.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from millrace.cli.output import Cell, Tone
from millrace.core.commit.record import CommitRecord
from millrace.core.projection import Projection
from millrace.types import AuthoritativeStatus, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import ClusterStatus
    from millrace.client.log_standing import LogStanding


class Presence(msgspec.Struct, frozen=True):
    """Who is there: the nodes that are alive, and the statuses that are not the usual one."""

    live: frozenset[NodeId]
    statuses: Mapping[NodeId, AuthoritativeStatus] = {}

    @staticmethod
    def of(status: "ClusterStatus") -> "Presence":
        live = frozenset(node.info.id for node in status.nodes if node.is_live)
        standings = status.statuses.items()
        return Presence(live, {NodeId(node): each.entry.status for node, each in standings})

    @staticmethod
    def of_answers(
        members: Mapping[int, object | None],
        statuses: Mapping[int, AuthoritativeStatus] | None = None,
    ) -> "Presence":
        """For whoever has just asked them all: None did not answer."""
        live = frozenset(NodeId(node) for node, told in members.items() if told is not None)
        known = {NodeId(node): status for node, status in (statuses or {}).items()}
        return Presence(live, known)

    def holders(self, nodes: Iterable[NodeId]) -> int:
        return sum(node in self.live for node in nodes)

    def missed(self, nodeset: Iterable[NodeId]) -> int:
        """Nodes of a sequenced log whose copies nobody has made anew."""
        return sum(self._is_missed(node) for node in nodeset)

    def _is_missed(self, node: NodeId) -> bool:
        match self.statuses.get(node):
            case AuthoritativeStatus.AUTHORITATIVE_EMPTY:  # Keeps I1.
                return False
            case AuthoritativeStatus.UNDERREPLICATION:  # Keeps I2.
                return True
            case _:
                return node not in self.live


class Redundancy(msgspec.Struct, frozen=True):
    """Copies of the records that suffer most."""

    left: int
    wanted: int

    @property
    def is_redundant(self) -> bool:
        return self.left > 1 or self.left >= self.wanted

    @property
    def is_degraded(self) -> bool:
        return self.left < self.wanted

    @property
    def trouble(self) -> Cell | None:
        """None if there are as many copies as there should be."""
        if not self.is_redundant:
            return Cell("no redundancy", Tone.BAD)
        return Cell("degraded", Tone.WARNING) if self.is_degraded else None


def redundancy_of(standing: "LogStanding", presence: Presence) -> Redundancy:
    if isinstance(standing, Projection):
        return Redundancy(presence.holders(standing.chain), standing.replication)
    if isinstance(standing, CommitRecord):
        held = [presence.holders(each.replicas) for each in standing.streams]
        return Redundancy(min(held, default=0), standing.copies)
    copies = standing.replication.copies
    return Redundancy(max(0, copies - presence.missed(standing.nodeset)), copies)


def state_of_log(standing: "LogStanding", presence: Presence) -> Cell:
    """The word for a log in `log ls` and `log info`: the worst that is true of it."""
    trouble = redundancy_of(standing, presence).trouble
    if isinstance(standing, CommitRecord) and any(not s.generation for s in standing.streams):
        return Cell("being made", Tone.WARNING)
    if trouble is not None:
        return trouble
    if not isinstance(standing, Projection | CommitRecord) and standing.clean + 1 < standing.epoch:
        return Cell("recovering", Tone.WARNING)
    return Cell("sealed", Tone.FAINT) if standing.is_sealed else Cell("ok", Tone.GOOD)
