"""Worlds in which disks are replaced all the time, and sequencers stop being heard."""

import msgspec
import pytest

from millrace.core.replication import Replication
from millrace.core.sequenced.settings import RECORDS_PER_EPOCH_MAX
from millrace.sim.schedule import SECOND
from millrace.sim.sequenced.shape import SequencedShape, Trouble
from millrace.sim.sequenced.shape import draw as draw_sequenced
from millrace.sim.shape import Shape
from millrace.types import AuthoritativeStatus
from tests.sim.quiet_worlds import quiet_shape, run_world

NODES = 4
# What showed when a seed failed: two donors each of which had given what the other waited for (24,
# 234), and a log whose sequencer died and which nobody was asked to take over (259).
FAILED_ONCE = ("24", "234", "259")


def busy_shape(seed: str) -> Shape:
    return quiet_shape(seed, NODES, think_us=SECOND // 500, appends_max=300, append_ms=3_000)


def replaced_logs(seed: str) -> SequencedShape:
    shape = draw_sequenced(seed)
    settings = msgspec.structs.replace(
        shape.settings,
        sync_leaders=min(1, shape.settings.sync_leaders),
        leaders=None,
        extras=0,
        records_per_epoch=RECORDS_PER_EPOCH_MAX,
    )
    return msgspec.structs.replace(
        shape,
        nodes=NODES,
        spares=0,
        racks=NODES,
        replication=Replication.of(3),
        nodeset_size=NODES,
        has_second_chance=False,
        statuses_ms=500,
        settings=settings,
        napping_share=0.0,
        trims=False,
        troubles=(*(Trouble.DISK_REPLACED,) * 3, Trouble.SEQUENCER_MUTED),
        trouble_us=SECOND // 10,
    )


@pytest.mark.parametrize("seed", [*FAILED_ONCE, "1", "2", "3", "4"])
def test_every_node_gets_its_copies_back(seed: str) -> None:
    world = run_world(seed, busy_shape(seed), replaced_logs(seed))
    entries = world.sequenced.status_entries()
    incomplete = AuthoritativeStatus.UNDERREPLICATION
    lost = {node for node, entry in entries.items() if entry.status is incomplete}
    assert not {node for node in lost if world.node(node).is_up}
