"""One reader of a sequenced log: order, what it delivers, what it asks of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.messages import Blocks, CaughtUp, GapFound, Started, Stop, Window
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading import effects as e
from millrace.core.reading.lists import Mode
from millrace.core.reading.stream import SequencedReadStream
from millrace.types import (
    LSN_MAX,
    CopysetOrder,
    EntryKind,
    Epoch,
    GapKind,
    LocalScd,
    Lsn,
    NodeId,
)
from tests.core.reading.read_cluster import LOG, STREAM, Cluster, at, block, one_range
from tests.core.reading.reading_samples import (
    SETTINGS,
    append,
    even_cluster,
    records,
    with_settings,
)

ONE, TWO = NodeId(1), NodeId(2)
TOKYO = "asia.tokyo"


@pytest.mark.parametrize(("size", "copies"), [(1, 1), (3, 2), (5, 3), (7, 3)])
@pytest.mark.parametrize("order", CopysetOrder)
def test_in_the_steady_state_each_block_comes_once(
    size: int, copies: int, order: CopysetOrder
) -> None:
    cluster = even_cluster(size=size, copies=copies, settings=with_settings(copyset_order=order))
    cluster.open()
    cluster.run(1_000)
    assert cluster.is_finished
    assert cluster.shown() == records(1, 60)
    assert cluster.stream.receiver.received.blocks == 60
    assert cluster.rewinds == {}


def test_without_single_copy_delivery_every_copy_comes_and_one_is_delivered() -> None:
    cluster = even_cluster(settings=with_settings(is_single_copy=False))
    cluster.open()
    cluster.run(1_000)
    received = cluster.stream.receiver.received
    assert cluster.shown() == records(1, 60)
    assert received.blocks_duplicate == received.blocks - 60 > 0
    assert {start.shipping.is_single_copy for _, start in cluster.started if start.shipping} == (
        {False}
    )


@given(sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=30), copies=st.integers(1, 3))
def test_blocks_of_any_size_get_through_small_windows(sizes: list[int], copies: int) -> None:
    cluster = Cluster(one_range([1, 2, 3], copies), at(1), at(len(sizes) + 1), SETTINGS)
    for offset, size in enumerate(sizes, 1):
        cluster.store(block(at(offset), size=size), [(offset + k) % 3 + 1 for k in range(copies)])
    cluster.release(at(len(sizes)))
    cluster.open()
    cluster.run(5_000)
    assert cluster.shown() == records(1, len(sizes))
    assert cluster.rewinds == {}


def test_a_reader_says_where_it_is_and_what_it_wants() -> None:
    stream = SequencedReadStream(
        LOG,
        STREAM,
        at(9),
        LSN_MAX,
        with_settings(
            copyset_order=CopysetOrder.SHUFFLED_PER_CLIENT, local_scd=LocalScd.RACK, window_lsns=8
        ),
        seed=77,
        location=TOKYO,
    )
    assert stream.open(0) == [e.NeedEpochs(Epoch(1)), e.SetTimer(30_000)]
    effects = stream.epochs_known(one_range([1, 2], 2), Epoch(1), {}, {}, 0)
    start = next(effect.start for effect in effects if isinstance(effect, e.StartSender))
    assert (start.log, start.stream, start.version) == (LOG, STREAM, 1)
    assert (start.first, start.end, start.window_last) == (at(9), LSN_MAX, at(16))
    assert start.credit_bytes == 1_000
    shipping = start.shipping
    assert shipping is not None and shipping.is_single_copy
    assert (shipping.known_down, shipping.seed) == ((), 77)
    assert (shipping.local, shipping.location) == (LocalScd.RACK, TOKYO)


def test_a_block_that_begins_before_the_reader_is_delivered_for_its_rest() -> None:
    cluster = Cluster(one_range([1, 2], 2), at(3), at(8), SETTINGS)
    cluster.store(block(at(1), 4), [1, 2])
    cluster.store(block(at(5), 9), [2, 1])
    cluster.release(at(13))
    cluster.open()
    cluster.run(100)
    assert cluster.shown() == ["3..4", "5..7"]
    assert cluster.is_finished


@pytest.mark.parametrize("single_copy", [True, False])
def test_what_a_recovery_wrote_is_a_gap_of_its_kind(single_copy: bool) -> None:
    settings = with_settings(is_single_copy=single_copy)
    cluster = Cluster(one_range([1, 2, 3], 2, last=2), at(1), at(3, epoch=2), settings)
    cluster.store(block(at(1)), [1, 2])
    cluster.store(block(at(2), 3, EntryKind.HOLE), [1, 2, 3])
    cluster.store(block(at(5), 2, EntryKind.LOSS), [2, 3])
    cluster.store(block(at(7), 1, EntryKind.BRIDGE), [1, 2])
    cluster.store(block(at(1, epoch=2), 2), [3, 1])
    cluster.release(at(2, epoch=2))
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == [
        "1..1",
        "hole 2..4",
        "dataloss 5..6",
        "bridge 7..0",
        "1..2",
    ]
    assert cluster.rewinds == {}


def test_a_trimmed_range_is_told_by_one_node_that_knows() -> None:
    cluster = even_cluster(blocks=30)
    cluster.nodes[TWO].trim_end = at(20)
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown()[-11:] == records(20, 30)
    trims = [part for part in cluster.shown() if part.startswith("trim")]
    assert len(trims) == 1 and trims[0].endswith("..19")


def test_a_reader_that_begins_before_the_first_epoch_is_told_of_a_bridge() -> None:
    stream = SequencedReadStream(LOG, STREAM, Lsn(1), LSN_MAX, SETTINGS)
    bridge, *others = stream.open(0)
    assert isinstance(bridge, e.DeliverGap)
    assert (bridge.gap.kind, bridge.gap.first, bridge.gap.last) == (GapKind.BRIDGE, 1, at(0))
    assert e.NeedEpochs(Epoch(1)) in others


def test_what_was_filtered_out_is_a_gap() -> None:
    stream, _ = talking()
    stream.arrived(TWO, CaughtUp(STREAM, 1, at(1), at(1)), 0)
    effects = stream.arrived(ONE, GapFound(STREAM, 1, GapKind.FILTERED_OUT, at(1), at(4)), 0)
    effects += stream.arrived(ONE, Blocks(STREAM, 1, (block(at(5)),), at(6)), 0)
    delivered = [x for x in effects if isinstance(x, e.Deliver | e.DeliverGap)]
    assert [type(x) for x in delivered] == [e.DeliverGap, e.Deliver]


def test_nothing_to_read_is_the_end_at_once() -> None:
    assert SequencedReadStream(LOG, STREAM, at(1), at(1)).open(0) == [e.Finish()]


def test_a_reader_that_stops_tells_the_nodes() -> None:
    stream, _ = talking()
    assert stream.stop() == [
        e.TellSender(ONE, Stop(STREAM)),
        e.TellSender(TWO, Stop(STREAM)),
        e.Finish(),
    ]
    assert stream.stop() == stream.timer_fired(9) == stream.lost(ONE, 9) == stream.took(1, 9) == []


# -- At the tail ---------------------------------------------------------------------------------


def test_at_the_tail_nothing_happens_until_there_is_more() -> None:
    cluster = even_cluster(blocks=10, is_endless=True)
    cluster.open()
    cluster.run(1_000)
    started = len(cluster.started)
    cluster.run(3_600_000)
    assert cluster.stream.explain()["waits_for"] == "tail"
    append(cluster, 11, 30)
    cluster.run(100)
    assert cluster.shown() == records(1, 30)
    assert (len(cluster.started), cluster.rewinds) == (started, {})


def test_nodes_that_hear_late_of_a_release_are_waited_for() -> None:
    cluster = even_cluster(blocks=10, is_endless=True)
    cluster.open()
    cluster.run(100)
    cluster.store(block(at(11)), [1, 2, 3])
    cluster.release(at(11), 2, 3, 4, 5)
    cluster.run(10_000)
    assert cluster.shown() == records(1, 10)
    assert cluster.stream.explain()["waits_for_nodes"] == [1]
    cluster.release(at(11), 1)
    cluster.run(100)
    assert cluster.shown() == records(1, 11)
    assert cluster.rewinds == {}


# -- What it may hold ----------------------------------------------------------------------------


def test_an_application_that_pauses_stops_the_nodes() -> None:
    cluster = even_cluster(blocks=200, settings=with_settings(window_lsns=1_000))
    cluster.pause()
    cluster.open()
    cluster.run(3_600_000)
    stream = cluster.stream
    assert stream.receiver.received.bytes <= 5 * (400 + 100)
    assert stream.explain()["waits_for"] == "application"
    assert cluster.rewinds == {}, "nobody is to blame"
    cluster.resume()
    cluster.run(10_000)
    assert cluster.shown() == records(1, 200)


def test_a_stream_of_holes_does_not_use_up_the_credit() -> None:
    cluster = Cluster(one_range([1, 2], 2), at(1), at(101), SETTINGS)
    for offset in range(1, 101):
        cluster.store(block(at(offset), 1, EntryKind.HOLE), [1, 2])
    cluster.release(at(100))
    cluster.open()
    cluster.run(1_000)
    assert cluster.is_finished


def test_memory_pressure_makes_the_window_smaller() -> None:
    cluster = even_cluster(blocks=200, is_endless=True)
    cluster.stream.memory_pressure(is_high=True)
    cluster.open()
    cluster.run(1_000)
    assert cluster.shown() == records(1, 200)
    assert cluster.stream.window.size == 1


# -- Versions ------------------------------------------------------------------------------------


def talking(nodes: int = 2, **settings: object) -> tuple[SequencedReadStream, list[NodeId]]:
    """A stream whose nodes have all answered START, at e1n1."""
    stream = SequencedReadStream(LOG, STREAM, at(1), LSN_MAX, with_settings(**settings))
    stream.open(0)
    stream.epochs_known(one_range(range(1, nodes + 1), 2), Epoch(1), {}, {}, 0)
    for node in stream.read_set.senders:
        stream.arrived(node, Started(STREAM, 1, at(1)), 0)
    return stream, list(stream.read_set.senders)


def test_what_was_sent_before_a_rewind_is_not_delivered() -> None:
    stream, _ = talking(3)
    stream.lost(TWO, 0)
    stream.timer_fired(1)
    assert stream.version == 2
    assert stream.arrived(ONE, Blocks(STREAM, 1, (block(at(1)),), at(2)), 1) == []
    effects = stream.arrived(ONE, Started(STREAM, 2, at(1)), 1)
    effects += stream.arrived(ONE, Blocks(STREAM, 2, (block(at(1)),), at(2)), 1)
    assert [effect.first for effect in effects if isinstance(effect, e.Deliver)] == [at(1)]


def test_pushes_that_overtake_the_answer_to_start_wait_for_it() -> None:
    stream = SequencedReadStream(LOG, STREAM, at(1), LSN_MAX, SETTINGS)
    stream.open(0)
    stream.epochs_known(one_range([1, 2], 2), Epoch(1), {}, {}, 0)
    push = Blocks(STREAM, 1, (block(at(1)),), at(2))
    assert stream.arrived(ONE, push, 0) == []
    effects = stream.arrived(ONE, Started(STREAM, 1, at(1)), 0)
    assert [effect.first for effect in effects if isinstance(effect, e.Deliver)] == [at(1)]


def test_a_node_that_was_not_asked_for_lack_of_time_is_not_to_blame() -> None:
    stream = SequencedReadStream(LOG, STREAM, at(1), LSN_MAX, SETTINGS)
    stream.open(0)
    stream.epochs_known(one_range([1, 2], 2), Epoch(1), {}, {}, 0)
    stream.arrived(ONE, Failure(FailureKind.CROWDED), 0)
    assert not stream.rewinds.is_pending
    again = [x.node for x in stream.timer_fired(10) if isinstance(x, e.StartSender)]
    assert again == [ONE]


def test_a_node_that_is_started_again_gets_a_version_of_its_own() -> None:
    """It may still talk on the first, and what it says there would be misunderstood."""
    stream, _ = talking(2, is_single_copy=False)
    stream.lost(TWO, 0)
    effects = stream.timer_fired(10)
    start = next(effect.start for effect in effects if isinstance(effect, e.StartSender))
    assert (stream.version, start.version) == (1, 2)
    assert not stream.is_current(TWO, 1) and stream.is_current(TWO, 2)
    late = Blocks(STREAM, 1, (block(at(5)),), at(6))
    assert stream.arrived(TWO, late, 11) == []
    stream.arrived(TWO, Started(STREAM, 2, at(1)), 12)
    assert stream.read_set.senders[TWO].next_lsn == at(1)


def test_credit_given_while_start_was_on_its_way_is_told_after_the_answer() -> None:
    stream = SequencedReadStream(LOG, STREAM, at(1), LSN_MAX, with_settings(window_lsns=4))
    stream.open(0)
    stream.epochs_known(one_range([1, 2], 2), Epoch(1), {}, {}, 0)
    stream.arrived(ONE, Started(STREAM, 1, at(1)), 0)
    blocks = tuple(block(at(n)) for n in range(1, 5))
    effects = stream.arrived(ONE, Blocks(STREAM, 1, blocks, at(5)), 0)
    assert {effect.node for effect in effects if isinstance(effect, e.TellSender)} == {ONE}
    effects = stream.arrived(TWO, Started(STREAM, 1, at(1)), 0)
    (told,) = [effect for effect in effects if isinstance(effect, e.TellSender)]
    assert isinstance(told.message, Window)
    assert (told.node, told.message.window_last) == (TWO, at(8))


# -- Health --------------------------------------------------------------------------------------


def test_health_is_told_at_once_when_good_and_after_a_while_when_bad() -> None:
    cluster = even_cluster(blocks=10, is_endless=True)
    cluster.open()
    cluster.run(100)
    assert cluster.health == [True]
    cluster.kill(1, 2)
    cluster.run(60_000)
    assert cluster.health == [True], "three of five, R 3, see everything"
    cluster.kill(3)
    cluster.run(29_000)
    assert cluster.health == [True]
    cluster.run(2_000)
    assert cluster.health == [True, False]
    cluster.revive(3)
    cluster.run(31_000)
    assert cluster.health == [True, False, True]


def test_a_log_that_was_deleted_ends_the_stream() -> None:
    stream = SequencedReadStream(LOG, STREAM, at(1), LSN_MAX)
    stream.open(0)
    failed = stream.epochs_failed(Failure(FailureKind.UNKNOWN_LOG), 1)
    assert failed == [e.Fail(e.FailReason.UNKNOWN_LOG, at(1))]


def test_explain_names_what_a_stalled_reader_waits_for() -> None:
    cluster = even_cluster(blocks=20)
    cluster.kill(1, 2, 3)
    cluster.open()
    cluster.run(5_000)
    told = cluster.stream.explain()
    assert (told["mode"], told["waits_for"]) == (Mode.ALL_SEND_ALL.value, "authority")
    assert (told["next_lsn"], told["waits_for_nodes"]) == ("e1n1", [1, 2, 3])
    described = told["nodes"]
    assert isinstance(described, dict)
    assert described[ONE]["trouble"] == "lost"
    assert described[NodeId(4)]["gap_state"] == "gap"


def test_at_the_tail_of_too_few_nodes_it_is_not_known_that_all_was_read() -> None:
    cluster = even_cluster(blocks=10, is_endless=True)
    cluster.open()
    cluster.run(1_000)
    cluster.kill(1, 2)
    cluster.run(1_000)
    assert cluster.stream.explain()["waits_for"] == "tail"
    cluster.kill(3)
    cluster.run(1_000)
    told = cluster.stream.explain()
    assert (told["waits_for"], told["waits_for_nodes"]) == ("authority", [1, 2, 3])
    cluster.revive(3)
    cluster.run(61_000)
    assert cluster.stream.explain()["waits_for"] == "tail"
