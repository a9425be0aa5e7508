"""Readers that select: what they ask for, and what they must then be given.

The rows are worked out here from what was appended, record by record, so that neither the node's
cutting nor the client's filtering is believed.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from millrace.sim.violation import Violation
from millrace.types import RECORD_COLUMNS, Block, Lsn, Selection

KEYS: tuple[bytes | None, ...] = (b"a", b"b", b"long" * 5, None)
TIME_ZERO_US = 10**15  # When a simulation begins, as its records say.
_SHARE = 0.2  # Of readers that select.


class Columns:
    """What an append wrote, by column."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(
        self, values: Sequence[bytes], keys: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> None:
        self.values = tuple(values)
        self.keys = tuple(keys)
        self.timestamps = tuple(timestamps)
        self.headers = ((),) * len(self.values)


def draw_selection(rng: Random) -> Selection | None:
    if rng.random() >= _SHARE:
        return None
    columns = tuple(name for name in RECORD_COLUMNS if rng.random() < 0.5)
    first_us = end_us = keys = None
    if rng.random() < 0.3:
        first_us = TIME_ZERO_US + int(rng.random() * 2_000_000)
    if rng.random() < 0.3:
        end_us = TIME_ZERO_US + 500_000 + int(rng.random() * 4_000_000)
    if rng.random() < 0.5:
        present = [key for key in KEYS if key is not None]
        keys = tuple(rng.sample(present, rng.choice((1, 1, 2))))
    return Selection(columns, first_us, end_us, keys)


def expected_rows(
    written: Columns, placed_at: Lsn, selection: Selection, first: Lsn, end: Lsn
) -> list[tuple[Any, ...]]:
    """Of records that lie at `placed_at` and behind it: those in [first, end) that match."""
    columns = {
        "key": written.keys,
        "value": written.values,
        "timestamp": written.timestamps,
        "headers": written.headers,
    }
    return [
        (lsn, *(columns[name][at] for name in selection.columns))
        for at, lsn in enumerate(range(placed_at, placed_at + len(written.values)))
        if first <= lsn < end and _matches(selection, written.keys[at], written.timestamps[at])
    ]


def check_rows(
    reader: str,
    written: Columns,
    block: Block,
    selection: Selection,
    part: tuple[Lsn, Lsn],
    batch: pa.RecordBatch,
) -> None:
    """What a reader made of a part of a block that was delivered to it."""
    wanted = expected_rows(written, block.first, selection, *part)
    given = rows_of(batch)
    if given != wanted:
        how = "cut" if block.is_cut else "whole"
        raise Violation(
            "G4", f"{reader} selects {selection}; of {block!r}, {how}: {given}, not {wanted}"
        )


def _matches(selection: Selection, key: bytes | None, time_us: int) -> bool:
    first_us, end_us = selection.time_first_us, selection.time_end_us
    return (
        (selection.keys is None or key in selection.keys)
        and (first_us is None or time_us >= first_us)
        and (end_us is None or time_us < end_us)
    )


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """A batch as `expected_rows` gives it."""
    columns = []
    for name in batch.schema.names:
        column: Any = batch.column(name)
        if name == "timestamp":
            column = column.cast(pa.int64())
        values = column.to_pylist()
        columns.append([tuple(one) for one in values] if name == "headers" else values)
    return list(zip(*columns, strict=True))
