"""A reader goes from epoch to epoch: other nodesets, bridges, epochs nobody knows of yet."""

from collections.abc import Collection

import pytest

from millrace.core.epochs import EpochRange
from millrace.core.messages import Started
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading import effects as e
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.replication import Replication
from millrace.types import LSN_MAX, AuthoritativeStatus, EntryKind, Epoch, NodeId
from tests.core.reading.read_cluster import LOG, STREAM, Cluster, at, block, nodes, one_range
from tests.core.reading.reading_samples import SETTINGS

TWO, FOUR = NodeId(2), NodeId(4)
EMPTY, LOST = AuthoritativeStatus.AUTHORITATIVE_EMPTY, AuthoritativeStatus.UNDERREPLICATION
UNAVAILABLE = AuthoritativeStatus.UNAVAILABLE
FULLY = AuthoritativeStatus.FULLY_AUTHORITATIVE


def of(first: int, last: int, *nodeset: int, copies: int = 2) -> EpochRange:
    return EpochRange(Epoch(first), Epoch(last), nodes(*nodeset), Replication.of(copies))


def two_epochs(has_bridge: bool = True) -> Cluster:
    """Three blocks in each; the second epoch has other nodes."""
    cluster = Cluster((of(1, 1, 1, 2, 3), of(2, 2, 2, 3, 4)), at(1), at(4, epoch=2), SETTINGS)
    for offset in (1, 2, 3):
        cluster.store(block(at(offset)), [offset, offset % 3 + 1])
        cluster.store(block(at(offset, epoch=2)), [offset + 1, offset % 3 + 2])
    if has_bridge:
        cluster.store(block(at(4), 1, EntryKind.BRIDGE), [1, 2])
    cluster.release(at(3, epoch=2))
    return cluster


ALL = ["1..1", "2..2", "3..3", "bridge 4..0", "1..1", "2..2", "3..3"]


def test_a_bridge_leads_to_the_next_epoch_without_a_rewind() -> None:
    cluster = two_epochs()
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == ALL
    assert cluster.rewinds == {}


def test_the_nodes_of_the_next_epoch_are_started_and_those_of_the_last_one_stopped() -> None:
    cluster = two_epochs()
    cluster.open()
    cluster.run(1_000)
    assert [(node, start.version) for node, start in cluster.started] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
    ]
    assert cluster.nodes[NodeId(1)].pump() == [], "it has been stopped"
    (joined,) = [start for node, start in cluster.started if node == FOUR]
    assert joined.first == at(1, epoch=2)


def test_an_epoch_without_a_bridge_ends_in_one_all_the_same() -> None:
    """Its recovery could not write one.  All nodes are asked, which costs rewinds."""
    cluster = two_epochs(has_bridge=False)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == ALL
    assert cluster.rewinds == {"nobody_left": 1, "slid": 1}


def test_epochs_of_one_nodeset_need_no_bridge_either() -> None:
    cluster = Cluster(one_range([1, 2, 3], 2, last=4), at(1), at(3, epoch=4), SETTINGS)
    cluster.store(block(at(1)), [1, 2])
    cluster.store(block(at(1, epoch=4), 2), [2, 3])
    cluster.release(at(2, epoch=4))
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == ["1..1", "bridge 2..0", "1..2"]


def test_what_is_missing_at_the_begin_of_an_epoch_is_a_loss() -> None:
    cluster = two_epochs()
    for node in cluster.nodes.values():
        node.copies.pop(at(1, epoch=2), None)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == [*ALL[:4], "dataloss 1..1", "2..2", "3..3"]


def test_a_node_that_joins_and_is_not_authoritative_is_listed() -> None:
    cluster = two_epochs()
    cluster.statuses = {FOUR: UNAVAILABLE}
    cluster.kill(4)
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == ALL
    assert cluster.rewinds == {"status": 1}


def test_who_left_the_nodeset_is_not_waited_for() -> None:
    cluster = two_epochs()
    cluster.kill(1)
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == ALL
    assert cluster.stream.lists.listed == set()


ASKED = e.NeedEpochs(Epoch(3))


def at_unknown_epoch() -> SequencedReadStream:
    """The stream begins in epoch 3, of which nobody has told yet."""
    stream = SequencedReadStream(LOG, STREAM, at(1, epoch=3), LSN_MAX, SETTINGS)
    assert e.NeedEpochs(Epoch(3)) in stream.open(0)
    return stream


