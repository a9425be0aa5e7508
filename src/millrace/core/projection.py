"""A log's projection: which nodes form its chain, in which epoch, and who sequences it.

Kept in the metadata repository under compare-and-set; everyone else holds a copy and learns from
refusals that it is old.  The functions here are the arithmetic of changing one.
"""

from collections.abc import Collection, Sequence
from enum import Enum

import msgspec

from millrace.types import Epoch, LogId, NodeId, NodeInfo, Role


class ReconfigureReason(Enum):
    """Why a chain was changed; the word appears in the projection, logs and metrics."""

    CREATED = "created"
    UNREACHABLE = "unreachable"  # A node did not answer in time.
    FENCED = "fenced"  # A seal by somebody who did not finish left nodes ahead of us.
    INCOMPLETE = "incomplete"  # A node lost data it once had.
    DISK_FULL = "disk_full"
    BROKEN = "broken"  # A node's disk fails.
    SEQUENCER_LOST = "sequencer_lost"
    GROWN = "grown"  # A node synchronized and joined.
    SEALED = "sealed"  # The log was sealed for good.
    OPERATOR = "operator"


class Projection(msgspec.Struct, frozen=True):
    """`previous` is the epoch this one directly follows: what a node acknowledged there and
    still belongs to the chain, it still holds.  `issuing_since` is the first epoch of the present
    sequencer's count: a position issued before it may lie below what was acknowledged since, so
    nothing new is written there (G8)."""

    log: LogId
    epoch: Epoch
    chain: tuple[NodeId, ...]  # Head first; reads go to the last.
    sequencer: NodeId
    replication: int
    previous: Epoch = Epoch(0)
    reason: ReconfigureReason = ReconfigureReason.CREATED
    is_sealed: bool = False  # For good: no more appends.
    changes: int = 0  # Reconfigurations since the log was created.
    issuing_since: Epoch = Epoch(0)

    @property
    def head(self) -> NodeId:
        return self.chain[0]

    @property
    def tail(self) -> NodeId:
        return self.chain[-1]

    @property
    def is_redundant(self) -> bool:
        """False is the seed's "WARN: no redundancy!"."""
        return len(self.chain) > 1 or self.replication == 1

    @property
    def is_degraded(self) -> bool:
        return len(self.chain) < self.replication


def choose_chain(
    log: LogId, replication: int, nodes: Sequence[NodeInfo], live: Collection[NodeId]
) -> tuple[NodeId, ...]:
    """A chain of `replication` live storage nodes, or fewer when there are not enough.

    Starting at a different node for each log spreads heads and tails evenly; taking nodes of
    unseen racks first keeps one rack's loss from taking the whole chain.
    """
    able = sorted(
        (node for node in nodes if Role.STORAGE in node.roles and node.id in live),
        key=lambda node: node.id,
    )
    if not able:
        return ()
    start = (log - 1) % len(able)
    ring = able[start:] + able[:start]
    chain: list[NodeInfo] = []
    while len(chain) < replication and ring:
        racks = {node.location for node in chain}
        pick = next((node for node in ring if node.location not in racks), ring[0])
        ring.remove(pick)
        chain.append(pick)
    return tuple(node.id for node in chain)


def sequencer_candidates(
    log: LogId, current: NodeId, nodes: Sequence[NodeInfo], live: Collection[NodeId]
) -> list[NodeId]:
    """The current sequencer first: it remembers what it issued (C6).  Then the live ones, each
    log beginning elsewhere so that sequencers spread."""
    able = sorted(node.id for node in nodes if Role.SEQUENCER in node.roles and node.id in live)
    start = log % len(able) if able else 0
    ring = able[start:] + able[:start]
    known = [current] if any(node.id == current for node in nodes) else []
    return known + [node for node in ring if node != current]
