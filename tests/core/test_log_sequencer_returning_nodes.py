"""What is held back for nodes that are away goes on when they are back."""

import pytest

from millrace.core.messages import EpochsSealed, Message, Refusal, Refused, Standing, Stored
from millrace.core.procedure import Failure, FailureKind
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.absences import PAUSE_MS
from millrace.core.sequenced.sequencer import SequencerState
from millrace.types import NO_LSN, Epoch, Lsn, NodeId
from tests.core.log_sequencer_rig import ABC, DEF, NOT_CONNECTED, NOW, TIMED_OUT, Rig, at, stores

LATER = NOW + PAUSE_MS
SEALED = EpochsSealed(Standing.MEMBER, Lsn(1), NO_LSN, (), Lsn(1))
B = ABC[1]


def held_back(answer: Message | Failure = NOT_CONNECTED) -> Rig:
    """B did not take a block, and now it is to be tried again after a pause."""
    rig = Rig(waves_at_once=1)
    rig.append()
    rig.answer(B, 1, answer)
    return rig


def probed(rig: Rig, answer: Message | Failure, node: NodeId = B) -> list[e.SequencerEffect]:
    assert rig.sequencer.missing(LATER) == [node]
    return rig.sequencer.probed(node, answer, LATER)


def test_nobody_is_asked_while_nothing_is_held_back() -> None:
    rig = Rig(ABC, DEF)
    rig.append()
    rig.answer(B, 1, NOT_CONNECTED)
    assert stores(rig.effects)[-1].tag == (at(1), 2), "others are tried"
    assert not rig.sequencer.is_held_back
    assert rig.sequencer.missing(LATER) == []


@pytest.mark.parametrize(
    ("answer", "is_asked"),
    [
        pytest.param(NOT_CONNECTED, True, id="unreachable"),
        pytest.param(Failure(FailureKind.LOST), True, id="connection lost"),
        pytest.param(TIMED_OUT, True, id="silent"),
        pytest.param(Refused(Refusal.UNAVAILABLE), True, id="starting"),
        pytest.param(Refused(Refusal.NOT_READY), True, id="takes no copies"),
        pytest.param(Refused(Refusal.DISK_FULL), False, id="no space"),
        pytest.param(Refused(Refusal.BUSY), False, id="overloaded"),
        pytest.param(Failure(FailureKind.CROWDED), False, id="our own doing"),
    ],
)
def test_who_is_asked_whether_it_is_back(answer: Message | Failure, is_asked: bool) -> None:
    sequencer = held_back(answer).sequencer
    assert sequencer.is_held_back is is_asked
    assert sequencer.missing(LATER) == ([B] if is_asked else [])


def test_those_that_are_disabled_by_their_statuses_are_not_asked() -> None:
    rig = held_back()
    rig.availability.disable(frozenset({B}))
    assert rig.sequencer.missing(LATER) == []
    rig.availability.disable(frozenset())
    assert rig.sequencer.missing(LATER) == [B]


@pytest.mark.parametrize("answer", [NOT_CONNECTED, TIMED_OUT, Refused(Refusal.UNAVAILABLE)])
def test_the_block_is_sent_at_once_to_a_node_that_is_back(answer: Message | Failure) -> None:
    rig = held_back(answer)
    asked = stores(probed(rig, SEALED))
    assert [ask.node for ask in asked] == list(ABC)
    assert rig.availability.avoided(LATER) == set()
    rig.store(1, wave=2)
    assert rig.sequencer.is_idle
    assert rig.sequencer.explain(LATER)["missing"] == []


@pytest.mark.parametrize("answer", [NOT_CONNECTED, TIMED_OUT, Refused(Refusal.UNAVAILABLE)])
def test_a_node_that_is_not_back_is_still_avoided_and_asked_again(
    answer: Message | Failure,
) -> None:
    rig = held_back(TIMED_OUT)
    assert probed(rig, answer) == []
    assert rig.availability.avoided(LATER) == {B}, "the next wave does without it if it can"
    assert rig.sequencer.missing(LATER) == []
    assert rig.sequencer.missing(LATER + PAUSE_MS) == [B]


def test_lack_of_room_is_still_held_against_a_node_that_is_back() -> None:
    rig = held_back()
    rig.append()
    rig.answer(B, 2, Refused(Refusal.DISK_FULL))
    assert stores(probed(rig, SEALED))
    assert rig.availability.avoided(LATER) == {B}


def test_a_copy_that_it_takes_says_the_same_as_an_answer() -> None:
    rig = held_back(TIMED_OUT)
    rig.append()
    assert {ask.tag for ask in stores(rig.answer(B, 2, Stored()))} == {(at(1), 2)}
    assert rig.sequencer.missing(LATER) == []


def test_a_node_that_was_sealed_for_a_later_epoch_ends_the_sequencer() -> None:
    rig = held_back()
    assert probed(rig, Refused(Refusal.EPOCH, Epoch(9)))[-1] == e.Preempted(Epoch(9))
    assert rig.sequencer.state is SequencerState.PREEMPTED


def test_after_the_end_nobody_is_asked_and_no_answer_counts() -> None:
    rig = held_back()
    assert rig.sequencer.missing(LATER) == [B]
    rig.sequencer.close()
    assert rig.sequencer.probed(B, SEALED, LATER) == []
    assert not rig.sequencer.is_held_back
    assert rig.sequencer.missing(LATER + PAUSE_MS) == []
