"""Which appends a sequencer refuses."""

import pytest

from millrace.codec import blocks
from millrace.core.messages import (
    AppendUnsettled,
    BlockAppended,
    Refusal,
)
from millrace.core.sequenced import effects as e
from millrace.types import NO_TOKEN, Block, EntryKind, Epoch, Lsn, Token
from tests.core.core_samples import LOG, block, hole
from tests.core.log_sequencer_rig import EPOCH, NOT_CONNECTED, OTHER_LOG, Rig, at, refusal, stores


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        pytest.param({"writes_in_flight": 2}, 2, id="blocks"),
        pytest.param({"bytes_in_flight": 3 * block(1).size}, 3, id="bytes"),
        pytest.param({"bytes_in_flight": 1}, 1, id="one block always has room"),
    ],
)
def test_a_full_window_refuses_as_busy(settings: dict[str, int], fits: int) -> None:
    rig = Rig(**settings)
    for _ in range(fits + 1):
        rig.append()
    assert {ticket: refusal(one) for ticket, one in rig.answers().items()} == {
        fits + 1: (Refusal.BUSY, EPOCH)
    }
    rig.store(1)
    assert stores(rig.append())


def test_blocks_behind_one_that_is_not_stored_stay_in_the_window() -> None:
    rig = Rig(writes_in_flight=2)
    rig.append()
    rig.append()
    rig.store(2)
    rig.append()
    assert refusal(rig.answers()[3]) == (Refusal.BUSY, EPOCH)


def test_an_epoch_without_enough_offsets_takes_no_more() -> None:
    rig = Rig(records_per_epoch=5)
    rig.append(3)
    assert rig.append(3)[1:] == [e.Exhausted(e.ExhaustedCause.OFFSETS)]
    assert rig.sequencer.is_exhausted
    assert len(rig.append(1)) == 1
    assert {refusal(rig.answers()[ticket]) for ticket in (2, 3)} == {(Refusal.BUSY, EPOCH)}
    rig.store(1)
    assert isinstance(rig.answers()[1], BlockAppended)
    assert rig.sequencer.is_idle


def test_the_last_offset_can_be_used() -> None:
    rig = Rig(records_per_epoch=5)
    rig.append(5)
    assert not rig.sequencer.is_exhausted


def test_a_block_that_cannot_be_stored_exhausts_the_epoch() -> None:
    rig = Rig(waves_at_once=9, waves_max=2)
    rig.append(token=Token(5, 1))
    rig.answer(1, 1, NOT_CONNECTED)
    assert rig.answer(1, 1, NOT_CONNECTED, wave=2) == [
        e.Answer((1, 1), AppendUnsettled(EPOCH, at(1))),
        e.Exhausted(e.ExhaustedCause.WAVES),
    ]
    rig.append(token=Token(5, 1))
    assert rig.answers()[2] == AppendUnsettled(EPOCH, at(1))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(hole(1), id="not data"),
        pytest.param(blocks.junk(LOG, Lsn(1), 1, EntryKind.BRIDGE), id="a bridge"),
        pytest.param(
            blocks.place(
                blocks.draft([b"x"], timestamps_us=0, compress=False),
                OTHER_LOG,
                Epoch(1),
                Lsn(1),
                NO_TOKEN,
            ),
            id="of another log",
        ),
    ],
)
def test_what_cannot_be_appended(sent: Block) -> None:
    rig = Rig()
    rig.send(sent)
    assert refusal(rig.answers()[1]) == (Refusal.BAD_REQUEST, EPOCH)


@pytest.mark.parametrize("only_in", [6, 8])
def test_an_append_for_another_epoch_is_refused(only_in: int) -> None:
    rig = Rig()
    rig.append(only_in=only_in)
    assert refusal(rig.answers()[1]) == (Refusal.EPOCH, EPOCH)
