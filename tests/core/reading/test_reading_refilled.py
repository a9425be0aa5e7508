"""What others have passed while a node lacked copies is asked again when it lacks none."""

import pytest

from millrace.types import AuthoritativeStatus, NodeId
from tests.core.reading.read_cluster import Cluster, at, block, nodes, one_range
from tests.core.reading.reading_samples import with_settings

EMPTY, LOST = AuthoritativeStatus.AUTHORITATIVE_EMPTY, AuthoritativeStatus.UNDERREPLICATION
WHOLE = ["1..1", "2..2"]
RECONNECTED_MS = 60_000  # Whoever was away for a while is tried again by then.


def cluster_of(statuses: dict[NodeId, AuthoritativeStatus], *, single_copy: bool) -> Cluster:
    """Nodes 1 and 2 had two blocks; node 1 is silent, and node 2 has lost its disk."""
    settings = with_settings(is_single_copy=single_copy, has_second_chance=False)
    cluster = Cluster(one_range([1, 2, 3], 2), at(1), at(4), settings, statuses)
    for offset in (1, 2):
        cluster.store(block(at(offset)), [1, 2], held_by=[1])
    cluster.release(at(2))
    cluster.hang(1)
    return cluster


def read_and_refill(cluster: Cluster, ms: int = 1_000) -> None:
    """Node 3 gets the copies of node 2, behind what it has passed."""
    cluster.open()
    cluster.run(ms)
    assert cluster.shown() == []
    cluster.nodes[NodeId(3)].copies = dict(cluster.nodes[NodeId(1)].copies)


def check_asked_again(cluster: Cluster, ms: int) -> None:
    cluster.run(ms)
    assert cluster.shown() == WHOLE
    assert cluster.rewinds["refilled"] == 1


def restart(cluster: Cluster, node: int) -> None:
    cluster.kill(node)
    cluster.revive(node)


def test_a_node_says_itself_that_it_lacks_nothing_any_more() -> None:
    cluster = cluster_of({}, single_copy=False)
    cluster.nodes[NodeId(2)].is_incomplete = True
    read_and_refill(cluster)
    cluster.nodes[NodeId(2)].is_incomplete = False
    restart(cluster, 2)
    check_asked_again(cluster, 10_000)


def test_a_node_says_so_while_it_is_read() -> None:
    cluster = cluster_of({}, single_copy=False)
    cluster.nodes[NodeId(2)].is_incomplete = True
    read_and_refill(cluster)
    cluster.nodes[NodeId(2)].is_incomplete = False
    cluster.nodes[NodeId(2)].tell_again()
    cluster.release(at(2))
    check_asked_again(cluster, 10_000)


def test_its_status_said_that_it_lacked_them() -> None:
    cluster = cluster_of({NodeId(2): LOST}, single_copy=False)
    cluster.hang(2)
    read_and_refill(cluster)
    cluster.wake(2)
    check_asked_again(cluster, 10_000)


@pytest.mark.parametrize("single_copy", [False, True], ids=["all send all", "single copy"])
@pytest.mark.parametrize("is_heard_first", [False, True], ids=["the node first", "status first"])
def test_its_status_is_heard_before_the_node_or_after_it(
    single_copy: bool, is_heard_first: bool
) -> None:
    cluster = cluster_of({NodeId(2): LOST}, single_copy=single_copy)
    cluster.kill(2)
    read_and_refill(cluster, 20_000)
    if is_heard_first:
        cluster.set_statuses({})
    cluster.revive(2)
    cluster.run(RECONNECTED_MS)
    cluster.set_statuses({})
    check_asked_again(cluster, RECONNECTED_MS)


def of_which_nothing_can_be_decided() -> Cluster:
    cluster = cluster_of({NodeId(2): LOST}, single_copy=False)
    cluster.hang(3)
    cluster.open()
    cluster.run(1_000)
    assert cluster.rewinds["refilled"] == 1
    return cluster


def test_a_node_that_lacks_nothing_though_its_status_says_so_is_heard_once() -> None:
    cluster = of_which_nothing_can_be_decided()
    for others in ((), (1,), ()):
        restart(cluster, 2)
        cluster.run(RECONNECTED_MS)
        cluster.set_statuses(dict.fromkeys(nodes(2, *others), LOST))
        restart(cluster, 2)
        cluster.run(RECONNECTED_MS)
    assert cluster.rewinds["refilled"] == 1 + 1  # Of node 1.


def test_a_node_that_loses_its_disk_again_is_heard_again() -> None:
    cluster = of_which_nothing_can_be_decided()
    for status in ({}, {NodeId(2): LOST}):
        cluster.set_statuses(status)
        cluster.run(1_000)
    assert cluster.rewinds["refilled"] == 1
    cluster.kill(2)
    cluster.set_statuses({})
    cluster.run(RECONNECTED_MS)
    assert cluster.rewinds["refilled"] == 1 + 1


def test_one_that_was_emptied_is_another_matter() -> None:
    cluster = cluster_of({NodeId(2): LOST}, single_copy=False)
    cluster.kill(2)
    read_and_refill(cluster)
    for status in ({NodeId(2): EMPTY}, {}):
        cluster.set_statuses(status)
        cluster.run(1_000)
    assert cluster.shown() == WHOLE
    assert "emptied" in cluster.rewinds
    assert "refilled" not in cluster.rewinds
