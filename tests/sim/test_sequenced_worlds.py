"""Worlds of sequenced logs that are made for one question."""

import msgspec
import pytest

from millrace.core.replication import Replication
from millrace.sim.run import run_seed
from millrace.sim.schedule import SECOND
from millrace.sim.sequenced.shape import SequencedShape
from millrace.sim.sequenced.shape import draw as draw_sequenced
from millrace.sim.shape import Shape, draw
from millrace.sim.world import World

REWINDS_PER_DEATH = 6  # To pass a node over, and to ask all for what only they can tell.


def calm_shape(seed: str) -> Shape:
    return msgspec.structs.replace(
        draw(seed), nodes=5, families=(), chaos_us=3 * SECOND, appends_max=100, records_max=3
    )


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
    world = World(f"sequenced:{seed}", calm_shape(seed), sequenced_shape=calm_logs(seed))
    world.run()
    assert [reader.rewinds for reader in world.sequenced.readers] == [0] * len(
        world.sequenced.readers
    )


HOLES_SEEDS = ("sequenced:255", "sequenced:272", "sequenced:388")  # One in a hundred has any.


def test_blocks_that_overtook_lost_ones_leave_holes_that_readers_are_told_of() -> None:
    results = [run_seed(seed) for seed in HOLES_SEEDS]
    assert all(result.ok for result in results), [result.violation for result in results]
    holes = [result for result in results if "junk.hole" in result.counters]
    assert holes and all("sequenced.gap.hole" in result.counters for result in holes)
