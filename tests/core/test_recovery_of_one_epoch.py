"""What a recovery leaves behind in an epoch."""

import msgspec

from millrace.core import messages as m
from millrace.core.replication import Replication, can_replicate
from millrace.core.sequenced.rewrite import BATCH_BLOCKS
from millrace.lsn import lsn_of
from millrace.types import EntryKind, NodeId
from tests.core.recovering import E1, holders, recovered, seen
from tests.core.sequenced_cluster import ModelCluster, data, nodes


def test_a_log_in_its_first_epoch_has_nothing_to_recover() -> None:
    cluster = ModelCluster()
    assert recovered(cluster, 1).clean == 0
    assert not cluster.asked


def test_blocks_are_completed_holes_plugged_and_the_end_bridged() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1, 2), (1, 2, 3))
    cluster.append(data(1, 4), (5,), copyset=(4, 5, 1))
    record = recovered(cluster)
    assert seen(cluster) == "d1 d1 HOLE d4 BRIDGE"
    assert (record.clean, record.tail) == (1, lsn_of(E1, 4))
    assert len(holders(cluster, 4)) == 3
    assert "recovery.closed" in cluster.notes


def test_every_copy_says_afterwards_who_recovered_it_and_where_the_others_are() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (2,), copyset=(1, 2, 3), wave=4)
    recovered(cluster)
    places = {node.blocks[lsn_of(E1, 1)][1] for node in cluster.nodes.values() if node.blocks
              and lsn_of(E1, 1) in node.blocks}  # fmt: skip
    (place,) = places
    assert place.recovery == 2
    assert set(place.copyset) == holders(cluster, 1)


def test_who_has_the_block_is_not_sent_it_again() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2, 3))
    recovered(cluster)
    stored = [asked.block.kind for _, asked in cluster.asked if isinstance(asked, m.Store)]
    assert set(stored) == {EntryKind.BRIDGE}
    assert not any(isinstance(asked, m.FetchCopies) for _, asked in cluster.asked)


def test_junk_is_on_every_node() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 3), (1, 2, 3))
    recovered(cluster)
    assert holders(cluster, 1) == holders(cluster, 4) == set(cluster.nodes)


def test_what_is_good_is_neither_read_nor_written() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1, 9), (1, 2, 3))
    cluster.append(data(1, 10), (2, 3))
    cluster.nodes[NodeId(3)].good[E1] = lsn_of(E1, 9)
    recovered(cluster)
    assert {asked.first for _, asked in cluster.asked if isinstance(asked, m.Copies)} == {
        lsn_of(E1, 10)
    }
    assert cluster.nodes[NodeId(1)].blocks[lsn_of(E1, 1)][1].recovery == 0


def test_what_is_trimmed_is_not_plugged() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 5), (1, 2, 3))
    for node in cluster.nodes.values():
        node.trim_end = lsn_of(E1, 5)
    recovered(cluster)
    assert not holders(cluster, 1)
    assert seen(cluster).split()[4:] == ["d5", "BRIDGE"]


def test_copies_across_racks() -> None:
    locations = {NodeId(n): f"r.d.c.w.k{n % 2}" for n in range(1, 7)}
    cluster = ModelCluster(6, 3, locations)
    across = Replication.of({"rack": 2, "node": 3})
    assert cluster.record is not None
    cluster.record = msgspec.structs.replace(cluster.record, replication=across)
    cluster.append(data(1, 1), (1, 3))
    recovered(cluster)
    assert can_replicate(across, holders(cluster, 1), locations)
    assert holders(cluster, 1) > set(nodes(1, 3))


def test_many_blocks_go_in_batches() -> None:
    cluster = ModelCluster()
    for offset in range(1, BATCH_BLOCKS + 10):
        cluster.append(data(1, offset), (1, 2))
    recovered(cluster)
    assert all(len(holders(cluster, offset)) == 3 for offset in range(1, BATCH_BLOCKS + 10))
