"""Recoveries that others began, ended or took over."""

from itertools import count

from millrace.core.epochs import EpochRecord
from millrace.core.sequenced.recovery import Recovered
from millrace.core.sequenced.rewrite import Preempted
from millrace.lsn import lsn_of
from millrace.types import EntryKind, Epoch, NodeId, Placement
from tests.core.recovering import E1, holders, recovered, recovery, seen
from tests.core.sequenced_cluster import LOG, ModelCluster, data, junk, nodes


def test_a_node_that_was_sealed_for_a_later_epoch_ends_it() -> None:
    cluster = ModelCluster()
    cluster.nodes[NodeId(4)].fence = Epoch(7)
    assert cluster.run(recovery(cluster)) == Preempted(Epoch(7))


def test_so_does_one_that_is_sealed_between_the_digest_and_the_writes() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1,))
    running, answer = recovery(cluster), None
    for _ in range(2):  # Seals and indexes.
        answer = cluster.perform(running.send(answer))
    cluster.nodes[NodeId(3)].fence = Epoch(3)
    assert cluster.run(running, answer=answer) == Preempted(Epoch(3))


def test_epochs_are_not_marked_clean_by_a_sequencer_that_was_replaced() -> None:
    cluster = ModelCluster()
    running = recovery(cluster)
    cluster.claim(3)
    assert cluster.run(running) == Preempted(Epoch(3))
    assert cluster.record is not None and cluster.record.clean == 0


def test_a_change_of_the_record_that_is_no_new_epoch_is_no_reason_to_stop() -> None:
    cluster = ModelCluster()
    running = recovery(cluster)
    replaced: list[int] = []

    def change_once(record: EpochRecord, expected: int) -> bool:
        replaced.append(expected)
        if len(replaced) == 1:
            cluster.version += 1
        return ModelCluster.replace(cluster, record, expected)

    cluster.replace = change_once  # type: ignore[method-assign]
    assert isinstance(cluster.run(running), Recovered)
    assert len(replaced) == 2


def test_nobody_who_took_part_keeps_what_was_outvoted() -> None:
    """Two recoveries died: the first had plugged what the second completed."""
    cluster = ModelCluster()
    cluster.nodes[NodeId(5)].put(junk(LOG, lsn_of(E1, 1), 1, EntryKind.HOLE), by(2, 5))
    for node in (1, 2, 3):
        cluster.nodes[NodeId(node)].put(data(1, 1), by(3, 1, 2, 3))
    recovered(cluster, 4)
    assert holders(cluster, 1) == set(nodes(1, 2, 3, 5))
    for each in cluster.nodes.values():
        assert {placement.recovery for _, placement in each.blocks.values()} == {4}
    assert seen(cluster) == "d1 BRIDGE"


def by(recovery: int, *copyset: int) -> Placement:
    return Placement(nodes(*copyset), 1, Epoch(recovery))


def test_a_second_try_of_the_same_sequencer_writes_above_its_first() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 2), (1, 2, 3))
    waves = count(1)
    cluster.interrupt(recovery(cluster, 2, waves=waves), effects=4)
    recovered_again = cluster.run(recovery(cluster, 2, waves=waves))
    assert isinstance(recovered_again, Recovered)
    assert {node.blocks[lsn_of(E1, 2)][1].wave for node in cluster.nodes.values()
            if lsn_of(E1, 2) in node.blocks} == {2}  # fmt: skip