def test_an_epoch_that_is_not_known_yet_is_asked_for_again() -> None:
    stream = at_unknown_epoch()
    known = one_range([1, 2], 2, last=2)
    now_ms = 0
    pauses = []
    for _ in range(7):
        effects = stream.epochs_known(known, Epoch(0), {}, {}, now_ms)
        assert not any(isinstance(effect, e.StartSender) for effect in effects)
        due_ms = now_ms
        while e.NeedEpochs(Epoch(3)) not in stream.timer_fired(due_ms):
            due_ms += 500
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    effects = stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, {}, now_ms)
    assert [effect.node for effect in effects if isinstance(effect, e.StartSender)] == [1, 2]


def test_who_waits_where_nobody_is_left_asks_more_and_more_rarely() -> None:
    known = one_range([1, 2], 2, last=3)
    gone = dict.fromkeys(nodes(1, 2), EMPTY)
    stream = at_unknown_epoch()
    stream.epochs_known(known, Epoch(0), {}, gone, 0)
    for node in gone:
        stream.lost(node, 0)
    asked_ms: list[int] = []
    for now_ms in range(0, 70_000, 500):
        for effect in stream.timer_fired(now_ms):
            if isinstance(effect, e.StartSender):
                stream.lost(effect.node, now_ms)
            elif isinstance(effect, e.NeedEpochs):
                asked_ms.append(now_ms)
                stream.epochs_known(known, Epoch(0), {}, gone, now_ms)
    assert asked_ms == [1_000, 3_000, 7_000, 15_000, 31_000, 61_000]


def is_asked_in_a_minute(stream: SequencedReadStream, away: Collection[int]) -> bool:
    for now_ms in range(0, 70_000, 500):
        for effect in stream.timer_fired(now_ms):
            if isinstance(effect, e.NeedEpochs):
                return True
            if isinstance(effect, e.StartSender) and effect.node in away:
                stream.lost(effect.node, now_ms)
    return False


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param(EMPTY, EMPTY, True, id="both are empty"),
        pytest.param(EMPTY, LOST, True, id="one is empty, one lost its disk"),
        pytest.param(LOST, LOST, True, id="both lost their disks"),
        pytest.param(EMPTY, UNAVAILABLE, False, id="one may come back"),
        pytest.param(EMPTY, FULLY, False, id="one is away for now"),
    ],
)
def test_who_waits_asks_when_nobody_is_left_to_be_waited_for(
    one: AuthoritativeStatus, other: AuthoritativeStatus, expected: bool
) -> None:
    stream = at_unknown_epoch()
    statuses = {NodeId(1): one, NodeId(2): other}
    stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, statuses, 0)
    for node in statuses:
        stream.lost(node, 0)
    assert is_asked_in_a_minute(stream, away=statuses) is expected


def test_who_reads_from_a_node_that_lost_its_disk_does_not_ask() -> None:
    """It hears what is released, and says so."""
    stream = at_unknown_epoch()
    lost = dict.fromkeys(nodes(1, 2), LOST)
    stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, lost, 0)
    stream.lost(NodeId(1), 0)
    version = stream.read_set.senders[TWO].version
    stream.arrived(TWO, Started(STREAM, version, at(1, epoch=3), is_incomplete=True), 0)
    assert not is_asked_in_a_minute(stream, away=[1])


def test_a_repository_that_does_not_answer_is_asked_again() -> None:
    stream = at_unknown_epoch()
    stream.epochs_failed(Failure(FailureKind.METADATA), 0)
    assert stream.timer_fired(500) == [e.SetTimer(500)]
    assert e.NeedEpochs(Epoch(3)) in stream.timer_fired(1_000)


def test_the_newest_nodeset_holds_up_to_what_was_released() -> None:
    stream = at_unknown_epoch()
    effects = stream.epochs_known(one_range([1, 2], 2, last=2), Epoch(3), {}, {}, 1)
    assert [effect.node for effect in effects if isinstance(effect, e.StartSender)] == [1, 2]


