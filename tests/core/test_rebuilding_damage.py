"""Donors whose copies are damaged: others have whole ones, may have one, or nobody has."""

import pytest
from donor_walks import holders, rebuild, walk, ward, wipe
from sequenced_cluster import LOG, ModelCluster, data, junk, nodes

from millrace.lsn import lsn_of
from millrace.types import EntryKind, Epoch, NodeId, Placement

BLOCK = data(1, 1)
ALIVE = frozenset(nodes(3))


def damage(cluster: ModelCluster, *holders: int) -> None:
    for node in nodes(*holders):
        cluster.nodes[node].damaged.add(BLOCK.first)


@pytest.fixture
def cluster() -> ModelCluster:
    """The block is on nodes 1, 2 and 3; both whose disks are not lost have it damaged."""
    cluster = ModelCluster(5)
    cluster.append(BLOCK, (1, 2, 3))
    damage(cluster, 1, 2)
    return cluster


def test_a_damaged_copy_is_fetched_from_another_holder() -> None:
    cluster = ModelCluster(4)
    block = data(1, 1)
    cluster.append(block, (1, 2, 3))
    cluster.nodes[NodeId(1)].damaged.add(block.first)
    wipe(cluster, 3)
    tally, _ = walk(cluster, ward(1, 3))
    assert tally.blocks_done == 1
    assert NodeId(4) in holders(cluster, block.first)


def test_two_nodes_that_got_their_copies_back_need_none(cluster: ModelCluster) -> None:
    tally, _ = walk(cluster, ward(1, 2, 3, refillable=frozenset(nodes(2, 3))))
    assert (tally.blocks_done, tally.blocks_left) == (0, {})


def test_what_nobody_has_whole_is_lost_and_holds_up_nobody(cluster: ModelCluster) -> None:
    wipe(cluster, 3)
    assert rebuild(cluster, 3, refillable=ALIVE) == 0
    assert set(cluster.notes) == {"rebuilding.lost"}


def test_nor_does_a_dead_node_whose_disk_is_lost_for_good(cluster: ModelCluster) -> None:
    cluster.down = set(ALIVE)
    assert rebuild(cluster, 3, forsaken=ALIVE) == 0


def test_a_dead_node_that_may_return_may_have_it(cluster: ModelCluster) -> None:
    cluster.down = set(ALIVE)
    tally, _ = walk(cluster, ward(1, 3))
    assert tally.blocks_left == {3: 1}
    assert tally.waits_for == "e1n1: no whole copy was found"


def test_a_holder_that_does_not_answer_may_have_it(cluster: ModelCluster) -> None:
    wipe(cluster, 3)
    cluster.down = set(nodes(2))
    tally, _ = walk(cluster, ward(1, 3, refillable=ALIVE))
    assert tally.blocks_left == {3: 1}


def test_a_drained_node_has_what_is_damaged_elsewhere(cluster: ModelCluster) -> None:
    assert rebuild(cluster, 3, leaving=ALIVE) == 1
    assert len(holders(cluster, BLOCK.first) & set(nodes(4, 5))) == 1


def test_a_node_that_got_its_copy_back_has_it(cluster: ModelCluster) -> None:
    """Its own disk is whole again, and another one's is lost."""
    wipe(cluster, 2)
    tally, _ = walk(cluster, ward(1, 2, 3, refillable=frozenset(nodes(2, 3))))
    assert tally.blocks_done == 1
    assert len(holders(cluster, BLOCK.first) & set(nodes(4, 5))) == 1


@pytest.mark.parametrize("kind", [EntryKind.HOLE, EntryKind.BRIDGE, EntryKind.LOSS])
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_junk_is_rebuilt_like_any_block_and_made_anew_if_need_be(
    kind: EntryKind, is_damaged: bool
) -> None:
    cluster = ModelCluster(4)
    first = lsn_of(Epoch(1), 1)
    for node in nodes(1, 2):
        cluster.nodes[node].put(junk(LOG, first, 1, kind), Placement(nodes(1, 2, 3), 1, Epoch(2)))
        cluster.nodes[node].damaged |= {first} if is_damaged else set()
    rebuild(cluster, 3)
    assert holders(cluster, first) == set(nodes(1, 2, 4))
