"""What worlds that are made for one question have in common."""

from typing import Any

import msgspec

from millrace.sim.schedule import SECOND
from millrace.sim.sequenced.shape import SequencedShape
from millrace.sim.shape import Shape, draw
from millrace.sim.world import World


def quiet_shape(seed: str, nodes: int = 5, **changes: Any) -> Shape:
    """No fault but those that the logs themselves are to suffer."""
    shape = msgspec.structs.replace(draw(seed), nodes=nodes, families=(), chaos_us=3 * SECOND)
    return msgspec.structs.replace(shape, **changes)


def run_world(seed: str, shape: Shape, logs: SequencedShape) -> World:
    world = World(f"sequenced:{seed}", shape, sequenced_shape=logs)
    world.run()
    return world