def test_nothing_is_delivered_of_an_epoch_whose_nodes_are_not_known() -> None:
    cluster = two_epochs()
    ranges, cluster.ranges = cluster.ranges, cluster.ranges[:1]
    for node in cluster.nodes.values():
        node.released = at(4)  # So that what is released says nothing of the second epoch.
    cluster.open()
    cluster.run(500)
    assert cluster.shown() == ALL[:4]
    assert cluster.stream.explain()["waits_for"] == "epochs"
    cluster.ranges = ranges
    cluster.release(at(3, epoch=2))
    cluster.run(10_000)
    assert cluster.shown() == ALL


def test_epochs_whose_nodes_are_all_gone_are_lost() -> None:
    gone = dict.fromkeys(nodes(1, 2, 3), LOST)
    cluster = two_epochs()
    cluster.ranges = (of(1, 1, 1, 2, 3), of(2, 2, 4, 5))
    cluster.nodes |= Cluster((of(1, 1, 5),), at(1)).nodes
    for node in nodes(4, 5):
        cluster.nodes[node].copies.clear()
    for offset in (1, 2, 3):
        cluster.store(block(at(offset, epoch=2)), [4, 5])
    cluster.release(at(3, epoch=2))
    cluster.statuses = gone
    cluster.kill(1, 2, 3)
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == ["dataloss 1..4294967295", "bridge 0..0", "1..1", "2..2", "3..3"]


def test_who_asks_rarely_asks_at_once_when_another_node_is_emptied() -> None:
    stream = at_unknown_epoch()
    statuses = {NodeId(1): EMPTY, TWO: LOST}
    known = one_range([1, 2], 2, last=3)
    stream.epochs_known(known, Epoch(0), {}, statuses, 0)
    for node in statuses:
        stream.lost(node, 0)
    assert ASKED in stream.statuses_changed({NodeId(1): EMPTY, TWO: EMPTY}, 500)


def test_statuses_that_were_heard_while_the_epochs_were_found_are_newer_than_theirs() -> None:
    stream = at_unknown_epoch()
    stream.statuses_changed({TWO: LOST}, 0)
    stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, {TWO: UNAVAILABLE}, 0)
    assert stream.read_set.not_authoritative == [TWO]
    assert stream.read_set.status_of(stream.read_set.senders[TWO]) is LOST
    stream.statuses_changed({}, 0)
    assert stream.read_set.not_authoritative == []


def test_nodesets_told_before_a_node_of_theirs_was_emptied_are_asked_for_again() -> None:
    """Its copies may lie on nodes that they have gained meanwhile."""
    stream = at_unknown_epoch()
    stream.statuses_changed({TWO: EMPTY}, 0)
    assert stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, {}, 0) == [ASKED]
    effects = stream.epochs_known(one_range([1, 2, 4], 2, last=3), Epoch(0), {}, {TWO: EMPTY}, 0)
    assert [effect.node for effect in effects if isinstance(effect, e.StartSender)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("emptied", "told"),
    [
        pytest.param(TWO, {TWO: EMPTY}, id="it was emptied before they were told"),
        pytest.param(FOUR, {}, id="they do not have it"),
    ],
)
def test_others_are_relied_on(emptied: NodeId, told: dict[NodeId, AuthoritativeStatus]) -> None:
    stream = at_unknown_epoch()
    stream.statuses_changed({emptied: EMPTY}, 0)
    effects = stream.epochs_known(one_range([1, 2], 2, last=3), Epoch(0), {}, told, 0)
    assert ASKED not in effects
    assert [effect.node for effect in effects if isinstance(effect, e.StartSender)] == [1, 2]


@pytest.mark.parametrize(
    ("emptied", "expected"),
    [
        pytest.param(1, False, id="of epochs that were read"),
        pytest.param(2, True, id="of the epoch that is read"),
        pytest.param(3, True, id="of a later one"),
        pytest.param(4, False, id="of none"),
    ],
)
def test_whose_emptying_makes_a_reader_ask_where_the_epochs_lie(
    emptied: int, expected: bool
) -> None:
    stream = at_unknown_epoch()
    known = of(1, 2, 1, 5), of(3, 3, 2, 5), of(4, 4, 3, 5)
    stream.epochs_known(known, Epoch(0), {}, {}, 0)
    assert (ASKED in stream.statuses_changed({NodeId(emptied): EMPTY}, 0)) is expected
    assert ASKED not in stream.statuses_changed({NodeId(emptied): EMPTY}, 0)
