"""Donors give the copies of lost nodes to others: who gives, who takes, and when all is done."""

import pytest
from donor_walks import READABLE_END, holders, placements, rebuild, walk, ward, wipe
from hypothesis import given
from hypothesis import strategies as st
from sequenced_cluster import LOG, ModelCluster, copy, data, junk, nodes

from millrace.core.messages import Amend, Rebuild
from millrace.core.replication import Replication, can_replicate
from millrace.core.sequenced.giving import Tally
from millrace.core.sequenced.rebuilding import LogWalk
from millrace.lsn import lsn_of
from millrace.types import Copy, EntryKind, Epoch, NodeId, Placement


def test_a_lost_copy_is_made_anew_and_all_holders_say_where() -> None:
    cluster = ModelCluster(4)
    block = data(1, 1)
    cluster.append(block, (1, 2, 3))
    wipe(cluster, 3)
    assert rebuild(cluster, 3) == 1
    assert placements(cluster, block.first) == {Placement(nodes(1, 2, 4), 1)}
    assert holders(cluster, block.first) == set(nodes(1, 2, 4))


def test_the_first_of_the_copyset_that_is_left_gives_and_the_others_wait_for_it() -> None:
    cluster = ModelCluster(5)
    cluster.append(data(1, 1), (3, 1, 2))
    wipe(cluster, 3)
    tally, _ = walk(cluster, ward(2, 3))
    assert tally.blocks_left == {3: 1}
    assert tally.waits_for == "e1n1: node 1 is to give it"
    assert not any(isinstance(message, Rebuild) for _, message in cluster.asked)
    tally, _ = walk(cluster, ward(1, 3))
    assert (tally.blocks_done, tally.blocks_left) == (1, {})


def test_the_new_node_takes_the_place_of_the_lost_one_in_the_order() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (3, 1, 2))
    wipe(cluster, 3)
    rebuild(cluster, 3)
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(4, 1, 2), 1)}


def test_whoever_takes_the_place_of_others_hears_where_the_log_begins() -> None:
    cluster = ModelCluster(4)
    begin = lsn_of(Epoch(1), 5)
    cluster.nodes[NodeId(1)].trim_end = begin
    _, trouble = walk(cluster, ward(1, 3))
    assert trouble is None
    assert {node.trim_end for node in cluster.nodes.values()} == {begin}


def test_a_donor_is_not_done_while_nobody_hears_where_the_log_begins() -> None:
    cluster = ModelCluster(4)
    cluster.nodes[NodeId(1)].trim_end = lsn_of(Epoch(1), 5)
    cluster.down |= set(nodes(2, 3, 4))
    _, trouble = walk(cluster, ward(1, 3))
    assert trouble is not None
    assert "begins at e1n5" in trouble.detail


def test_holders_that_disagree_on_a_bridge_look_after_their_own() -> None:
    """Two recoveries placed it otherwise: neither may wait for the other."""
    cluster = ModelCluster(4)
    bridge = junk(LOG, lsn_of(Epoch(1), 1), 1, EntryKind.BRIDGE)
    cluster.nodes[NodeId(1)].blocks[bridge.first] = bridge, Placement(nodes(2, 3), 1)
    cluster.nodes[NodeId(2)].blocks[bridge.first] = bridge, Placement(nodes(1, 3), 2)
    for me in (1, 2):
        tally, trouble = walk(cluster, ward(me, 3))
        assert trouble is None
        assert tally.blocks_left == {}


def test_blocks_of_one_copyset_stay_together() -> None:
    cluster = ModelCluster(9)
    for offset in range(1, 8):
        cluster.append(data(1, offset), (1, 2, 3))
    wipe(cluster, 3)
    assert rebuild(cluster, 3) == 7
    assert len({p for n in range(1, 8) for p in placements(cluster, lsn_of(Epoch(1), n))}) == 1


def test_a_walk_that_was_interrupted_makes_no_copy_twice() -> None:
    cluster = ModelCluster(9)
    for offset in range(1, 8):
        cluster.append(data(1, offset), (1, 2, 3))
    wipe(cluster, 3)
    node = cluster.nodes[NodeId(1)]
    first = LogWalk(LOG, ward(1, 3), node.trim_end, node.end, READABLE_END, Tally(), junk).run()
    cluster.interrupt(first, 6)
    assert any(isinstance(message, Rebuild) for _, message in cluster.asked)
    rebuild(cluster, 3)
    for offset in range(1, 8):
        assert len(holders(cluster, lsn_of(Epoch(1), offset))) == 3


