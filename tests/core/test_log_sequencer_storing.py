"""How a sequencer has a block stored: copysets, waves, nodes that fail and come back."""

from collections.abc import Collection

import pytest

from millrace.codec import blocks
from millrace.core.messages import (
    BlockAppended,
    Delete,
    Message,
    Refusal,
    Refused,
    Stored,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.copysets import Copyset
from millrace.core.sequenced.sequencer import SequencerState
from millrace.types import Ack, Epoch, Lsn, NodeId
from tests.core.core_samples import LOG
from tests.core.log_sequencer_rig import (
    ABC,
    DEF,
    EPOCH,
    NOT_CONNECTED,
    NOW,
    TIMED_OUT,
    Rig,
    ScriptedCopysets,
    at,
    stores,
)


def test_a_block_is_sent_to_its_copyset_with_its_position_and_what_is_released() -> None:
    rig = Rig(released=Lsn(5))
    asked = stores(rig.append(2, ack=Ack.MEMORY))
    assert [ask.node for ask in asked] == list(ABC)
    assert {ask.tag for ask in asked} == {(at(1), 1)}
    store = asked[0].message
    assert (store.log, store.epoch, store.ack) == (LOG, EPOCH, Ack.MEMORY)
    assert (store.good, store.released) == (at(0), 5)
    assert (store.placement.copyset, store.placement.wave) == (ABC, 1)
    assert (store.block.first, store.block.last, store.block.epoch) == (at(1), at(2), EPOCH)
    blocks.verify(store.block)


def test_a_block_is_alone_if_none_before_it_is_under_way() -> None:
    rig = Rig()
    rig.append()
    rig.append()
    rig.store(1)
    rig.append()
    rig.store(2)
    rig.store(3)
    rig.append()
    assert rig.copysets.lone == [True, False, False, True]


def test_positions_are_contiguous_from_one() -> None:
    rig = Rig()
    firsts = [stores(rig.append(count))[0].message.block.first for count in (3, 1, 2, 1)]
    assert firsts == [at(1), at(4), at(5), at(7)]
    assert rig.sequencer.tail().issued == at(7)


def test_the_client_is_answered_when_all_copies_are_stored() -> None:
    rig = Rig()
    rig.append(2)
    rig.answer(1, 1, Stored())
    rig.answer(3, 1, Stored())
    assert rig.answers() == {}
    rig.answer(2, 1, Stored())
    assert rig.answers() == {1: BlockAppended(at(1), at(2))}
    assert rig.sequencer.is_idle


def test_surplus_copies_are_deleted() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.append()
    rig.answer(4, 1, Stored())
    rig.answer(3, 1, Stored())
    timer = rig.answer(1, 1, Stored())[-2]
    assert isinstance(timer, e.SetTimer)
    assert rig.answer(2, 1, Stored()) == [e.TellNode(NodeId(4), Delete(LOG, EPOCH, ((at(1), 1),)))]
    assert rig.fire(timer) == []


def test_a_node_that_fails_makes_a_wave_on_another_copyset_with_more_time() -> None:
    rig = Rig(ABC, DEF, store_timeout_ms=100)
    (first, *_) = stores(rig.append())
    asked = stores(rig.answer(2, 1, NOT_CONNECTED))
    assert [ask.node for ask in asked] == list(DEF)
    assert {ask.tag for ask in asked} == {(at(1), 2)}
    assert asked[0].message.placement.wave == 2
    assert (first.timeout_ms, asked[0].timeout_ms) == (100, 200)
    assert rig.store(1, DEF, wave=2)[:3] == [
        e.Answer((1, 1), BlockAppended(at(1), at(1))),
        *(e.TellNode(node, Delete(LOG, EPOCH, ((at(1), 2),))) for node in (1, 3)),
    ]


@pytest.mark.parametrize(
    ("answer", "is_avoided"),
    [
        pytest.param(Refused(Refusal.DISK_FULL), True, id="no space"),
        pytest.param(Refused(Refusal.BUSY), True, id="overloaded"),
        pytest.param(Refused(Refusal.UNAVAILABLE), True, id="disabled"),
        pytest.param(Refused(Refusal.EPOCH, Epoch(6)), True, id="behind our epoch"),
        pytest.param(BlockAppended(Lsn(1), Lsn(1)), True, id="talks nonsense"),
        pytest.param(NOT_CONNECTED, True, id="unreachable"),
        pytest.param(Failure(FailureKind.LOST), True, id="connection lost"),
        pytest.param(TIMED_OUT, False, id="silent like all others"),
        pytest.param(Failure(FailureKind.CROWDED), False, id="our own doing"),
    ],
)
def test_who_is_avoided_after_a_store_that_failed(
    answer: Message | Failure, is_avoided: bool
) -> None:
    rig = Rig(ABC, DEF)
    rig.append()
    rig.answer(2, 1, answer)
    assert rig.copysets.avoided[-1] == ({2} if is_avoided else set())
    assert rig.copysets.voids == (0 if is_avoided else 1)
    assert rig.sequencer.state is SequencerState.ACTIVE


def test_a_node_that_is_silent_when_another_has_answered_is_slow() -> None:
    rig = Rig(ABC, DEF)
    rig.append()
    rig.answer(1, 1, Stored())
    rig.answer(2, 1, TIMED_OUT)
    assert rig.copysets.avoided[-1] == {2}


def test_leaders_that_are_waited_for_in_vain_are_slow_and_counted() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.append()
    for node in (1, 2, 4):
        effects = rig.answer(node, 1, Stored())
    (timer,) = [effect for effect in effects if isinstance(effect, e.SetTimer)]
    assert rig.fire(timer) == [e.TellNode(NodeId(3), Delete(LOG, EPOCH, ((at(1), 1),)))]
    assert rig.sequencer.counts.leaders_missed == 1
    assert rig.availability.avoided(NOW) == {3}


def test_when_there_is_no_copyset_without_avoided_nodes_they_are_tried_again() -> None:
    class Choosy(ScriptedCopysets):
        def _give(self, avoided: Collection[NodeId]) -> Copyset | None:
            super()._give(avoided)
            return None if avoided else ABC

    rig = Rig(copysets=Choosy())
    rig.append()
    assert [ask.node for ask in stores(rig.answer(2, 1, NOT_CONNECTED))] == list(ABC)
    assert rig.copysets.avoided[-2:] == [{2}, frozenset()]


def test_blocks_in_a_pause_are_sent_when_a_lost_node_answers_again() -> None:
    rig = Rig(ABC, waves_at_once=1)
    rig.append()
    rig.append()
    (timer,) = rig.answer(2, 1, NOT_CONNECTED)
    assert isinstance(timer, e.SetTimer)
    assert {ask.tag for ask in stores(rig.answer(2, 2, Stored()))} == {(at(1), 2)}
    assert rig.fire(timer) == []
