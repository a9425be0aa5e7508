"""Cut blocks: what a reader selected of a block, as the node sends it and the reader reads it.

A cut block is the block's header, with the flag CUT and checksums of its own, and as body one
Arrow message: a record batch of `lsn` and the columns asked for, of only the rows that match.
Its schema follows from the selection, which both sides know.  The body is empty when no row
matches, and when neither a column nor a filter was asked for: then the header says it all.

Invariants:

  I1  A selection gives the same rows of a block whether it arrives whole or cut.
  I2  A cut is made only where it saves an eighth of the block; junk is never cut.
  I3  Columns alone, without a filter, are copied once: from the block into its cut.
  I4  Whatever the body of a cut block is, reading it gives rows that lie in the block, in order,
      or CorruptBlock.
  I5  A cut lies where its block does, and so do its rows, even if the header says otherwise: that
      of a block of a commit log says its place in its stream.
  I6  A block that publishes is sent whole, for its rows lie elsewhere and will be cut there, unless
      its header says that no row of them matches.
"""

from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.codec.arrow import (
    SCHEMA,
    TIMESTAMP_TYPE,
    no_rows,
    positions,
    record_batch,
    schema_of,
)
from millrace.codec.blocks import block_of, body_of, records, records_of, seen_at
from millrace.codec.header import HEADER_BYTES, Flags, Header, checksum_of, parse_header, stamp
from millrace.errors import CorruptBlock, UsageError
from millrace.limits import KIB
from millrace.types import RECORD_COLUMNS, Block, EntryKind, Lsn, Record, Selection

# A smaller block goes as it lies, unless its header alone decides: Arrow's cost for each batch
# is more than what sending it takes.
CUT_BYTES_MIN: Final = 4 * KIB
KEPT_EIGHTHS_MAX: Final = 7  # Keeps I2.
_STREAM_END_BYTES: Final = 8
_INT32: Final = Struct("<i")
_UINT16: Final = Struct("<H")
_NEVER_NULL: Final = ("lsn", "value", "timestamp")


# -- At the node --------------------------------------------------------------------------------


def cut(block: Block, selection: Selection) -> Block:
    """What is sent of a whole block to a reader that selects: its cut, or the block itself."""
    if block.kind is not EntryKind.DATA:
        return block
    header = parse_header(block.data)
    if _matches_none(header, selection):
        return _bare(block, header)
    if block.is_published:
        return block  # Keeps I6: also where positions alone are asked for, since it may be void.
    if not (selection.columns or selection.has_filter):
        return _bare(block, header)
    has_filter = selection.has_filter and not _holds_all(header, selection)
    has_all_columns = len(selection.columns) == len(RECORD_COLUMNS)
    if block.size < CUT_BYTES_MIN or (has_all_columns and not has_filter):
        return block
    try:
        batch = _matching(block, selection, selection.columns)
    except CorruptBlock:
        return block  # Its writer made it so; the reader will find it, as any reader does.
    return _packed(block, header, batch) if batch.num_rows else _bare(block, header)


def _matches_none(header: Header, selection: Selection) -> bool:
    """Whether the header says that no row matches."""
    first_us, end_us, keys = selection.time_first_us, selection.time_end_us, selection.keys
    return (
        (first_us is not None and header.timestamp_max_us < first_us)
        or (end_us is not None and header.timestamp_min_us >= end_us)
        or (keys is not None and not (keys and header.flags & Flags.HAS_KEYS))
    )


def _holds_all(header: Header, selection: Selection) -> bool:
    """Whether the header says that every row matches."""
    first_us, end_us = selection.time_first_us, selection.time_end_us
    return (
        selection.keys is None
        and (first_us is None or header.timestamp_min_us >= first_us)
        and (end_us is None or header.timestamp_max_us < end_us)
    )


def _bare(block: Block, header: Header) -> Block:
    memory = bytearray(HEADER_BYTES)
    header = msgspec.structs.replace(
        header, flags=Flags.CUT, body_size=0, raw_size=0, body_checksum=0
    )
    return _piece(block, header, memory)


