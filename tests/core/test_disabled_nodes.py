"""Nodes that are disabled by their statuses get no new copies, as long as others can have them."""

from random import Random

from millrace.codec import blocks
from millrace.core.messages import AppendBlock
from millrace.core.replication import Replication
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.copysets import (
    Availability,
    AvoidCause,
    CopysetChooser,
    StickyCopysets,
)
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.sequencer import LogSequencer
from millrace.types import Epoch, NodeId
from tests.core.core_samples import LOG, block

NODES = tuple(map(NodeId, range(1, 6)))
NOW = 1_000


def asked(availability: Availability) -> set[NodeId]:
    """Who gets the first block, at once or after a pause."""
    three = Replication.of(3)
    chooser = CopysetChooser(three, NODES, {}, Random(7).randrange)
    start = EpochStart(LOG, Epoch(1), three)
    sequencer = LogSequencer(start, StickyCopysets(chooser), availability, blocks.move)
    effects = sequencer.append((1, 1), AppendBlock(LOG, Epoch(0), block(1, 1)), NOW)
    for timer in [each for each in effects if isinstance(each, e.SetTimer)]:
        effects = sequencer.timer_fired(timer.tag, NOW)
    return {each.node for each in effects if isinstance(each, e.AskStore)}


def test_they_are_avoided_for_as_long_as_their_statuses_say() -> None:
    availability = Availability(NODES, 3)
    availability.disable(frozenset({NodeId(4), NodeId(99)}))
    assert availability.avoided(NOW) == {4}
    assert availability.avoided(NOW + 1_000_000) == {4}
    availability.disable(frozenset())
    assert availability.avoided(NOW) == set()


def test_nodes_that_were_silent_are_tried_before_nodes_that_are_disabled() -> None:
    availability = Availability(NODES, 3)
    availability.disable(frozenset({NodeId(4), NodeId(5)}))
    availability.avoid(NodeId(2), AvoidCause.UNREACHABLE, NOW)
    assert asked(availability) == {1, 2, 3}


def test_disabled_nodes_decide_for_themselves_when_there_are_no_others() -> None:
    availability = Availability(NODES, 3)
    availability.disable(frozenset({NodeId(3), NodeId(4), NodeId(5)}))
    assert len(asked(availability)) == 3
