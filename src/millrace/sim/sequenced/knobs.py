"""Small limits of the cores of sequenced logs, as `sim/knobs.py` has them for the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from millrace.core import attempts
from millrace.core.reading import slow_nodes
from millrace.core.sequenced import copysets, rewrite
from millrace.limits import APPEND_ATTEMPTS_MAX, SHIP_ENTRIES_MAX
from millrace.server import answers, shell
from millrace.sim import store
from millrace.sim.knobs import turned_to


@contextmanager
def turned(seed: str) -> Iterator[None]:
    rng = Random(f"{seed}/sequenced-knobs")
    entries = rng.choice((1, 3, SHIP_ENTRIES_MAX))
    knobs: tuple[tuple[Any, str, Any], ...] = (
        (rewrite, "BATCH_BLOCKS", rng.choice((1, 3, rewrite.BATCH_BLOCKS))),
        (shell, "SHIP_ENTRIES_MAX", entries),
        (store, "SHIP_ENTRIES_MAX", entries),
        # A search goes on for as long as simulated logs are, however short a page is.
        (answers, "TOKEN_PAGES_MAX", 10_000),
        # Simulated blocks are far smaller than what is worth measuring.
        (slow_nodes, "UNIT_BYTES", 64),
        (attempts, "APPEND_ATTEMPTS_MAX", rng.choice((3, 6, APPEND_ATTEMPTS_MAX))),
        # 101: no copy is near.  Near ones leave hardly any hole behind a sequencer that dies.
        (copysets, "LONE_PERCENT_MIN", rng.choice((copysets.LONE_PERCENT_MIN, 101))),
    )
    with turned_to(knobs):
        yield
