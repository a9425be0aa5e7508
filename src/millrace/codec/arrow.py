"""Blocks as Arrow record batches, and batches as blocks, without work per record.

A body's sections are Arrow buffers already.  Reading an uncompressed block therefore makes arrays
that point into the block's own memory, which they keep alive; reading a compressed one points
into the decompressed body.  A block at an unaligned address is copied first, because Arrow
promises its users aligned columns.

Invariants:

  I1  Value, key, timestamp and header columns of an aligned, uncompressed block are not copied.
  I2  Every batch has the types of SCHEMA, whatever columns the block was written with: missing
      keys are null, missing headers are empty maps.
  I3  A batch handed in is validated before its buffers are used, so that no caller can make a
      block whose columns are absurd.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.codec import blocks, drafts
from millrace.codec.columns import ENTRY_TYPE, HEADERS_TYPE, AnyArray, Columns, HeaderRows, Rows
from millrace.errors import UsageError
from millrace.limits import BLOCK_RECORDS_MAX
from millrace.types import Block, Lsn

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final[list[tuple[str, Any]]] = [
    ("lsn", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("timestamp", TIMESTAMP_TYPE),
    ("headers", HEADERS_TYPE),
]
SCHEMA: Final = pa.schema(_FIELDS)

_HEADER_LISTS: Final = pa.list_(pa.field("entries", ENTRY_TYPE, nullable=False))


def record_batch(
    block: Block,
    *,
    columns: Sequence[str] | None = None,
    first: Lsn | None = None,
    end: Lsn | None = None,
) -> pa.RecordBatch:
    """The records of a block whose positions lie in [first, end); a junk block has none."""
    names = SCHEMA.names if columns is None else list(columns)
    if unknown := [name for name in names if name not in SCHEMA.names]:
        raise UsageError(f"no column {', '.join(unknown)}; there are {', '.join(SCHEMA.names)}")
    schema = SCHEMA if columns is None else schema_of(names)
    start, count = blocks.rows_of(block, first, end)
    if count == 0:
        return no_rows(schema)
    source = blocks.columns(block)
    arrays = [_column(block, source, name).slice(start, count) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def schema_of(names: Sequence[str]) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in names])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)


def _column(block: Block, source: Columns, name: str) -> AnyArray:
    count = source.count
    match name:
        case "value":
            return source.values()
        case "lsn":
            return positions(block.first, count)
        case "timestamp":
            return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, source.timestamps()])
        case "key":
            keys = source.keys()
            return _no_keys(count) if keys is None else keys
        case _:
            headers = source.headers()
            return _no_headers(count) if headers is None else headers


def positions(first: Lsn, count: int) -> AnyArray:
    """The column `lsn` of `count` rows from `first` on."""
    numbers: AnyArray = pc.add(_natural_numbers().slice(0, count), pa.scalar(first, pa.int64()))
    return numbers


@cache
def _natural_numbers() -> Any:
    return pa.array(range(BLOCK_RECORDS_MAX), pa.int64())


@cache
def _zeros() -> pa.Buffer:
    """Validity, offsets and bytes of any column that a block was written without."""
    return pa.py_buffer(bytes(4 * (BLOCK_RECORDS_MAX + 1)))


def _no_keys(count: int) -> AnyArray:
    return pa.Array.from_buffers(pa.binary(), count, [_zeros(), _zeros(), _zeros()])


def _no_headers(count: int) -> AnyArray:
    entries = pa.array([], ENTRY_TYPE)
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, _zeros()], children=[entries])


def draft_from_arrow(
    batch: pa.RecordBatch, *, timestamp_us_default: int, compress: bool = True
) -> drafts.Draft:
    """A draft of a batch with a column `value` and optionally `key`, `timestamp` and `headers`.
    A column `lsn` is ignored: the log gives positions.  Any binary or string type will do for
    values and keys; headers are a map or a list of (name, value) structs; rows without a
    timestamp take the default."""
    if unknown := [name for name in batch.schema.names if name not in SCHEMA.names]:
        raise UsageError(f"no column {', '.join(unknown)}; there are {', '.join(SCHEMA.names)}")
    if "value" not in batch.schema.names:
        raise UsageError("the batch has no column value")
    try:
        batch.validate(full=True)
        rows = _rows(batch, timestamp_us_default)
    except (pa.ArrowException, KeyError, OverflowError) as refused:
        raise UsageError(f"the batch cannot be written to a log: {refused}") from refused
    return drafts.draft_rows(rows, compress=compress)


def _rows(batch: pa.RecordBatch, timestamp_us_default: int) -> Rows:
    names = batch.schema.names
    values = batch.column("value").cast(pa.binary())
    if values.null_count:
        raise UsageError("the column value has nulls; a record without a value has the value b''")
    keys = batch.column("key").cast(pa.binary()) if "key" in names else None
    stamps = _timestamps(batch.column("timestamp")) if "timestamp" in names else None
    return Rows(
        batch.num_rows,
        _timestamp_buffer(stamps, batch.num_rows, timestamp_us_default),
        values,
        keys if keys is not None and keys.null_count < len(keys) else None,
        _header_rows(batch.column("headers")) if "headers" in names else None,
    )


def _timestamps(column: Any) -> Any:
    """As int64 microseconds; only nanoseconds lose anything."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    zone = column.type.tz
    micros = column.cast(pa.timestamp("us", tz=zone), safe=column.type.unit != "ns")
    return micros.cast(pa.int64())


def _timestamp_buffer(column: Any, count: int, default_us: int) -> pa.Buffer:
    if column is None:
        return drafts.timestamps(default_us, count)
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(default_us, pa.int64()))
    buffer: pa.Buffer = column.buffers()[1]
    return buffer.slice(column.offset * 8, count * 8)


def _header_rows(column: Any) -> HeaderRows | None:
    """Null headers are no headers.  Flattening drops what lies outside of a slice or in a null
    row, so offsets are counted anew from the rows' lengths."""
    rows = column.cast(_HEADER_LISTS)
    entries = rows.flatten()
    if len(entries) == 0:
        return None
    names, values = entries.field(0), entries.field(1)
    if entries.null_count or names.null_count or values.null_count:
        raise UsageError("a header's name or value is null")
    lengths = pc.fill_null(pc.list_value_length(rows), pa.scalar(0, pa.int32()))
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return HeaderRows(offsets.buffers()[1].slice(0, (len(rows) + 1) * 4), names, values)
