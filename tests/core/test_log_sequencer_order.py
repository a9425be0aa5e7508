"""Positions in order, and how far readers may see."""

from millrace.core.messages import (
    Release,
    Stored,
)
from millrace.core.sequenced import effects as e
from millrace.lsn import lsn_of
from millrace.types import Epoch, NodeId
from tests.core.core_samples import LOG
from tests.core.log_sequencer_rig import ABC, EPOCH, Rig, at, stores


def test_blocks_are_acknowledged_in_any_order_and_released_in_one() -> None:
    rig = Rig()
    rig.recovered()
    for count in (2, 1, 3):
        rig.append(count)
    rig.store(4)
    rig.store(3)
    assert list(rig.answers()) == [3, 2]
    assert rig.releases() == [(at(0), at(0))]
    rig.store(1)
    assert rig.releases() == [(at(0), at(0)), (at(6), at(6))]
    assert rig.sequencer.is_idle


def test_an_acknowledged_block_holds_up_others_until_its_sync_leader_has_it() -> None:
    rig = Rig((*ABC, NodeId(4)), extras=1)
    rig.recovered()
    rig.append()
    rig.append()
    for node in (2, 3, 4):
        rig.answer(node, 1, Stored())
    rig.store(2)
    assert list(rig.answers()) == [1, 2]
    assert rig.releases() == [(at(0), at(0))]
    rig.answer(1, 1, Stored())
    assert rig.releases()[1:] == [(at(2), at(2))]


def test_nothing_is_released_before_earlier_epochs_are_recovered() -> None:
    rig = Rig(released=lsn_of(Epoch(6), 9))
    rig.append()
    rig.store(1)
    assert rig.releases() == [(at(1), lsn_of(Epoch(6), 9))]
    rig.recovered()
    assert rig.releases()[1:] == [(at(1), at(1))]


def test_a_recovered_log_is_released_up_to_the_beginning_of_the_epoch() -> None:
    rig = Rig()
    assert rig.recovered() == [e.TellRelease(Release(LOG, EPOCH, at(0), at(0)))]


def test_the_next_store_carries_what_is_released() -> None:
    rig = Rig()
    rig.recovered()
    rig.append()
    rig.store(1)
    store = stores(rig.append())[0].message
    assert (store.good, store.released) == (at(1), at(1))
