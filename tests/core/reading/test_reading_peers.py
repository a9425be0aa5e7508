"""A node that breaks the rules harms a reader no more than one that is down."""

import pytest

from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Damaged,
    GapFound,
    Message,
    Pong,
    Started,
    Stop,
)
from millrace.core.reading import effects as e
from millrace.core.reading.senders import EARLY_MESSAGES_MAX
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.reading.validation import Misbehaviour
from millrace.limits import BLOCK_BYTES_MAX
from millrace.types import Block, EntryKind, Epoch, GapKind, LogId, Lsn, NodeId
from tests.core.reading.read_cluster import LOG, STREAM, at, block, one_range
from tests.core.reading.reading_samples import even_cluster, records, with_settings

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


END, NEXT = at(100), at(20)


def reading() -> SequencedReadStream:
    """At e1n10, with a window up to e1n25; N1 has passed e1n12 and sent nothing."""
    stream = SequencedReadStream(LOG, STREAM, at(10), END, with_settings(window_lsns=16))
    stream.open(0)
    stream.epochs_known(one_range([1, 2, 3], 2), Epoch(1), {}, {}, 0)
    for node in (ONE, TWO, THREE):
        stream.arrived(node, Started(STREAM, 1, at(10)), 0)
    stream.arrived(ONE, CaughtUp(STREAM, 1, at(12), at(12)), 0)
    return stream


def blocks(*sent: Block, next_lsn: Lsn = NEXT, stream: int = STREAM, version: int = 1) -> Blocks:
    return Blocks(stream, version, sent, next_lsn)


def of_log(log: int) -> Block:
    other = block(at(12))
    other.log = LogId(log)
    return other


def cut() -> Block:
    other = block(at(12))
    other.is_cut = True
    return other


def across_epochs() -> Block:
    return block(Lsn(at(0, epoch=2) - 2), 4)


BAD = [
    pytest.param(blocks(stream=8), Misbehaviour.STRANGER, id="another stream"),
    pytest.param(blocks(version=2), Misbehaviour.STRANGER, id="a version to come"),
    pytest.param(Pong(), Misbehaviour.STRANGER, id="another message"),
    pytest.param(blocks(next_lsn=at(11)), Misbehaviour.BACKWARDS, id="a claim goes back"),
    pytest.param(
        blocks(block(at(12), 4), next_lsn=at(14)),
        Misbehaviour.BACKWARDS,
        id="a claim before a block",
    ),
    pytest.param(
        CaughtUp(STREAM, 1, at(11), at(11)), Misbehaviour.BACKWARDS, id="caught up with the past"
    ),
    pytest.param(
        GapFound(STREAM, 1, GapKind.TRIM, at(9), at(10)), Misbehaviour.BACKWARDS, id="an old trim"
    ),
    pytest.param(
        GapFound(STREAM, 1, GapKind.FILTERED_OUT, at(11), at(14)),
        Misbehaviour.BACKWARDS,
        id="filtered what was passed",
    ),
    pytest.param(blocks(block(at(11))), Misbehaviour.OUT_OF_ORDER, id="a block it had passed"),
    pytest.param(
        blocks(block(at(14)), block(at(13))), Misbehaviour.OUT_OF_ORDER, id="blocks turned around"
    ),
    pytest.param(
        blocks(block(at(12), 3), block(at(14))), Misbehaviour.OUT_OF_ORDER, id="blocks overlap"
    ),
    pytest.param(
        blocks(block(at(26)), next_lsn=at(27)), Misbehaviour.OUT_OF_WINDOW, id="above the window"
    ),
    pytest.param(
        GapFound(STREAM, 1, GapKind.FILTERED_OUT, at(26), at(27)),
        Misbehaviour.OUT_OF_WINDOW,
        id="filtered above the window",
    ),
    pytest.param(
        blocks(block(at(100)), next_lsn=at(101)), Misbehaviour.OUT_OF_RANGE, id="behind the end"
    ),
    pytest.param(blocks(block(at(7), 3)), Misbehaviour.OUT_OF_RANGE, id="before the begin"),
    pytest.param(blocks(of_log(2)), Misbehaviour.NOT_A_BLOCK, id="another log"),
    pytest.param(blocks(cut()), Misbehaviour.NOT_A_BLOCK, id="cut, and nobody asked"),
    pytest.param(blocks(across_epochs()), Misbehaviour.NOT_A_BLOCK, id="across epochs"),
    pytest.param(blocks(block(at(12), 0)), Misbehaviour.NOT_A_BLOCK, id="no records"),
    pytest.param(
        blocks(block(at(14), 2)), Misbehaviour.CONFLICT, id="another block than N2 sent at e1n15"
    ),
    pytest.param(
        GapFound(STREAM, 1, GapKind.DATALOSS, at(12), at(13)),
        Misbehaviour.BAD_GAP,
        id="a gap that is not for a node to tell",
    ),
    pytest.param(
        GapFound(STREAM, 1, GapKind.TRIM, at(14), at(12)), Misbehaviour.BAD_GAP, id="turned around"
    ),
    pytest.param(Damaged(STREAM, 1, at(14), at(14)), Misbehaviour.BAD_GAP, id="damaged nothing"),
]


