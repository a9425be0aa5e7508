"""Walks of donors over a model cluster."""

from typing import Any

from sequenced_cluster import LOG, ModelCluster, junk, nodes

from millrace.core.procedure import Failure
from millrace.core.sequenced.giving import Tally
from millrace.core.sequenced.rebuilding import LogWalk
from millrace.core.sequenced.replacing import Ward
from millrace.lsn import lsn_of
from millrace.types import Epoch, Lsn, NodeId, Placement

READABLE_END = lsn_of(Epoch(2), 1)
WALKS_MAX = 12


def ward(me: int, *rebuilding: int, **more: Any) -> Ward:
    lost = frozenset(nodes(*rebuilding))
    return Ward(NodeId(me), lost, disabled=lost, **more)


def walk(
    cluster: ModelCluster, ward: Ward, readable_end: Lsn = READABLE_END
) -> tuple[Tally, Failure | None]:
    tally = Tally()
    node = cluster.nodes[ward.me]
    running = LogWalk(LOG, ward, node.trim_end, node.end, readable_end, tally, junk).run()
    return tally, cluster.run(running)


def rebuild(cluster: ModelCluster, *lost: int, **more: frozenset[NodeId]) -> int:
    """All donors walk, one after the other, until all have finished with all; the blocks given."""
    finished: dict[NodeId, frozenset[NodeId]] = dict.fromkeys(nodes(*lost), frozenset())
    givers = [n for n in cluster.nodes if n not in finished or n in more.get("leaving", ())]
    given = 0
    for _ in range(WALKS_MAX):
        for me in givers:
            if me in cluster.down:
                continue
            known = ward(me, *lost, finished=finished, **more)
            tally, trouble = walk(cluster, known)
            assert trouble is None
            given += tally.blocks_done
            finished = {
                node: donors if tally.blocks_left.get(node) else donors | {me}
                for node, donors in finished.items()
            }
        if all(donors.issuperset(givers) for donors in finished.values()):
            return given
    raise AssertionError(f"not finished: {finished}")


def holders(cluster: ModelCluster, first: Lsn) -> set[NodeId]:
    return {number for number, node in cluster.nodes.items() if first in node.blocks}


def placements(cluster: ModelCluster, first: Lsn) -> set[Placement]:
    held = [node.blocks[first][1] for node in cluster.nodes.values() if first in node.blocks]
    return set(held)


def wipe(cluster: ModelCluster, *lost: int) -> None:
    for node in nodes(*lost):
        cluster.nodes[node].blocks.clear()
