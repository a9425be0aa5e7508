"""Worlds of sequenced logs that are made for one question."""

from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from millrace.core.replication import Replication
from millrace.sim.schedule import SECOND
from millrace.sim.sequenced.shape import SequencedShape, Trouble
from millrace.sim.sequenced.shape import draw as draw_sequenced
from millrace.sim.shape import Shape
from millrace.sim.world import World
from tests.sim.quiet_worlds import quiet_shape, run_world

WORLDS_MAX = 60
REWINDS_PER_DEATH = 6  # To pass a node over, and to ask all for what only they can tell.


def calm_shape(seed: str) -> Shape:
    return quiet_shape(seed, appends_max=100, records_max=3)


def calm_logs(seed: str) -> SequencedShape:
    shape = draw_sequenced(seed)
    settings = msgspec.structs.replace(shape.settings, extras=0, records_per_epoch=1_000_000)
    return msgspec.structs.replace(
        shape,
        nodes=5,
        racks=5,
        replication=Replication.of(3),
        settings=settings,
        logs=1,
        nodeset_size=None,
        is_single_copy=True,
        finds_slow_nodes=False,
        trims=False,
        troubles=(),
    )


@pytest.mark.parametrize("seed", ["1", "2", "3", "4", "5"])
def test_a_node_that_dies_for_good_costs_a_reader_few_rewinds(seed: str) -> None:
    world = World(f"sequenced:{seed}", calm_shape(seed), sequenced_shape=calm_logs(seed))
    world.schedule.after(SECOND, lambda: world.nodes[-1].crash(is_silent=True))
    world.run()
    follower = world.sequenced.readers[0]
    assert not world.nodes[-1].is_up
    assert follower.rewinds <= REWINDS_PER_DEATH * follower.streams_opened
    assert world.counters["sequenced.gap.dataloss"] == 0


@pytest.mark.parametrize("seed", ["1", "2", "3", "4", "5"])
def test_without_faults_a_reader_is_never_rewound(seed: str) -> None:
    world = run_world(seed, calm_shape(seed), calm_logs(seed))
    assert [reader.rewinds for reader in world.sequenced.readers] == [0] * len(
        world.sequenced.readers
    )


def muted_shape(seed: str) -> Shape:
    """Many appends are under way at any time."""
    return quiet_shape(seed, appends_in_flight=4, appends_max=300, think_us=500)


def muted_logs(seed: str) -> SequencedShape:
    """Sequencers stop being heard by some nodes, and die."""
    return msgspec.structs.replace(
        calm_logs(seed),
        replication=Replication.of(2),
        is_single_copy=False,
        writers=3,
        troubles=(Trouble.SEQUENCER_MUTED,),
        trouble_us=SECOND // 3,
    )


def worlds_with_holes() -> Iterator[World]:
    """About one in four has any."""
    for seed in map(str, range(1, WORLDS_MAX)):
        world = run_world(seed, muted_shape(seed), muted_logs(seed))
        if world.counters["junk.hole"]:
            yield world


def test_blocks_that_overtook_lost_ones_leave_holes_that_readers_are_told_of() -> None:
    found = list(islice(worlds_with_holes(), 3))
    assert len(found) == 3
    assert all(world.counters["sequenced.gap.hole"] for world in found)
