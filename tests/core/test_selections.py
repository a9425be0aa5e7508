"""Selections in the protocol: which are refused, how they travel, what cut blocks cost."""

import pytest

from millrace.codec.cuts import cut
from millrace.core import messages as m
from millrace.core import read_stream as r
from millrace.core.effects import Reply, SendBlocks
from millrace.core.node import NodeCore
from millrace.core.read_stream import ReadStream, RewindReason
from millrace.core.selections import complaint, credit_bytes
from millrace.limits import (
    CUT_CREDIT_BYTES_MIN,
    MIB,
    SELECT_BATCH_BYTES,
    SELECTION_KEYS_BYTES_MAX,
    SELECTION_KEYS_MAX,
)
from millrace.types import Block, Epoch, Lsn, NodeId, Selection
from tests.core.core_samples import LOG, block, projection, state

TAIL = NodeId(3)
POSITIONS = Selection(columns=())
WINDOW_BYTES = 8 * CUT_CREDIT_BYTES_MIN


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(columns=("key", "colour")), "no column colour; there are key, value, "),
        (Selection(columns=("lsn",)), "lsn always comes"),
        (Selection(columns=("key", "key")), "twice"),
        (Selection(time_first_us=2**63), "no time in microseconds"),
        (Selection(time_end_us=-(2**63) - 1), "no time in microseconds"),
        (Selection(keys=(b"",) * (SELECTION_KEYS_MAX + 1)), "1025 keys"),
        (Selection(keys=(bytes(SELECTION_KEYS_BYTES_MAX), b"x")), "65537 bytes"),
    ],
)
def test_what_cannot_be_selected_is_refused_with_a_reason(selection: Selection, words: str) -> None:
    assert words in complaint(selection)
    core = NodeCore(lambda log: state(1, 11))
    start = m.Start(LOG, Epoch(1), 1, 1, Lsn(1), Lsn(11), 100, selection)
    (effect,) = core.handle((1, 1), start)
    assert isinstance(effect, Reply) and isinstance(effect.message, m.Refused)
    assert effect.message.reason is m.Refusal.BAD_REQUEST
    assert words in effect.message.detail


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        POSITIONS,
        Selection(columns=("headers", "key"), keys=()),
        Selection(time_first_us=-(2**63), time_end_us=2**63 - 1, keys=(b"k",)),
    ],
)
def test_what_can_be_selected(selection: Selection) -> None:
    assert complaint(selection) == ""


@pytest.mark.parametrize("selection", [None, POSITIONS], ids=["plain", "selective"])
def test_an_order_carries_the_selection_and_a_budget_to_look_at(
    selection: Selection | None,
) -> None:
    core = NodeCore(lambda log: state(1, 11))
    start = m.Start(LOG, Epoch(1), 4, 1, Lsn(1), Lsn(11), 64 * MIB, selection)
    _, order = core.handle((1, 1), start)
    assert isinstance(order, SendBlocks)
    assert order.selection == selection
    assert (order.bytes_max == SELECT_BATCH_BYTES) == (selection is not None)
    # What was sent counts against the credit, not what was looked at.
    (again,) = core.sent(order, Lsn(5), 100)
    assert isinstance(again, SendBlocks)
    assert (again.first, again.selection) == (5, selection)


def selecting(selection: Selection | None) -> ReadStream:
    settings = r.ReadSettings(window_bytes=WINDOW_BYTES)
    stream = ReadStream(LOG, 7, Lsn(1), Lsn(100), settings, selection)
    stream.open()
    _, start = stream.projected(projection())
    assert isinstance(start, r.StartSender)
    assert start.start.selection == selection
    stream.arrived(TAIL, m.Started(7, 1, Lsn(1)))
    return stream


def cut_block(first: int) -> Block:
    return cut(block(first), POSITIONS)


def test_cut_blocks_are_delivered_in_order() -> None:
    stream = selecting(POSITIONS)
    assert stream.arrived(TAIL, m.Blocks(7, 1, (cut_block(2),))) == []
    delivered = stream.arrived(TAIL, m.Blocks(7, 1, (cut_block(1),)))
    assert [one.first for one in delivered if isinstance(one, r.Deliver)] == [1, 2]


def test_a_bare_header_takes_more_of_the_window_than_its_size() -> None:
    """Otherwise a window full of them would be millions of objects (G13)."""
    one = cut_block(1)
    assert one.size < credit_bytes(one) == CUT_CREDIT_BYTES_MIN
    assert credit_bytes(block(1)) == block(1).size
    stream = selecting(POSITIONS)
    stream.arrived(TAIL, m.Blocks(7, 1, (one,)))
    assert stream.explain()["bytes_not_taken"] == CUT_CREDIT_BYTES_MIN
    assert stream.took(credit_bytes(one)) == []
    stream.arrived(TAIL, m.Blocks(7, 1, (cut_block(2),)))
    widened = stream.took(credit_bytes(one))
    assert widened == [r.TellSender(TAIL, m.Window(7, 1, WINDOW_BYTES + 2 * CUT_CREDIT_BYTES_MIN))]


def test_a_cut_block_that_nobody_asked_for_is_misbehaviour() -> None:
    stream = selecting(None)
    effects = stream.arrived(TAIL, m.Blocks(7, 1, (cut_block(1),)))
    assert stream.rewinds == {RewindReason.MISBEHAVED: 1}
    assert not [effect for effect in effects if isinstance(effect, r.Deliver)]


def test_a_rewound_stream_selects_again() -> None:
    stream = selecting(POSITIONS)
    stream.lost(TAIL)
    _, start = stream.projected(projection(2))
    assert isinstance(start, r.StartSender)
    assert (start.start.version, start.start.selection) == (2, POSITIONS)