def test_what_is_not_released_is_left_to_its_sequencer() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2, 3))
    tally, _ = walk(cluster, ward(1, 3), readable_end=lsn_of(Epoch(1), 1))
    assert (tally.blocks_done, tally.unsettled, tally.blocks_left) == (0, 1, {3: 1})


def test_a_holder_that_nobody_helps_helps_itself() -> None:
    """The copyset says that node 1 has it, but its copy was never made."""
    cluster = ModelCluster(5)
    block = data(1, 1)
    cluster.append(block, (2,), copyset=(1, 2, 3))
    given = rebuild(cluster, 3)
    assert given == 1
    assert len(holders(cluster, block.first)) == 3
    (placement,) = placements(cluster, block.first)
    assert set(placement.copyset) == holders(cluster, block.first)


def test_a_node_that_is_away_is_not_waited_for_and_finishes_later() -> None:
    cluster = ModelCluster(5)
    block = data(1, 1)
    cluster.append(block, (1, 2, 3))
    wipe(cluster, 3)
    cluster.down = set(nodes(2))
    tally, _ = walk(cluster, ward(1, 3))
    assert tally.blocks_done == 1
    cluster.down = set()
    rebuild(cluster, 3)
    (placement,) = placements(cluster, block.first)
    assert set(placement.copyset) == holders(cluster, block.first)
    assert len(placement.copyset) == 3


@pytest.mark.parametrize(("full", "taker"), [(4, 5), (5, 4)])
def test_a_node_that_takes_nothing_is_passed_by(full: int, taker: int) -> None:
    cluster = ModelCluster(5)
    cluster.append(data(1, 1), (1, 2, 3))
    wipe(cluster, 3)
    cluster.nodes[NodeId(full)].refuses_stores = True
    rebuild(cluster, 3)
    assert holders(cluster, data(1, 1).first) == set(nodes(1, 2, taker))


def test_what_a_recovery_decided_later_stands() -> None:
    """Node 1 still holds a block in whose place a recovery put a hole that node 4 knows of."""
    cluster = ModelCluster(4)
    block = data(1, 1)
    cluster.append(block, (1, 3))
    hole = junk(LOG, block.first, 1, EntryKind.HOLE)
    cluster.nodes[NodeId(4)].put(hole, Placement(nodes(2, 4), 1, Epoch(2)))
    cluster.nodes[NodeId(2)].put(hole, Placement(nodes(2, 4), 1, Epoch(2)))
    wipe(cluster, 3)
    walk(cluster, ward(1, 3))
    held, placement = cluster.nodes[NodeId(4)].blocks[block.first]
    assert (held.kind, placement.recovery) == (EntryKind.HOLE, 2)


def test_sealed_nodes_take_what_donors_send() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2, 3))
    for node in cluster.nodes.values():
        node.fence = Epoch(9)
    wipe(cluster, 3)
    assert rebuild(cluster, 3) == 1
    amends = [message for _, message in cluster.asked if isinstance(message, Amend)]
    assert all(message.is_rebuilding for message in amends)


def test_two_lost_nodes_are_replaced_at_once() -> None:
    cluster = ModelCluster(5)
    cluster.append(data(1, 1), (3, 2, 1))
    wipe(cluster, 2, 3)
    assert rebuild(cluster, 2, 3) == 1
    assert holders(cluster, data(1, 1).first) == set(nodes(1, 4, 5))


def test_racks_are_kept() -> None:
    racks = {NodeId(n): f"r.d.c.w.{'ab'[n % 2]}" for n in range(1, 7)}
    cluster = ModelCluster(6, locations=racks)
    assert cluster.record is not None
    across = Replication.of({"rack": 2, "node": 3})
    cluster.record = type(cluster.record)(
        LOG, Epoch(1), NodeId(1), tuple(cluster.nodes), across, Epoch(1), is_recorded=True
    )
    for offset in range(1, 20):
        cluster.append(data(1, offset), (1, 3, 2))
    wipe(cluster, 2)
    rebuild(cluster, 2)
    for offset in range(1, 20):
        held = holders(cluster, lsn_of(Epoch(1), offset))
        assert can_replicate(across, held, racks)


