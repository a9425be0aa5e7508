"""Readers that fall behind while nodes are drained: the copies have moved on before they come."""

from collections import Counter

import msgspec
import pytest

from millrace.core.reading.read_set import ReadSet
from millrace.core.replication import Replication
from millrace.sim.schedule import SECOND
from millrace.sim.sequenced.shape import SequencedShape, Trouble
from millrace.sim.sequenced.shape import draw as draw_sequenced
from millrace.sim.shape import Shape
from millrace.sim.violation import Violation
from tests.sim.quiet_worlds import quiet_shape, run_world

NODES, SPARES = 5, 3
WORLDS = 20
WORLDS_MAX = 100  # One in five shows the planted bug.


def slow_shape(seed: str) -> Shape:
    """Appends go on for as long as nodes come and go."""
    return quiet_shape(
        seed,
        NODES,
        chaos_us=6 * SECOND,
        think_us=SECOND // 100,
        appends_max=100,
        append_ms=3_000,
    )


def moving_logs(seed: str) -> SequencedShape:
    """There is one copy of each block: whoever looks where it was finds none."""
    shape = draw_sequenced(seed)
    settings = msgspec.structs.replace(
        shape.settings, sync_leaders=1, leaders=None, extras=0, records_per_epoch=12
    )
    return msgspec.structs.replace(
        shape,
        nodes=NODES,
        spares=SPARES,
        racks=NODES,
        replication=Replication.of(1),
        nodeset_size=None,
        settings=settings,
        logs=1,
        writers=2,
        readers=3,
        napping_share=1.0,
        window_lsns=1 << 20,
        trims=False,
        troubles=(Trouble.NODE_ADDED, Trouble.NODE_DRAINED),
        trouble_us=SECOND // 3,
    )


def run_worlds(seeds: range) -> Counter[str]:
    counters: Counter[str] = Counter()
    for seed in map(str, seeds):
        counters.update(run_world(seed, slow_shape(seed), moving_logs(seed)).counters)
    return counters


def test_they_are_told_of_no_loss() -> None:
    counters = run_worlds(range(WORLDS))
    for happened in ("reader.napped", "status.authoritative_empty", "rewind.emptied"):
        assert counters[happened] > WORLDS


def test_one_that_goes_by_the_nodesets_of_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadSet, "needs", lambda self, nodes: False)
    monkeypatch.setattr(ReadSet, "is_outdated", lambda self, ranges, statuses: False)
    with pytest.raises(Violation, match="G3"):
        run_worlds(range(WORLDS_MAX))
