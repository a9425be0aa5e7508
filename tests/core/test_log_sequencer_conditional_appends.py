"""Appends that name the last record."""

import pytest

from millrace.core.messages import (
    BlockAppended,
    Refusal,
)
from millrace.core.sequenced import effects as e
from millrace.lsn import lsn_of
from millrace.types import Epoch, Lsn, Token
from tests.core.log_sequencer_rig import EPOCH, Rig, at, refusal, stores


@pytest.mark.parametrize(
    ("records", "tail", "if_tail", "is_taken"),
    [
        pytest.param(0, Lsn(0), Lsn(0), True, id="an empty log"),
        pytest.param(0, lsn_of(Epoch(6), 9), lsn_of(Epoch(6), 9), True, id="of an earlier epoch"),
        pytest.param(0, lsn_of(Epoch(6), 9), lsn_of(Epoch(6), 8), False, id="too low"),
        pytest.param(2, lsn_of(Epoch(6), 9), lsn_of(Epoch(6), 9), False, id="overtaken"),
        pytest.param(2, lsn_of(Epoch(6), 9), at(2), True, id="of this epoch"),
        pytest.param(2, Lsn(0), at(1), False, id="inside the last block"),
        pytest.param(2, Lsn(0), at(3), False, id="too high"),
    ],
)
def test_a_conditional_append(records: int, tail: Lsn, if_tail: Lsn, is_taken: bool) -> None:
    rig = Rig()
    rig.recovered(tail)
    if records:
        rig.append(records)
    effects = rig.append(if_tail=if_tail)
    if is_taken:
        assert stores(effects)
    else:
        (answer,) = effects
        assert isinstance(answer, e.Answer)
        assert refusal(answer.message) == (Refusal.CONFLICT, EPOCH)


def test_a_conditional_append_waits_for_the_recovery_unless_this_epoch_has_records() -> None:
    rig = Rig()
    rig.append(if_tail=Lsn(0))
    assert refusal(rig.answers()[1]) == (Refusal.BUSY, EPOCH)
    rig.append()
    assert stores(rig.append(if_tail=at(1)))


def test_a_conditional_append_that_is_repeated_does_not_conflict_with_itself() -> None:
    rig = Rig()
    rig.recovered()
    rig.append(token=Token(5, 1), if_tail=Lsn(0))
    rig.store(1)
    rig.append(token=Token(5, 1), if_tail=Lsn(0))
    assert rig.answers()[1] == rig.answers()[2] == BlockAppended(at(1), at(1))