def _packed(block: Block, header: Header, batch: pa.RecordBatch) -> Block:
    """The batch behind a header, in memory of its own; the block itself if that saves too little.
    Keeps I3: Arrow writes a stream, schema first, straight to where it is to lie, and the header
    takes the place of the end of the schema, which is not sent."""
    size = pa.ipc.get_record_batch_size(batch)
    if (HEADER_BYTES + size) * 8 > block.size * KEPT_EIGHTHS_MAX:
        return block
    front = batch.schema.serialize().size
    assert front >= HEADER_BYTES, "a schema is longer than a header"
    memory = pa.allocate_buffer(front + size + _STREAM_END_BYTES)
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(memory), batch.schema) as stream:
        stream.write_batch(batch)
    data = memoryview(memory).cast("B")[front - HEADER_BYTES : front + size]
    header = msgspec.structs.replace(
        header,
        flags=Flags.CUT,
        body_size=size,
        raw_size=size,
        body_checksum=checksum_of(data[HEADER_BYTES:]),
    )
    return _piece(block, header, data)


def _piece(block: Block, header: Header, data: bytearray | memoryview) -> Block:
    """Keeps I5."""
    piece = block_of(header, stamp(header, data), data)
    return seen_at(piece, block.log, block.first)


# -- At the reader ------------------------------------------------------------------------------


def selected_batch(
    block: Block,
    selection: Selection | None,
    *,
    columns: Sequence[str] | None = None,
    first: Lsn | None = None,
    end: Lsn | None = None,
) -> pa.RecordBatch:
    """The selected rows of a block, whole or cut, whose positions lie in [first, end).  Without
    `columns` there are `lsn` and those of the selection."""
    if selection is None:
        return record_batch(block, columns=columns, first=first, end=end)
    names = ("lsn", *selection.columns) if columns is None else tuple(columns)
    check_columns(names, selection)
    if not block.is_cut and not selection.has_filter:
        return record_batch(block, columns=names, first=first, end=end)
    if block.is_cut:
        batch = _uncut(block, selection)
    else:
        batch = _matching(block, selection, [name for name in names if name != "lsn"])
    return _between(batch, first, end).select(list(names))


def selected_records(
    block: Block, selection: Selection | None, first: Lsn | None = None, end: Lsn | None = None
) -> list[Record]:
    """As records, which need all columns: UsageError if the selection leaves one out."""
    if selection is None:
        return records(block, first, end)
    check_columns(SCHEMA.names, selection)
    if not block.is_cut and not selection.has_filter:
        return records(block, first, end)
    batch = selected_batch(block, selection, columns=SCHEMA.names, first=first, end=end)
    lsns, keys, values, stamps, headers = batch.columns
    return records_of(
        cast("list[Lsn]", _numbers(lsns).tolist()), values, keys, _numbers(stamps).tolist(), headers
    )


def check_columns(names: Sequence[str], selection: Selection) -> None:
    """Raise UsageError if the selection does not give all these columns."""
    if missing := [name for name in names if name not in ("lsn", *selection.columns)]:
        chosen = ", ".join(("lsn", *selection.columns))
        raise UsageError(f"no column {', '.join(missing)}: the selection gives {chosen} alone")


def _uncut(block: Block, selection: Selection) -> pa.RecordBatch:
    """The rows of a cut block.  Keeps I4."""
    schema = schema_of(("lsn", *selection.columns))
    header = parse_header(block.data)
    if header.body_size:
        batch = _read(block, body_of(block, header), schema)
    elif selection.columns or selection.has_filter:
        batch = no_rows(schema)
    else:
        batch = pa.RecordBatch.from_arrays([positions(block.first, block.count)], schema=schema)
    if not selection.has_filter and batch.num_rows != block.count:
        raise CorruptBlock(f"{block!r}, cut without a filter, has {batch.num_rows} rows")
    return batch


