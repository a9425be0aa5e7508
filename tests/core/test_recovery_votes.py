"""Who must answer before a recovery decides, and whom it does without."""

from millrace.core import procedure as p
from millrace.core.messages import Standing
from millrace.types import NodeId
from tests.core.recovering import EMPTY, UNDERREPLICATION, holders, recovered, recovery, seen
from tests.core.sequenced_cluster import ModelCluster, data, nodes


def test_an_f_majority_is_enough() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2, 3))
    cluster.down.update(nodes(4, 5))
    recovered(cluster)
    assert seen(cluster) == "d1 BRIDGE"


def test_without_one_it_waits_and_says_for_whom() -> None:
    cluster = ModelCluster()
    cluster.down.update(nodes(3, 4, 5))
    result = cluster.run(recovery(cluster), effects_max=50)
    assert result.kind is p.FailureKind.TIMED_OUT
    assert "need answers of nodes [3, 4, 5]" in result.detail
    assert cluster.record is not None and cluster.record.clean == 0


def test_it_goes_on_when_a_node_comes_back() -> None:
    cluster = ModelCluster()
    cluster.down.update(nodes(3, 4, 5))
    cluster.paused = lambda: cluster.down.discard(NodeId(3))
    recovered(cluster)


def test_it_goes_on_when_silent_nodes_lose_their_votes() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1,))
    cluster.append(data(1, 3), (2,))
    cluster.down.update(nodes(3, 4, 5))
    cluster.paused = lambda: cluster.statuses.update(
        dict.fromkeys(nodes(3, 4, 5), UNDERREPLICATION)
    )
    recovered(cluster)
    assert seen(cluster) == "d1 - d3"  # What is missing may have been acknowledged: no hole.
    assert holders(cluster, 1) == holders(cluster, 3) == set(nodes(1, 2))


def test_nodes_that_were_emptied_are_not_waited_for() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2))
    cluster.down.update(nodes(3, 4, 5))
    cluster.statuses.update(dict.fromkeys(nodes(3, 4, 5), EMPTY))
    recovered(cluster)
    assert seen(cluster) == "d1 BRIDGE"


def test_a_node_that_lost_blocks_in_a_crash_has_no_vote_but_is_heard() -> None:
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1, 2, 3))
    cluster.append(data(1, 3), (2,))
    for node in cluster.nodes.values():
        node.standing = Standing.DIRTY
    recovered(cluster)
    assert seen(cluster) == "d1 - d3"


def test_a_blank_node_never_had_anything_and_may_say_so() -> None:
    cluster = ModelCluster(3)
    for node in cluster.nodes.values():
        node.standing = Standing.BLANK
    cluster.append(data(1, 2), (1,))
    recovered(cluster)
    assert seen(cluster) == "HOLE d2 BRIDGE"


def test_donors_look_again_when_something_was_stored_with_fewer_copies() -> None:
    """Nodes 1 and 2 may have finished with node 4, and node 3 may finish and never see it."""
    cluster = short_of_nodes_3_and_4()
    recovered(cluster)
    assert holders(cluster, 1) == set(nodes(1, 2))
    assert cluster.renewed == [nodes(4)]


def test_donors_are_left_alone_when_there_are_enough_copies() -> None:
    cluster = short_of_nodes_3_and_4()
    cluster.down = set(nodes(4))
    recovered(cluster)
    assert len(holders(cluster, 1)) == 3
    assert cluster.renewed == []


def test_fewer_copies_do_not_count_if_all_is_rebuilt_before_donors_know() -> None:
    """Then node 3 alone could outvote the two that have it."""
    cluster = short_of_nodes_3_and_4()
    cluster.as_renewed = lambda: cluster.statuses.update({NodeId(4): EMPTY})
    result = cluster.run(recovery(cluster), effects_max=50)
    assert result.kind is p.FailureKind.TIMED_OUT
    assert "too few nodes" in result.detail
    cluster.down.remove(NodeId(3))
    recovered(cluster, 3)
    assert holders(cluster, 1) == set(nodes(1, 2, 3))


def short_of_nodes_3_and_4() -> ModelCluster:
    """A block under way that nodes 1 and 2 have; node 4 is lost, and node 3 silent."""
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2), (1, 2, 3))
    cluster.down.update(nodes(3, 4))
    cluster.statuses[NodeId(4)] = UNDERREPLICATION
    return cluster


def test_too_few_nodes_to_write_to_is_a_reason_to_wait() -> None:
    """One of three nodes is an f-majority, but what it decides must outlive it."""
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1, 2, 3))
    cluster.down.add(NodeId(3))
    assert cluster.run(recovery(cluster), effects_max=50).kind is p.FailureKind.TIMED_OUT
    cluster.paused = cluster.down.clear
    recovered(cluster, 3)
