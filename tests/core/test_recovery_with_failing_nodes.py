"""Nodes that fail, or give damaged copies, while an epoch is recovered."""

from millrace.lsn import lsn_of
from millrace.types import NodeId
from tests.core.recovering import E1, holders, recovered, recovery, seen
from tests.core.sequenced_cluster import ModelCluster, data, nodes


def test_a_node_that_takes_no_stores_is_done_without() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1,))
    for node in nodes(2, 4):
        cluster.nodes[node].refuses_stores = True
    recovered(cluster)
    assert holders(cluster, 1) == set(nodes(1, 3, 5))
    assert "recovery.node_left_out" in cluster.notes


def test_a_damaged_copy_is_read_from_another_node() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2))
    cluster.nodes[NodeId(1)].damaged.add(lsn_of(E1, 1))
    recovered(cluster)
    assert seen(cluster) == "d1 BRIDGE"
    assert len(holders(cluster, 1)) == 3


def test_a_block_of_which_all_copies_are_damaged_is_lost_and_not_a_hole() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2))
    for node in nodes(1, 2):
        cluster.nodes[node].damaged.add(lsn_of(E1, 1))
    recovered(cluster)
    assert seen(cluster) == "LOSS BRIDGE"
    assert "recovery.lost" in cluster.notes


def test_while_a_node_is_silent_that_may_have_a_sound_copy_nothing_is_given_up() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 5))
    cluster.nodes[NodeId(1)].damaged.add(lsn_of(E1, 1))
    cluster.down.add(NodeId(5))
    result = cluster.run(recovery(cluster), effects_max=50)
    assert "none of nodes [1] gives its copy of e1n1" in result.detail
    cluster.paused = cluster.down.clear
    recovered(cluster, 3)
    assert seen(cluster) == "d1 BRIDGE"
