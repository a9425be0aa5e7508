"""Small limits of the cores of documents, as `sim/knobs.py` has them for logs."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from millrace.core.documents import (
    change_stream,
    consumer,
    moving,
    replica,
    settling,
    snapshot_walk,
    stream_cycle,
    undoing,
)
from millrace.server.partitions import flusher, following, sessions, upkeep, warming
from millrace.sim.knobs import turned_to

_KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (change_stream, "VIEW_MS_MAX", (1, 10, change_stream.VIEW_MS_MAX)),
    (change_stream, "VIEW_BYTES_MAX", (0, 500, change_stream.VIEW_BYTES_MAX)),
    (stream_cycle, "CHANGES_BYTES_MAX", (1, 300, stream_cycle.CHANGES_BYTES_MAX)),
    (sessions, "TURN_BYTES", (1, 300, sessions.TURN_BYTES)),
    (snapshot_walk, "SCAN_DOCUMENTS_MAX", (1, 3, snapshot_walk.SCAN_DOCUMENTS_MAX)),
    (undoing, "KEYS_AT_ONCE_FIRST", (1, 2, undoing.KEYS_AT_ONCE_FIRST)),
    (undoing, "UNDO_BYTES_MAX", (200, undoing.UNDO_BYTES_MAX, undoing.UNDO_BYTES_MAX)),
    (replica, "UNDO_KEYS_MAX", (2, undoing.UNDO_KEYS_MAX, undoing.UNDO_KEYS_MAX)),
    (replica, "READ_BYTES_MAX", (1, 300, replica.READ_BYTES_MAX)),
    (moving, "NEAR_CHANGES", (0, 3, moving.NEAR_CHANGES)),
    (warming, "LOAD_DOCUMENTS", (1, 3, warming.LOAD_DOCUMENTS)),
    (upkeep, "PURGE_TOMBSTONES_MAX", (1, upkeep.PURGE_TOMBSTONES_MAX)),
)
# A run is short: what is worth a long rest in a cluster is worth a short one here.
_TIMES: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (consumer, "RETRY_MS_MAX", (200, 1_000)),
    (consumer, "ANSWER_MS_MAX", (500, 3_000)),
    (settling, "DESCRIBE_TIMEOUT_MS", (100, 300)),
    (settling, "ORDER_TIMEOUT_MS", (200, 1_000)),
    (flusher, "RETRY_MS", (20, 200)),
    (following, "DIAL_MS_MAX", (100, 500)),
    (following, "SILENT_MS", (2_500, 4_000)),
)


@contextmanager
def turned(seed: str) -> Iterator[None]:
    rng = Random(f"{seed}/documents-knobs")
    share = rng.choice((0.0, 0.5, 1.0))
    knobs: list[tuple[Any, str, Any]] = [
        (module, name, rng.choice(values))
        for module, name, values in _KNOBS
        if rng.random() < share
    ]
    knobs += [(module, name, rng.choice(values)) for module, name, values in _TIMES]
    # Half of the runs stream so slowly that snapshots are long, and break off in the middle.
    is_slow = rng.random() < 0.5
    buffer_bytes = 1 if is_slow else rng.choice((500, following.BUFFER_BYTES))
    knobs += [
        (following, "BUFFER_BYTES", buffer_bytes),
        (following, "ACK_BYTES", max(1, buffer_bytes // 4)),
    ]
    if is_slow:
        knobs.append((stream_cycle, "CHANGES_BYTES_MAX", 1))
    with turned_to(knobs):
        yield