def _read(block: Block, body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    try:
        message = pa.ipc.read_message(body)
        if message.type != "record batch" or _is_compressed(message.metadata):
            raise CorruptBlock(f"{block!r}: its cut body is not a plain record batch")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as invalid:
        raise CorruptBlock(f"{block!r}: its cut body cannot be read: {invalid}") from invalid
    if nulls := [name for name in schema.names if name in _NEVER_NULL and batch[name].null_count]:
        raise CorruptBlock(f"{block!r}: its cut body has nulls in {', '.join(nulls)}")
    batch = _at_place(batch, block.shift)
    if batch.num_rows and not _lie_in(block, batch.column("lsn")):
        raise CorruptBlock(f"{block!r}: its cut body has positions outside of it or out of order")
    return batch


def _at_place(batch: pa.RecordBatch, shift: int) -> pa.RecordBatch:
    """The rows at the positions that their block is seen at."""
    if not shift:
        return batch
    lsns: Any = pc.add(batch.column("lsn"), pa.scalar(shift, pa.int64()))
    return pa.RecordBatch.from_arrays([lsns, *batch.columns[1:]], schema=batch.schema)


def _lie_in(block: Block, lsns: Any) -> bool:
    numbers = _numbers(lsns)
    is_rising = pc.all(pc.less(lsns.slice(0, len(lsns) - 1), lsns.slice(1))).as_py()
    return is_rising is not False and numbers[0] >= block.first and numbers[-1] < block.end


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether an Arrow message says that its buffers are compressed.  We never send such, and
    unpacking would take as much memory as the sender likes.  Arrow has verified the metadata, a
    flatbuffer: a table refers to its vtable, which says where each field of the table is."""
    data = memoryview(metadata)

    def field(table: int, number: int) -> int:
        """Where a field lies; 0 if it is not there."""
        vtable = table - _INT32.unpack_from(data, table)[0]
        at = 4 + 2 * number
        if at >= _UINT16.unpack_from(data, vtable)[0]:
            return 0
        offset: int = _UINT16.unpack_from(data, vtable + at)[0]
        return table + offset if offset else 0

    message = _INT32.unpack_from(data, 0)[0]
    reference = field(message, 2)
    batch = reference + _INT32.unpack_from(data, reference)[0]
    return field(batch, 3) != 0


# -- Both ---------------------------------------------------------------------------------------


def _matching(block: Block, selection: Selection, columns: Sequence[str]) -> pa.RecordBatch:
    """`lsn` and `columns` of the rows of a whole block that match."""
    names = ["lsn", *columns]
    asked = [*names]
    if selection.has_times and "timestamp" not in asked:
        asked.append("timestamp")
    if selection.keys is not None and "key" not in asked:
        asked.append("key")
    source = record_batch(block, columns=asked)
    batch = source.select(names)
    if not selection.has_filter:
        return batch
    matches = _matches(source, selection)
    return batch if matches.true_count == len(matches) else batch.filter(matches)


def _matches(source: pa.RecordBatch, selection: Selection) -> Any:
    """One truth value for each row; null counts as false."""
    conditions = []
    if selection.time_first_us is not None:
        first = pa.scalar(selection.time_first_us, TIMESTAMP_TYPE)
        conditions.append(pc.greater_equal(source["timestamp"], first))
    if selection.time_end_us is not None:
        end = pa.scalar(selection.time_end_us, TIMESTAMP_TYPE)
        conditions.append(pc.less(source["timestamp"], end))
    if selection.keys is not None:
        wanted = pa.array(selection.keys, pa.binary())
        conditions.append(
            pc.equal(source["key"], wanted[0])
            if len(wanted) == 1
            else pc.is_in(source["key"], value_set=wanted)
        )
    matches: Any = conditions[0]
    for condition in conditions[1:]:
        matches = pc.and_(matches, condition)
    return matches


def _between(batch: pa.RecordBatch, first: Lsn | None, end: Lsn | None) -> pa.RecordBatch:
    numbers = _numbers(batch.column("lsn"))
    start = 0 if first is None else bisect_left(numbers, first)
    stop = len(numbers) if end is None else bisect_left(numbers, end)
    return batch.slice(start, max(0, stop - start))


def _numbers(column: Any) -> memoryview:
    """A column of 64-bit numbers without nulls, where it lies."""
    if not len(column):
        return memoryview(b"").cast("q")
    return memoryview(column.buffers()[1].slice(column.offset * 8, len(column) * 8)).cast("q")
