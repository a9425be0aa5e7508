"""Closing all epochs of the sequencers before, empty ones too."""

from collections import Counter

import msgspec
import pytest

from millrace.core import messages as m
from millrace.core.epochs import EpochRange, NodesetChange
from millrace.core.replication import Replication
from millrace.core.sequenced.recovery import EPOCHS_AT_ONCE, unclean
from millrace.lsn import lsn_of
from millrace.types import Epoch, NodeId
from tests.core.recovering import holders, recovered, recovery, seen
from tests.core.sequenced_cluster import ModelCluster, data, nodes


def test_epochs_are_closed_oldest_first() -> None:
    cluster = ModelCluster()
    cluster.append(data(1, 1), (1, 2, 3))
    cluster.append(data(3, 1, 2), (2, 3, 4))
    record = recovered(cluster, 5)
    assert [seen(cluster, epoch) for epoch in (1, 2, 3, 4)] == [
        "d1 BRIDGE",
        "BRIDGE",
        "d1 d1 BRIDGE",
        "BRIDGE",
    ]
    assert (record.clean, record.tail) == (4, lsn_of(Epoch(3), 2))
    written = [asked.block.first for _, asked in cluster.asked if isinstance(asked, m.Store)]
    assert written == sorted(written)


def test_an_empty_epoch_costs_each_node_a_bridge() -> None:
    cluster = ModelCluster()
    recovered(cluster, 4)
    asked = Counter(type(asked).__name__ for _, asked in cluster.asked)
    assert asked == {"SealEpochs": 5, "Copies": 5, "Store": 3 * 5, "CloseEpochs": 5}


def test_what_is_left_of_the_nodes_can_tell_that_an_epoch_was_empty() -> None:
    """One copy of each block: whoever is lost for good may have held any."""
    cluster = ModelCluster(3, 1)
    recovered(cluster)
    for node in cluster.nodes:
        assert cluster.seen_by({node}, 1) == ["BRIDGE"]


def test_many_epochs_are_closed_a_part_at_a_time_and_what_was_done_is_kept() -> None:
    cluster = ModelCluster()
    last = EPOCHS_AT_ONCE + 3
    cluster.interrupt(recovery(cluster, last + 1), effects=12)
    assert cluster.record is not None and cluster.record.clean == EPOCHS_AT_ONCE
    cluster.asked.clear()
    assert recovered(cluster, last + 2).clean == last + 1
    written = {asked.block.first for _, asked in cluster.asked if isinstance(asked, m.Store)}
    assert written == {lsn_of(Epoch(EPOCHS_AT_ONCE + each), 1) for each in (1, 2, 3, 4)}


def test_epochs_that_look_empty_are_bridged_when_a_node_is_silent() -> None:
    """Else it could come back with a block that nobody acknowledged, into a closed epoch."""
    cluster = ModelCluster()
    cluster.append(data(2, 1), (5,))
    cluster.down.add(NodeId(5))
    recovered(cluster, 4)
    cluster.down.clear()
    assert [seen(cluster, epoch) for epoch in (1, 2, 3)] == ["BRIDGE"] * 3


def test_each_epoch_is_asked_of_its_own_nodeset() -> None:
    cluster = ModelCluster(6)
    assert cluster.record is not None
    cluster.changes.append(NodesetChange(Epoch(1), nodes(1, 2, 3), Replication.of(3)))
    cluster.record = msgspec.structs.replace(
        cluster.record, nodeset=nodes(4, 5, 6), since=Epoch(3), epoch=Epoch(3)
    )
    cluster.append(data(2, 1), (1,))
    cluster.append(data(3, 1), (6,))
    recovered(cluster, 4)
    assert holders(cluster, 1, epoch=2) == set(nodes(1, 2, 3))
    assert holders(cluster, 1, epoch=3) == set(nodes(4, 5, 6))


@pytest.mark.parametrize(
    ("clean", "epoch", "spans"),
    [
        (0, 3, [(1, 2)]),
        (2, 3, []),
        (2, 9, [(3, 4), (5, 8)]),
        (5, 9, [(6, 8)]),
        (0, 9, [(1, 4), (5, 8)]),
        (
            5,
            EPOCHS_AT_ONCE + 9,
            [(6, EPOCHS_AT_ONCE + 5), (EPOCHS_AT_ONCE + 6, EPOCHS_AT_ONCE + 8)],
        ),
    ],
    ids=["one nodeset", "all clean", "two", "the newer", "below the first that is known", "many"],
)
def test_which_epochs_are_to_be_closed(
    clean: int, epoch: int, spans: list[tuple[int, int]]
) -> None:
    cluster = ModelCluster()
    record = msgspec.structs.replace(cluster.claim(epoch), clean=Epoch(clean))
    known = [
        EpochRange(Epoch(2), Epoch(4), nodes(1, 2, 3), record.replication),
        EpochRange(Epoch(5), Epoch(epoch), nodes(4, 5, 6), record.replication),
    ]
    assert [(each.first, each.last) for each in unclean(record, known)] == spans
