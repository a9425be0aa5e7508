"""Small limits: a seed draws them, so that pages, batches and windows end where it hurts.

The cores read their limits as constants of their modules.  A run puts small values in their place
and takes them back when it ends; half of the runs leave all as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any

from millrace.codec import cuts
from millrace.core import append, keeper, learn, reconcile, send_streams, sequencer
from millrace.limits import SELECT_BATCH_BYTES
from millrace.server import answers

_KNOBS: tuple[tuple[ModuleType, str, tuple[int, ...]], ...] = (
    (answers, "INDEX_PAGE_EXTENTS", (1, 2, 7)),
    (answers, "READ_BATCH_BYTES", (1, 300, 2_000)),
    (send_streams, "READ_BATCH_BYTES", (1, 300, 2_000)),
    (learn, "FETCH_BYTES_MAX", (1, 300, 2_000)),
    (keeper, "CLOSE_ENOUGH", (0, 1, 16)),
    (reconcile, "PARALLEL_BLOCKS", (1, 2)),
    (sequencer, "RECENT_RANGES_MAX", (1, 4)),
    (append, "APPEND_ATTEMPTS_MAX", (2, 4)),
)
# Simulated blocks are far too small to be worth cutting: most runs cut them all the same.
_CUTTING: tuple[tuple[ModuleType, str, tuple[int, ...]], ...] = (
    (cuts, "CUT_BYTES_MIN", (0, 0, 0, 300, cuts.CUT_BYTES_MIN)),
    (cuts, "KEPT_EIGHTHS_MAX", (100, 100, cuts.KEPT_EIGHTHS_MAX)),
    (send_streams, "SELECT_BATCH_BYTES", (1, 300, 2_000, SELECT_BATCH_BYTES)),
)


@contextmanager
def turned_to(knobs: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Whose, which name, by what."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in knobs]
    try:
        for owner, name, value in knobs:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def turned(seed: int | str) -> Iterator[None]:
    rng = Random(f"{seed}/knobs")
    is_turning = rng.random() < 0.5
    knobs: list[tuple[ModuleType, str, int]] = [
        (module, name, rng.choice(values))
        for module, name, values in _KNOBS
        if is_turning and rng.random() < 0.5
    ]
    cutting = Random(f"{seed}/cutting")
    knobs += [(module, name, cutting.choice(values)) for module, name, values in _CUTTING]
    with turned_to(knobs):
        yield
