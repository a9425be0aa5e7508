"""What a storage node may say of where its blocks of a sequenced log lie and how heavy they are."""

import pytest

from millrace.core.effects import AnswerRuns, AnswerWeigh, NodeEffect, Reply
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.messages import FindRuns, Message, Refusal, Refused, Standing, Weigh
from millrace.core.node import NodeCore
from millrace.limits import WEIGH_PIECES_MAX
from millrace.lsn import lsn_of
from millrace.types import FIRST_LSN, LSN_MAX, NO_TOKEN, Epoch, LogId, Lsn

LOG, UNKNOWN = LogId(7), LogId(8)
TICKET = (1, 1)


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


TRIM_END, RELEASED = at(1, 40), at(3, 9)
STATE = LogState(
    Fence(Epoch(3), NO_TOKEN, Standing.MEMBER),
    TRIM_END,
    TRIM_END,
    at(3, 20),
    [],
    0,
    0,
    is_scattered=True,
    marks=Marks(RELEASED, (), Epoch(3)),
)


def asked(message: Message) -> list[NodeEffect]:
    node = NodeCore(lambda log: STATE if log == LOG else None)
    return node.handle(TICKET, message)


@pytest.mark.parametrize(
    ("first", "end", "told_first", "told_end"),
    [
        pytest.param(FIRST_LSN, LSN_MAX, TRIM_END, at(3, 10), id="everything"),
        pytest.param(at(2, 1), at(3, 5), at(2, 1), at(3, 5), id="a part"),
        pytest.param(at(1, 1), at(3, 15), TRIM_END, at(3, 10), id="not released yet"),
    ],
)
def test_runs_are_of_what_is_readable(first: Lsn, end: Lsn, told_first: Lsn, told_end: Lsn) -> None:
    assert asked(FindRuns(LOG, first, end)) == [AnswerRuns(TICKET, LOG, told_first, told_end)]


@pytest.mark.parametrize(
    ("first", "end", "told_first", "told_end"),
    [
        pytest.param(FIRST_LSN, LSN_MAX, TRIM_END, at(3, 20), id="everything"),
        pytest.param(at(2, 1), at(3, 5), at(2, 1), at(3, 5), id="a part"),
        pytest.param(at(1, 1), at(3, 15), TRIM_END, at(3, 15), id="released, as the asker knows"),
    ],
)
def test_all_that_is_held_is_weighed(first: Lsn, end: Lsn, told_first: Lsn, told_end: Lsn) -> None:
    weighed = [AnswerWeigh(TICKET, LOG, told_first, told_end, 64)]
    assert asked(Weigh(LOG, Epoch(0), first, end, 64)) == weighed


def test_a_node_that_must_find_out_what_was_outvoted_says_less() -> None:
    behind = LogState(
        STATE.fence, TRIM_END, TRIM_END, at(3, 20), [], 0, 0, is_scattered=True,
        marks=Marks(RELEASED, (at(2, 4),), Epoch(2)),
    )  # fmt: skip
    node = NodeCore(lambda log: behind)
    (answer,) = node.handle(TICKET, FindRuns(LOG, TRIM_END, LSN_MAX))[:1]
    assert answer == AnswerRuns(TICKET, LOG, TRIM_END, at(2, 5))


@pytest.mark.parametrize("pieces", [0, WEIGH_PIECES_MAX + 1])
def test_the_number_of_pieces_is_bounded(pieces: int) -> None:
    (reply,) = asked(Weigh(LOG, Epoch(0), FIRST_LSN, LSN_MAX, pieces))
    assert isinstance(reply, Reply) and isinstance(reply.message, Refused)
    assert reply.message.reason is Refusal.BAD_REQUEST


def test_asking_about_an_unknown_log_costs_no_memory() -> None:
    node = NodeCore(lambda log: None)
    node.handle(TICKET, FindRuns(UNKNOWN, FIRST_LSN, LSN_MAX))
    assert node.logs_kept == 0
