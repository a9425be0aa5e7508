"""Selections and what they must give, worked out record by record; and cuts of any block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from millrace.codec import blocks, cuts
from millrace.types import Block, Record, Selection


@contextmanager
def always_cutting() -> Iterator[None]:
    """Cut however small the block is and however little it saves."""
    before = cuts.CUT_BYTES_MIN, cuts.KEPT_EIGHTHS_MAX
    cuts.CUT_BYTES_MIN, cuts.KEPT_EIGHTHS_MAX = 0, 10**9  # type: ignore[misc]
    try:
        yield
    finally:
        cuts.CUT_BYTES_MIN, cuts.KEPT_EIGHTHS_MAX = before  # type: ignore[misc]


def cut_of(block: Block, selection: Selection) -> Block:
    with always_cutting():
        return cuts.cut(block, selection)


def matches(record: Record, selection: Selection) -> bool:
    first_us, end_us, keys = selection.time_first_us, selection.time_end_us, selection.keys
    return (
        (first_us is None or record.timestamp >= first_us)
        and (end_us is None or record.timestamp < end_us)
        and (keys is None or record.key in keys)
    )


def expected(block: Block, selection: Selection) -> list[Record]:
    return [record for record in blocks.records(block) if matches(record, selection)]


def rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """As tuples in the order of the batch's columns; timestamps as numbers."""
    columns = [
        batch.column(name).cast(pa.int64()) if name == "timestamp" else batch.column(name)
        for name in batch.schema.names
    ]
    return [
        tuple(tuple(value) if isinstance(value, list) else value for value in row)
        for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def expected_rows(block: Block, selection: Selection) -> list[tuple[Any, ...]]:
    names = ("lsn", *selection.columns)
    return [tuple(getattr(one, name) for name in names) for one in expected(block, selection)]
