"""How readers and askers follow a log through changes of its chain."""

from typing import Any

import pytest

from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.consult import ATTEMPTS_MAX, consult
from millrace.core.follow import copy_elsewhere, find_projection
from millrace.core.messages import Refusal, Refused
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_stream import NeedCopy, NeedProjection, RewindReason
from millrace.types import Epoch, Lsn, NodeId
from tests.core.core_samples import (
    CHAIN,
    FAILED,
    LOG,
    SEQUENCER,
    TIMED_OUT,
    Run,
    block,
    projection,
)

OPENED, LOST = RewindReason.OPENED, RewindReason.SENDER_LOST
SUSPECT = NodeId(3)


@pytest.mark.parametrize(
    ("need", "seen", "fresh", "expected"),
    [
        (NeedProjection(Epoch(0), OPENED), None, projection(1), None),
        (NeedProjection(Epoch(2), LOST), projection(1), projection(2), None),
        (NeedProjection(Epoch(0), LOST), projection(1), projection(1), None),
        (
            NeedProjection(Epoch(2), LOST),
            projection(1),
            projection(1),
            (frozenset(), ReconfigureReason.FENCED),
        ),
        (
            NeedProjection(Epoch(3), LOST),
            projection(1),
            projection(2),
            (frozenset(), ReconfigureReason.FENCED),
        ),
        (
            NeedProjection(Epoch(0), LOST, ReconfigureReason.UNREACHABLE, SUSPECT),
            projection(1),
            projection(1),
            (frozenset({SUSPECT}), ReconfigureReason.UNREACHABLE),
        ),
        (
            NeedProjection(Epoch(0), LOST, ReconfigureReason.UNREACHABLE, SUSPECT),
            projection(1),
            projection(2),
            None,
        ),
        (
            NeedProjection(Epoch(0), LOST, ReconfigureReason.BROKEN),
            projection(1),
            projection(1),
            (frozenset(), ReconfigureReason.BROKEN),
        ),
    ],
    ids=[
        "opened",
        "moved on",
        "nothing new and no cause",
        "fenced by somebody who did not finish",
        "moved on, but not far enough",
        "a suspect",
        "a suspect that was dealt with",
        "a cause without a suspect",
    ],
)
def test_the_projection_a_stream_needs(
    need: NeedProjection, seen: Projection | None, fresh: Projection, expected: Any
) -> None:
    run = Run(find_projection(LOG, need, seen))
    assert run.last == p.Refresh(LOG, need.epoch)
    run.answer(fresh)
    if expected is None:
        assert run.result == fresh
    else:
        assert run.last == p.Reconfigure(fresh, *expected)
        changed = projection(9)
        assert run.answer(changed).result == changed


def test_no_projection_can_be_had() -> None:
    need = NeedProjection(Epoch(0), OPENED)
    assert Run(find_projection(LOG, need, None)).answer(TIMED_OUT).result == TIMED_OUT


@pytest.mark.parametrize(
    ("answers", "asked", "is_found"),
    [
        ((m.Found(block(5)),), [2], True),
        ((TIMED_OUT, m.Found(block(5))), [2, 1], True),
        ((Refused(Refusal.CORRUPT), Refused(Refusal.UNWRITTEN)), [2, 1], False),
    ],
    ids=["next to the tail", "further up", "nowhere"],
)
def test_a_copy_of_a_committed_block(
    answers: tuple[Any, ...], asked: list[int], is_found: bool
) -> None:
    run = Run(copy_elsewhere(projection(), NeedCopy(Lsn(5), NodeId(3)))).answer(*answers)
    assert [node for node, _ in run.asked()] == asked
    assert run.is_done
    assert (run.result is not None) == is_found


# -- consult ----------------------------------------------------------------------------------


def tail(one: Projection) -> tuple[NodeId, m.Message]:
    return one.tail, m.Read(LOG, one.epoch, Lsn(5))


def sequencer(one: Projection) -> tuple[NodeId, m.Message]:
    return one.sequencer, m.Peek(LOG, one.epoch)


@pytest.mark.parametrize(
    "answer", [m.Found(block(5)), Refused(Refusal.UNWRITTEN, Epoch(1))], ids=["found", "refused"]
)
def test_an_answer_is_an_answer(answer: m.Message) -> None:
    assert Run(consult(projection(), tail)).answer(answer).result == answer


@pytest.mark.parametrize(
    ("question", "answer", "suspect", "reason"),
    [
        (tail, FAILED, 3, ReconfigureReason.UNREACHABLE),
        (sequencer, FAILED, SEQUENCER, ReconfigureReason.SEQUENCER_LOST),
        (sequencer, Refused(Refusal.NOT_READY), SEQUENCER, ReconfigureReason.SEQUENCER_LOST),
        (tail, Refused(Refusal.INCOMPLETE), 3, ReconfigureReason.INCOMPLETE),
        (tail, Refused(Refusal.EPOCH, Epoch(0)), 3, ReconfigureReason.INCOMPLETE),
    ],
)
def test_what_needs_another_chain(
    question: Any, answer: Any, suspect: int, reason: ReconfigureReason
) -> None:
    run = Run(consult(projection(), question)).answer(answer)
    assert run.last == p.Reconfigure(projection(), frozenset({NodeId(suspect)}), reason)
    run.answer(projection(2, (1, 2), 1))
    node, message = question(projection(2, (1, 2), 1))
    assert run.last == p.Ask(node, message)


def test_an_old_projection_is_looked_up() -> None:
    run = Run(consult(projection(), tail)).answer(Refused(Refusal.EPOCH, Epoch(2)))
    assert run.last == p.Refresh(LOG, Epoch(2))
    run.answer(projection(2, (1, 2), 1))
    assert run.asked()[-1] == (2, "Read")
    stale = Run(consult(projection(), tail)).answer(Refused(Refusal.EPOCH, Epoch(2)), projection())
    assert stale.last == p.Reconfigure(projection(), frozenset(), ReconfigureReason.FENCED)


def test_asking_has_an_end() -> None:
    run = Run(consult(projection(), tail))
    for epoch in range(2, ATTEMPTS_MAX + 2):
        run.answer(FAILED, projection(epoch, CHAIN, epoch - 1))
    assert run.result == FAILED
