"""What a sequencer tells about itself, and to whom."""

from millrace.core.messages import (
    Store,
    Stored,
    Tail,
)
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.copysets import AvoidCause
from millrace.lsn import lsn_of
from millrace.types import Epoch, Lsn, NodeId, Token
from tests.core.log_sequencer_rig import ABC, DEF, EPOCH, NOT_CONNECTED, NOW, Rig, at, stores


def test_the_tail() -> None:
    tail = lsn_of(Epoch(6), 9)
    rig = Rig(released=Lsn(3), tail=Lsn(4))
    assert rig.sequencer.tail() == Tail(EPOCH, Lsn(3), at(0), Lsn(4))
    rig.recovered(tail)
    assert rig.sequencer.tail() == Tail(EPOCH, at(0), at(0), tail)
    rig.append(2)
    rig.append()
    rig.store(3)
    assert rig.sequencer.tail() == Tail(EPOCH, at(0), at(3), at(3))
    rig.store(1)
    assert rig.sequencer.tail() == Tail(EPOCH, at(3), at(3), at(3))


def test_it_can_say_what_it_waits_for() -> None:
    rig = Rig()
    rig.append()
    rig.append()
    rig.store(2)
    rig.answer(1, 1, Stored())
    rig.availability.avoid(NodeId(6), AvoidCause.NO_SPACE, NOW)
    told = rig.sequencer.explain(NOW)
    assert (told["state"], told["issued"], told["good"]) == ("active", "e7n2", "e7n0")
    assert (told["blocks_in_flight"], told["avoided"]) == (2, [6])
    assert told["waits"] == [
        {"first": "e7n1", "stage": "replication", "wave": 1, "waits_for": [2, 3]},
        {"first": "e7n2", "stage": "complete", "wave": 1, "waits_for": []},
    ]


def test_it_counts() -> None:
    rig = Rig(ABC, DEF)
    rig.append(3, token=Token(5, 1))
    rig.answer(1, 1, NOT_CONNECTED)
    store = stores(rig.effects)[0].message
    assert isinstance(store, Store)
    rig.store(1, DEF, wave=2)
    rig.append(token=Token(5, 1))
    counts = rig.sequencer.counts
    assert (counts.blocks, counts.records, counts.bytes) == (1, 3, store.block.size)
    assert (counts.waves, counts.repeats, counts.leaders_missed) == (2, 1, 0)


def test_nodes_that_serve_readers_are_named_with_each_release_until_they_say_otherwise() -> None:
    rig = Rig()
    rig.recovered()
    awaiting = []
    for offset, has_readers in ((1, False), (2, True), (3, True), (4, False)):
        rig.append()
        for node in ABC:
            effects = rig.answer(node, offset, Stored(has_readers and node == ABC[1]))
        awaiting += [each.awaiting for each in effects if isinstance(each, e.TellRelease)]
    assert awaiting == [frozenset(), {ABC[1]}, {ABC[1]}, frozenset()]
