"""Small limits of the cores of commit logs, as `sim/knobs.py` has them for the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from millrace.core.commit import append, arithmetic, committed, pending, syncing
from millrace.limits import APPEND_ATTEMPTS_MAX, READ_BATCH_BYTES, SHIP_ENTRIES_MAX
from millrace.server import shell, stream_answers
from millrace.sim import store
from millrace.sim.knobs import turned_to


@contextmanager
def turned(seed: str) -> Iterator[None]:
    rng = Random(f"{seed}/commit-knobs")
    ships = rng.choice((1, 3, SHIP_ENTRIES_MAX))
    sync_bytes = rng.choice((1, 300, READ_BATCH_BYTES))
    page_extents = rng.choice((1, 3, 1_000))
    history = rng.choice((1, 3, arithmetic.HISTORY_MAX))
    knobs: tuple[tuple[Any, str, Any], ...] = (
        (shell, "SHIP_ENTRIES_MAX", ships),
        (store, "SHIP_ENTRIES_MAX", ships),
        (syncing, "READ_BATCH_BYTES", sync_bytes),
        (stream_answers, "INDEX_PAGE_EXTENTS", page_extents),
        # A search goes on for as long as simulated logs are, however short a page is.
        (stream_answers, "TOKEN_PAGES_MAX", 10_000),
        (arithmetic, "HISTORY_MAX", history),
        (committed, "UNSAFE_MAX", (history + 1) // 2),  # Never more than the history holds.
        (pending, "TOKENS_REMEMBERED", rng.choice((4, 64, pending.TOKENS_REMEMBERED))),
        (append, "ATTEMPTS_MAX", rng.choice((3, 6, APPEND_ATTEMPTS_MAX))),
    )
    with turned_to(knobs):
        yield
