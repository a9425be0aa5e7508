"""Which node should sequence a log, and in which order nodes are preferred for it at all.

Rendezvous hashing: every pair of log and node has a weight, and the live node with the highest
one wins.  Whoever computes it gets the same answer without asking anybody, logs spread evenly,
and a node that comes or goes moves only the logs that it wins or had.

  I1  A weight depends on the two ids alone: the same in every process and version.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from struct import Struct

from millrace.types import LogId, NodeId, NodeInfo, Role

_PAIR = Struct("<QQ")


def weight(log: LogId, node: NodeId) -> int:
    """Keeps I1."""
    return int.from_bytes(blake2b(_PAIR.pack(log, node), digest_size=8).digest(), "little")


def preferred_sequencer(
    log: LogId, nodes: Iterable[NodeInfo], live: Collection[NodeId]
) -> NodeId | None:
    """None if no node that may sequence is live."""
    return next(iter(preferred_sequencers(log, nodes, live)), None)


def preferred_sequencers(
    log: LogId, nodes: Iterable[NodeInfo], live: Collection[NodeId]
) -> list[NodeId]:
    """All live nodes that may sequence, the preferred one first."""
    able = [node.id for node in nodes if Role.SEQUENCER in node.roles and node.id in live]
    return sorted(able, key=lambda node: weight(log, node), reverse=True)