def test_too_few_nodes_leave_the_lost_one_named() -> None:
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1, 2, 3))
    wipe(cluster, 3)
    tally, _ = walk(cluster, ward(1, 3))
    assert tally.blocks_left == {3: 1}
    assert tally.waits_for == "e1n1: no other node can take it"
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2, 3), 1)}


def test_a_node_that_lives_again_empty_gets_its_copies_back_if_nobody_else_can_have_them() -> None:
    cluster = ModelCluster(3)
    for offset in range(1, 6):
        cluster.append(
            data(1, offset), (offset % 3 + 1, (offset + 1) % 3 + 1, (offset + 2) % 3 + 1)
        )
    before = cluster.nodes[NodeId(1)].copies()
    wipe(cluster, 3)
    rebuild(cluster, 3, refillable=frozenset(nodes(3)))
    assert cluster.nodes[NodeId(3)].copies() == before


# A recovery may do with fewer copies than are wanted while nodes are lost: short blocks.


def test_a_short_block_gets_its_copy_when_the_lost_node_lives_again() -> None:
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (2, 1))
    rebuild(cluster, 3, refillable=frozenset(nodes(3)))
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(2, 1, 3), 1)}
    assert holders(cluster, data(1, 1).first) == set(nodes(1, 2, 3))


def test_a_short_block_gets_its_copy_on_whoever_can_take_it() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2))
    assert rebuild(cluster, 3) == 1
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2, 4), 1)}


def test_nobody_has_finished_with_a_lost_node_while_a_block_is_short() -> None:
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1, 2))
    tally, _ = walk(cluster, ward(1, 3))
    assert (tally.blocks_left, tally.waits_for) == ({3: 1}, "e1n1: no other node can take it")
    tally, _ = walk(cluster, ward(2, 3))
    assert (tally.blocks_left, tally.waits_for) == ({3: 1}, "e1n1: node 1 is to give it")


def test_a_block_that_stays_short_is_not_done() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1,))
    tally, _ = walk(cluster, ward(1, 2, 3))
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 4), 1)}
    assert tally.blocks_left == {2: 1, 3: 1}


def test_a_short_block_that_names_a_lost_node_lacks_the_others_too() -> None:
    """One of them lives again and is given its copy; that is not enough."""
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1,), copyset=(1, 2))
    alive = frozenset(nodes(2))
    tally, _ = walk(cluster, ward(1, 2, 3, refillable=alive))
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2), 1)}
    assert tally.blocks_left == {3: 1}
    rebuild(cluster, 2, 3, refillable=frozenset(nodes(2, 3)))
    assert holders(cluster, data(1, 1).first) == set(nodes(1, 2, 3))
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2, 3), 1)}


def test_a_donor_that_has_finished_is_not_waited_for_with_a_short_block() -> None:
    """The recovery came after it."""
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2))
    late = ward(2, 3, finished={NodeId(3): frozenset(nodes(1))})
    assert walk(cluster, late)[0].blocks_done == 1


def test_a_drain_has_nothing_to_do_with_short_blocks() -> None:
    cluster = ModelCluster(3)
    cluster.append(data(1, 1), (1, 2))
    tally, _ = walk(cluster, ward(1, 3, leaving=frozenset(nodes(3))))
    assert tally == Tally()


def test_a_drained_node_gives_what_nobody_else_holds() -> None:
    cluster = ModelCluster(3, replication=1)
    cluster.append(data(1, 1), (2,))
    rebuild(cluster, 2, leaving=frozenset(nodes(2)))
    (placement,) = placements(cluster, data(1, 1).first)
    assert 2 not in placement.copyset
    assert holders(cluster, data(1, 1).first) == {NodeId(2), *placement.copyset}


def test_a_holder_that_is_not_named_finishes_too() -> None:
    """Recoveries give holes and bridges to everybody whom they reach."""
    cluster = ModelCluster(5)
    first = lsn_of(Epoch(1), 1)
    for node in nodes(1, 2, 4, 5):
        bridge = junk(LOG, first, 1, EntryKind.BRIDGE)
        cluster.nodes[node].put(bridge, Placement(nodes(1, 2, 3), 1, Epoch(2)))
    rebuild(cluster, 3)
    assert all(3 not in placement.copyset for placement in placements(cluster, first))