@pytest.mark.parametrize(("message", "wrong"), BAD)
def test_who_breaks_the_rules_is_taken_for_down(message: Message, wrong: Misbehaviour) -> None:
    stream = reading()
    stream.arrived(TWO, blocks(block(at(15)), next_lsn=at(16)), 0)
    effects = stream.arrived(ONE, message, 0)
    assert stream.hearing.misbehaviours == {wrong: 1}
    assert effects[0] == e.TellSender(ONE, Stop(STREAM))
    assert not stream.read_set.senders[ONE].is_connected
    assert stream.read_set.senders[ONE].next_lsn == at(10), "what it said is not believed"
    started = [x.start for x in stream.timer_fired(1) if isinstance(x, e.StartSender)]
    assert {start.shipping.known_down for start in started if start.shipping} == {(1,)}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(blocks(block(at(12), 3), next_lsn=at(15)), id="a block"),
        pytest.param(blocks(block(at(25), 9), next_lsn=at(34)), id="one that reaches out of it"),
        pytest.param(blocks(version=0), id="an old version, not heard"),
        pytest.param(CaughtUp(STREAM, 1, at(12), at(12)), id="the same claim again"),
        pytest.param(CaughtUp(STREAM, 1, at(1, epoch=9), at(12)), id="a claim beyond the end"),
        pytest.param(GapFound(STREAM, 1, GapKind.TRIM, at(1), at(90)), id="a long trim"),
        pytest.param(blocks(block(at(12), 3, EntryKind.HOLE)), id="a hole"),
        pytest.param(blocks(), id="no blocks"),
    ],
)
def test_what_is_within_the_rules(message: Message) -> None:
    stream = reading()
    stream.arrived(ONE, message, 0)
    assert stream.hearing.misbehaviours == {}
    assert stream.read_set.senders[ONE].is_connected


def test_the_first_block_may_begin_before_the_reader() -> None:
    stream = reading()
    effects = stream.arrived(TWO, blocks(block(at(8), 4), next_lsn=at(12)), 0)
    (delivered,) = [effect for effect in effects if isinstance(effect, e.Deliver)]
    assert (delivered.first, delivered.end) == (at(10), at(12))


def test_more_than_the_credit_and_a_block_is_too_much() -> None:
    stream = reading()
    stream.read_set.senders[ONE].received_bytes = BLOCK_BYTES_MAX + 10_000
    stream.arrived(ONE, blocks(block(at(12))), 0)
    assert stream.hearing.misbehaviours == {Misbehaviour.TOO_MUCH: 1}


def test_pushes_without_end_before_the_answer_to_start_are_too_much() -> None:
    stream = SequencedReadStream(LOG, STREAM, at(1), at(9))
    stream.open(0)
    stream.epochs_known(one_range([1, 2], 2), Epoch(1), {}, {}, 0)
    for _ in range(EARLY_MESSAGES_MAX + 1):
        stream.arrived(ONE, CaughtUp(STREAM, 1, at(1), at(1)), 0)
    assert stream.hearing.misbehaviours == {Misbehaviour.TOO_MUCH: 1}


def test_strangers_are_not_heard() -> None:
    stream = reading()
    assert stream.arrived(NodeId(9), blocks(block(at(12))), 0) == []
    assert stream.lost(NodeId(9), 0) == []


def test_a_node_that_misbehaves_for_ever_does_not_hold_up_the_reader() -> None:
    cluster = even_cluster(blocks=300)
    liar = cluster.nodes[TWO]
    told_truth = liar.pump

    def lie() -> list[Message]:
        return [*told_truth(), blocks(of_log(2))]

    liar.pump = lie  # type: ignore[method-assign]
    cluster.open()
    cluster.run(60_000)
    assert cluster.shown() == records(1, 300)
    assert cluster.stream.rewinds.total <= 2


def test_a_bridge_may_begin_below_start_and_claims_nothing_below_it() -> None:
    bridge = block(at(8), 1, EntryKind.BRIDGE)
    stream = reading()
    stream.arrived(THREE, blocks(bridge, next_lsn=NEXT), 0)
    assert stream.hearing.misbehaviours == {}
    stream = reading()
    stream.arrived(THREE, blocks(bridge, next_lsn=at(9)), 0)
    assert stream.hearing.misbehaviours == {Misbehaviour.BACKWARDS: 1}
