"""An append that is sent again is in the log once."""

from millrace.core.messages import (
    AppendUnsettled,
    BlockAppended,
    Stored,
)
from millrace.types import NodeId, Token
from tests.core.log_sequencer_rig import ABC, EPOCH, Rig, at, stores


def test_a_repetition_waits_for_the_append_in_flight() -> None:
    rig = Rig()
    rig.append(token=Token(5, 1))
    assert rig.append(token=Token(5, 1)) == []
    rig.store(1)
    assert rig.answers() == dict.fromkeys((1, 2), BlockAppended(at(1), at(1)))
    assert rig.sequencer.tail().issued == at(1)


def test_an_append_that_was_answered_is_answered_again() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.append(token=Token(5, 1))
    for node in (2, 3, 4):
        rig.answer(node, 1, Stored())
    rig.append(token=Token(5, 1))  # Not complete yet.
    rig.answer(1, 1, Stored())
    rig.append(token=Token(5, 1))
    assert rig.answers() == dict.fromkeys((1, 2, 3), BlockAppended(at(1), at(1)))


def test_appends_without_a_token_are_all_new() -> None:
    rig = Rig()
    assert stores(rig.append())
    assert stores(rig.append())


def test_few_repetitions_wait_for_one_append() -> None:
    rig = Rig(tickets_per_append=2)
    for _ in range(3):
        rig.append(token=Token(5, 1))
    assert rig.answers() == {1: AppendUnsettled(EPOCH, at(1))}
    rig.store(1)
    assert rig.answers()[2] == rig.answers()[3] == BlockAppended(at(1), at(1))


def test_a_repetition_in_this_epoch_is_appended_if_it_is_certainly_new() -> None:
    rig = Rig(tokens_remembered=2)
    for request in (1, 2):
        rig.append(token=Token(5, request))
        rig.store(request)
    assert stores(rig.append(token=Token(5, 3), only_in=EPOCH, is_repeated=True))


def test_a_repetition_that_may_have_been_forgotten_is_unsettled() -> None:
    rig = Rig(tokens_remembered=2)
    for request in (1, 2, 3):
        rig.append(token=Token(5, request))
        rig.store(request)
    rig.append(token=Token(5, 1), only_in=EPOCH, is_repeated=True)
    assert rig.answers()[4] == AppendUnsettled(EPOCH)
    assert stores(rig.append(token=Token(5, 4)))  # The first attempt says so.
