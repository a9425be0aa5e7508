"""How a sequencer ends, and what it answers afterwards."""

from millrace.core.messages import (
    AppendUnsettled,
    BlockAppended,
    Refusal,
    Refused,
    Stored,
)
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.sequencer import SequencerState
from millrace.types import Epoch, NodeId, Token
from tests.core.log_sequencer_rig import ABC, EPOCH, Rig, at, refusal

SEALED = Refused(Refusal.EPOCH, Epoch(9))


def test_a_node_that_was_sealed_for_a_later_epoch_ends_the_sequencer() -> None:
    rig = Rig()
    rig.append(token=Token(5, 1))
    rig.append(token=Token(5, 2))
    rig.answer(1, 2, Stored())
    assert rig.answer(2, 1, SEALED) == [
        e.Answer((1, 1), AppendUnsettled(Epoch(9), at(1))),
        e.Answer((1, 2), AppendUnsettled(Epoch(9), at(2))),
        e.Preempted(Epoch(9)),
    ]
    assert rig.sequencer.state is SequencerState.PREEMPTED
    assert rig.store(1) == rig.store(2) == rig.recovered() == []
    assert rig.answer(3, 1, SEALED) == []


def test_also_when_the_block_was_complete_already() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.append()
    rig.store(1)
    assert rig.answer(4, 1, SEALED) == [e.Preempted(Epoch(9))]


def test_what_certainly_no_node_holds_is_refused_at_the_end() -> None:
    rig = Rig(None)
    rig.append()
    rig.copysets.script = [ABC]
    rig.append()
    rig.answer(2, 2, SEALED)
    answers = rig.answers()
    assert refusal(answers[1]) == (Refusal.EPOCH, 9)
    assert answers[2] == AppendUnsettled(Epoch(9), at(2))


def test_after_the_end_repetitions_get_their_answers_and_the_rest_is_refused() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.append(token=Token(5, 1))
    for node in (2, 3, 4):
        rig.answer(node, 1, Stored())  # Acknowledged, not yet released.
    rig.append(token=Token(5, 2))
    rig.answer(1, 2, SEALED)
    for request in (1, 2, 3):
        rig.append(token=Token(5, request))
    answers = rig.answers()
    assert answers[3] == answers[1] == BlockAppended(at(1), at(1))
    assert answers[4] == answers[2] == AppendUnsettled(Epoch(9), at(2))
    assert refusal(answers[5]) == (Refusal.EPOCH, 9)


def test_a_sequencer_that_steps_down_settles_nothing_more() -> None:
    rig = Rig()
    rig.append()
    rig.effects += rig.sequencer.close()
    rig.append()
    assert rig.answers()[1] == AppendUnsettled(EPOCH, at(1))
    assert refusal(rig.answers()[2]) == (Refusal.NOT_READY, EPOCH)
    assert rig.sequencer.close() == rig.store(1) == []
    assert rig.sequencer.is_idle
