"""A log that is sealed for good."""

from millrace.core.messages import (
    AppendUnsettled,
    BlockAppended,
    Refusal,
)
from millrace.core.sequenced import effects as e
from millrace.types import Token
from tests.core.log_sequencer_rig import EPOCH, NOT_CONNECTED, Rig, at, refusal


def test_while_a_log_is_being_sealed_appends_are_put_off_and_those_in_flight_go_on() -> None:
    rig = Rig()
    rig.append()
    rig.sequencer.seal()
    rig.append()
    assert refusal(rig.answers()[2]) == (Refusal.BUSY, EPOCH)
    assert not rig.sequencer.is_idle
    rig.store(1)
    assert rig.answers()[1] == BlockAppended(at(1), at(1))
    assert rig.sequencer.is_idle


def test_a_sealed_log_refuses_what_is_new_and_knows_what_is_not() -> None:
    rig = Rig()
    rig.append(token=Token(5, 1))
    rig.store(1)
    rig.sequencer.seal()
    rig.sequencer.sealed()
    rig.append(token=Token(5, 1), only_in=EPOCH)
    rig.append(token=Token(5, 2))
    rig.append(token=Token(5, 3), only_in=EPOCH)
    assert rig.answers()[2] == BlockAppended(at(1), at(1))
    assert refusal(rig.answers()[3]) == refusal(rig.answers()[4]) == (Refusal.SEALED, EPOCH)


def test_a_sealed_log_that_has_forgotten_tokens_does_not_say_that_it_never_had_one() -> None:
    rig = Rig(tokens_remembered=1)
    for number in (1, 2):
        rig.append(token=Token(5, number))
        rig.store(number)
    rig.sequencer.sealed()
    rig.append(token=Token(5, 1), only_in=EPOCH, is_repeated=True)
    assert rig.answers()[3] == AppendUnsettled(EPOCH)


def test_a_block_that_cannot_be_stored_ends_the_epoch_also_while_it_is_being_sealed() -> None:
    rig = Rig(waves_at_once=9, waves_max=1)
    rig.append()
    rig.sequencer.seal()
    assert rig.answer(1, 1, NOT_CONNECTED)[-1] == e.Exhausted(e.ExhaustedCause.WAVES)
