"""Donors that wait for each other find out what each of them need not wait for."""

import pytest
import sequenced_cluster
from donor_walks import holders, placements, rebuild, walk, ward, wipe
from sequenced_cluster import ModelCluster, data, nodes

from millrace.core.messages import Copies
from millrace.types import NodeId, Placement


def with_two_that_missed_each_others_amends() -> ModelCluster:
    """Each has given a block that the other holds, while that one was away."""
    cluster = ModelCluster(4)
    first, second = data(1, 1), data(1, 2)
    cluster.append(first, (1, 2, 3))
    cluster.append(second, (2, 1, 3))
    wipe(cluster, 3)
    for me, other in ((1, 2), (2, 1)):
        cluster.down = set(nodes(other))
        tally, _ = walk(cluster, ward(me, 3))
        assert (tally.blocks_done, tally.blocks_left) == (1, {3: 1})
    cluster.down = set()
    assert len(placements(cluster, first.first)) == len(placements(cluster, second.first)) == 2
    return cluster


def test_donors_that_missed_each_others_amends_do_not_wait_for_each_other() -> None:
    cluster = with_two_that_missed_each_others_amends()
    rebuild(cluster, 3)
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2, 4), 1)}
    assert placements(cluster, data(1, 2).first) == {Placement(nodes(2, 1, 4), 1)}


def test_holders_that_missed_later_waves_do_not_wait_for_each_other() -> None:
    """Each has a copy of a wave that was given up, and names the other as the donor."""
    cluster = ModelCluster(5)
    for block, stale, later in ((data(1, 1), (1, 2, 3), 2), (data(1, 2), (2, 1, 3), 1)):
        cluster.append(block, (later,), copyset=stale)
        cluster.append(block, (stale[0], 4, 5), wave=2)
    tallies = [walk(cluster, ward(me, 3))[0] for me in (1, 2)]
    assert [tally.blocks_left for tally in tallies] == [{}, {}]
    assert len(placements(cluster, data(1, 1).first)) == 1


def test_an_earlier_wave_tells_nothing() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1,), copyset=(1, 2, 4))
    cluster.append(data(1, 1), (2,), copyset=(1, 2, 3), wave=2)
    tally, _ = walk(cluster, ward(2, 3))
    assert tally.blocks_left == {3: 1}


def test_what_was_given_to_a_node_that_is_lost_since_is_not_done() -> None:
    """The donor gave it to node 4 while this one was away, and has not looked again."""
    cluster = ModelCluster(6)
    block = data(1, 1)
    cluster.append(block, (2, 1, 3))
    wipe(cluster, 3)
    cluster.down = set(nodes(1))
    walk(cluster, ward(2, 3))
    cluster.down = set()
    (taker,) = holders(cluster, block.first) - set(nodes(1, 2))
    wipe(cluster, taker)
    tally, _ = walk(cluster, ward(1, 3, taker))
    assert tally.blocks_left == {taker: 1}
    rebuild(cluster, 3, taker)
    assert len(holders(cluster, block.first)) == 3
    assert placements(cluster, block.first).pop().copyset[:2] == nodes(2, 1)


def strays_of_each_other() -> ModelCluster:
    """Of waves that were given up: each names the other as the donor, which refused them."""
    cluster = ModelCluster(7)
    for offset, (donor, holder) in ((1, (1, 2)), (2, (2, 1))):
        cluster.append(data(1, offset), (holder,), copyset=(donor, holder, 3))
        cluster.append(data(1, offset), (4, 5, 6), wave=2)
    return cluster


def test_nobody_waits_for_a_donor_that_has_nothing() -> None:
    cluster = strays_of_each_other()
    assert [walk(cluster, ward(me, 3))[0].blocks_left for me in (1, 2)] == [{}, {}]


def test_a_donor_that_does_not_answer_may_have_it() -> None:
    cluster = strays_of_each_other()
    cluster.down = set(nodes(2))
    assert walk(cluster, ward(1, 3))[0].blocks_left == {3: 1}


def test_what_a_donor_has_otherwise_is_not_given() -> None:
    """It has two records where this one has the first of them alone."""
    cluster = ModelCluster(7)
    cluster.append(data(1, 1), (2,), copyset=(1, 2, 3))
    cluster.append(data(1, 1, count=2), (1,), copyset=(1, 4, 5), wave=2)
    tally, _ = walk(cluster, ward(2, 3))
    assert tally.waits_for == "e1n1: node 1 is to give it"


def test_who_has_not_answered_is_not_asked_again() -> None:
    cluster = ModelCluster(5)
    for offset in range(1, 3 * sequenced_cluster.PAGE_COPIES):
        cluster.append(data(1, offset), (2, 1, 3))
    cluster.down = set(nodes(2))
    walk(cluster, ward(1, 3))
    asked = [node for node, message in cluster.asked if isinstance(message, Copies)]
    assert asked.count(NodeId(2)) == 1


def test_whoever_can_give_nothing_asks_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the copies of node 3 nothing whole is left but on its disk; those of node 4 are made."""
    monkeypatch.setattr(sequenced_cluster, "PAGE_COPIES", 100)
    cluster = ModelCluster(7)
    for offset, copyset in ((3, (1, 2, 3)), (4, (2, 1, 3))):
        block = data(1, offset)
        cluster.append(block, copyset)
        for node in nodes(1, 2):
            cluster.nodes[node].damaged.add(block.first)
    cluster.append(data(1, 1), (1, 2, 4))
    cluster.append(data(1, 2), (2, 1, 4))
    wipe(cluster, 4)
    cluster.down = set(nodes(3))
    for me, other in ((1, 2), (2, 1)):
        cluster.down.add(NodeId(other))
        walk(cluster, ward(me, 4))
        cluster.down.discard(NodeId(other))
    assert [walk(cluster, ward(me, 3, 4))[0].blocks_left for me in (1, 2)] == [{3: 2}, {3: 2}]