def test_a_copy_too_many_is_better_than_none() -> None:
    cluster = ModelCluster(6)
    block = data(1, 1)
    cluster.append(block, (1, 2, 3, 4), copyset=(1, 2, 3))
    wipe(cluster, 1, 2, 3)
    rebuild(cluster, 1, 2, 3)
    assert holders(cluster, block.first) >= set(nodes(5, 6))


@pytest.mark.parametrize("copyset", [(1, 3, 5), (3, 1, 5), (5, 3, 1)])
def test_drained_nodes_are_told_that_their_copies_are_elsewhere(copyset: tuple[int, ...]) -> None:
    cluster = ModelCluster(5)
    block = data(1, 1)
    cluster.append(block, copyset)
    assert rebuild(cluster, 1, 3, leaving=frozenset(nodes(1, 3))) == 1
    (placement,) = placements(cluster, block.first)
    assert set(placement.copyset) == set(nodes(2, 4, 5))


@pytest.mark.parametrize("silent", nodes(1, 3))
def test_a_drained_node_that_was_not_told_finds_out_by_itself(silent: NodeId) -> None:
    cluster = ModelCluster(5)
    block = data(1, 1)
    cluster.append(block, (1, 3, 5))
    cluster.down = {silent}
    drained = ward(5, 1, 3, leaving=frozenset(nodes(1, 3)))
    assert walk(cluster, drained)[0].blocks_done == 1
    cluster.down = set()
    rebuild(cluster, 1, 3, leaving=frozenset(nodes(1, 3)))
    (placement,) = placements(cluster, block.first)
    assert set(placement.copyset) == set(nodes(2, 4, 5))


def test_extras_make_up_for_a_lost_copy_if_they_have_one() -> None:
    cluster = ModelCluster(6)
    cluster.append(data(1, 1), (1, 2, 4), copyset=(1, 2, 3, 4))
    wipe(cluster, 3)
    assert rebuild(cluster, 3) == 1
    assert placements(cluster, data(1, 1).first) == {Placement(nodes(1, 2, 4), 1)}


def test_a_log_that_was_deleted_is_nobodys_business() -> None:
    cluster = ModelCluster(4)
    cluster.append(data(1, 1), (1, 2, 3))
    cluster.record = None
    tally, trouble = walk(cluster, ward(1, 3))
    assert trouble is None
    assert tally == Tally()


@given(st.data())
def test_however_walks_are_interrupted_every_block_ends_up_where_its_copyset_says(
    choices: st.DataObject,
) -> None:
    size = choices.draw(st.integers(5, 7), "nodes")
    cluster = ModelCluster(size)
    offsets = range(1, choices.draw(st.integers(1, 8), "blocks") + 1)
    for offset in offsets:
        copyset = choices.draw(st.permutations(range(1, size + 1)), "copyset")[:3]
        cluster.append(data(1, offset), copyset)
    lost = choices.draw(st.lists(st.integers(1, size), min_size=1, max_size=2, unique=True), "lost")
    wipe(cluster, *lost)
    for _ in range(choices.draw(st.integers(0, 6), "interruptions")):
        me = choices.draw(st.sampled_from([n for n in cluster.nodes if n not in lost]), "donor")
        node = cluster.nodes[me]
        begun = LogWalk(LOG, ward(me, *lost), node.trim_end, node.end, READABLE_END, Tally(), junk)
        cluster.fails = lambda: choices.draw(st.sampled_from([0, 0, 0, -1, 1]), "fate")
        cluster.interrupt(begun.run(), choices.draw(st.integers(1, 12), "effects"))
    cluster.fails = lambda: 0
    rebuild(cluster, *lost)
    for offset in offsets:
        first = lsn_of(Epoch(1), offset)
        found = [node.blocks[first][1] for node in cluster.nodes.values() if first in node.blocks]
        for placement in found:
            assert not set(placement.copyset) & set(lost)
            assert set(placement.copyset) <= holders(cluster, first)
            assert len(placement.copyset) == 3


def test_donors_of_many_copies_agree() -> None:
    copies: list[Copy] = [copy(data(1, 1), *order) for order in [(1, 2, 3), (2, 1, 3), (3, 2, 1)]]
    for each in copies:
        chosen = {ward(me, 3).donor_of(each.placement, {NodeId(3)}) for me in (1, 2, 4, 5)}
        assert len(chosen) == 1
