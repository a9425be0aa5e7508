"""Drafts: the encoded body of a block whose position is not known yet.

The body is encoded before the sequencer is asked, so that the time between getting positions and
filling them is short.  It lies behind room for the header in one buffer, and `blocks.place` stamps
the header there without moving it.  Python sequences become Arrow arrays first, by one native call
per column; from there records and batches go the same way.

Invariants:

  I1  A placed buffer is never written again: a draft gives its buffer away once and copies after
      that, because the first buffer may still wait in a send queue.
  I2  No draft exceeds the limits on records, bytes of a record and bytes of a block, measured
      uncompressed: every reader can hold what any writer wrote.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.codec.columns import HEADERS_TYPE, AnyArray, HeaderRows, Rows, encode, encode_one
from millrace.codec.compression import compress as compress_body
from millrace.codec.header import BODY_BYTES_MAX, HEADER_BYTES, Flags, Header, checksum_of
from millrace.errors import UsageError
from millrace.limits import BLOCK_BYTES_MAX, BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX
from millrace.types import NO_TOKEN, Buffer, EntryKind, Epoch, LogId, Lsn

HeaderPairs = tuple[tuple[str, bytes], ...]
_NO_HEADER: Final = bytes(HEADER_BYTES)


class Draft:
    """An encoded body with room for the header in front of it; its position is not known yet."""

    __slots__ = ("_buffer", "_is_placed", "_template")

    def __init__(self, buffer: bytearray, template: Header) -> None:
        self._buffer = buffer
        self._template = template
        self._is_placed = False

    @property
    def count(self) -> int:
        return self._template.count

    @property
    def size(self) -> int:
        return len(self._buffer)

    @property
    def is_compressed(self) -> bool:
        return bool(self._template.flags & Flags.ZSTD)

    @property
    def timestamps_us(self) -> tuple[int, int]:
        """The oldest and the newest that the header says."""
        return self._template.timestamp_min_us, self._template.timestamp_max_us

    @property
    def has_keys(self) -> bool:
        return bool(self._template.flags & Flags.HAS_KEYS)

    def reaching(self, timestamp_us: int) -> "Draft":
        """The same draft, which lookups by time and retention take for no older than this."""
        newest = max(self._template.timestamp_max_us, timestamp_us)
        template = msgspec.structs.replace(self._template, timestamp_max_us=newest)
        return Draft(self._buffer, template)

    def take(self) -> tuple[bytearray, Header]:
        """A buffer to stamp a header into, which nobody else was given (I1)."""
        buffer = bytearray(self._buffer) if self._is_placed else self._buffer
        self._is_placed = True
        return buffer, self._template


def draft(
    values: Sequence[Buffer],
    *,
    timestamps_us: Sequence[int] | int,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[HeaderPairs] | None = None,
    compress: bool = True,
) -> Draft:
    count = _checked_count(len(values))
    for name, column in (("keys", keys), ("timestamps", timestamps_us), ("headers", headers)):
        if not isinstance(column, int | None) and len(column) != count:
            raise UsageError(f"{len(column)} {name} were given for {count} values")
    if count == 1 and headers is None:
        stamp = timestamps_us if isinstance(timestamps_us, int) else timestamps_us[0]
        key = None if keys is None else keys[0]
        if _is_simple(stamp, values[0], key):
            return _draft_one(stamp, cast("bytes", values[0]), key, compress)
    value_column = _column(values, pa.binary(), "values")
    if value_column.null_count:
        raise UsageError("a value is None; a record without a value has the value b''")
    key_column = None if keys is None else _column(keys, pa.binary(), "keys")
    rows = Rows(
        count,
        timestamps(timestamps_us, count),
        value_column,
        key_column if key_column is not None and key_column.null_count < count else None,
        None if headers is None else _header_rows(headers),
    )
    return draft_rows(rows, compress=compress)


def draft_rows(rows: Rows, *, compress: bool) -> Draft:
    """What all ways of making a draft end in: columns to one buffer."""
    _checked_count(rows.count)
    sections = encode(rows)
    if sections.size > BODY_BYTES_MAX:
        raise UsageError(
            f"{rows.count} records make a block of {sections.size + HEADER_BYTES} bytes; "
            f"at most {BLOCK_BYTES_MAX} fit: append them in smaller batches"
        )
    flags = Flags.NONE
    if rows.keys is not None:
        flags |= Flags.HAS_KEYS
    if rows.headers is not None:
        flags |= Flags.HAS_HEADERS
    bounds = _bounds(rows.timestamps, rows.count)
    return _joined(sections.parts, rows.count, flags, bounds, compress)


def _is_simple(timestamp_us: object, value: object, key: object) -> bool:
    """Whether a lone record needs no conversion and breaks no limit; if not, Arrow takes it, or
    says what is wrong with it."""
    return (
        type(value) is bytes
        and (key is None or type(key) is bytes)
        and type(timestamp_us) is int
        and -(2**63) <= timestamp_us < 2**63
        and len(value) + (0 if key is None else len(key)) <= BLOCK_BYTES_TARGET
    )


def _draft_one(timestamp_us: int, value: bytes, key: bytes | None, compress: bool) -> Draft:
    flags = Flags.NONE if key is None else Flags.HAS_KEYS
    parts = encode_one(timestamp_us, value, key)
    return _joined(parts, 1, flags, (timestamp_us, timestamp_us), compress)


def _joined(
    parts: Sequence[bytes | pa.Buffer],
    count: int,
    flags: Flags,
    bounds_us: tuple[int, int],
    compress: bool,
) -> Draft:
    """The draft whose body is `parts`, compressed if asked for and if that pays."""
    buffer = bytearray().join((_NO_HEADER, *parts))
    raw_size = len(buffer) - HEADER_BYTES
    if compress:
        with memoryview(buffer)[HEADER_BYTES:] as body:
            frame = compress_body(body, parts)
        if frame is not None:
            buffer = bytearray().join((_NO_HEADER, frame))
            flags |= Flags.ZSTD
    template = Header(
        flags,
        EntryKind.DATA,
        count,
        LogId(0),
        Lsn(0),
        Epoch(0),
        NO_TOKEN,
        *bounds_us,
        len(buffer) - HEADER_BYTES,
        raw_size,
        checksum_of(memoryview(buffer)[HEADER_BYTES:]),
    )
    return Draft(buffer, template)


def _bounds(timestamps: pa.Buffer, count: int) -> tuple[int, int]:
    if count == 1:  # Spares the smallest blocks a third of their cost.
        (only,) = memoryview(timestamps).cast("q")
        return only, only
    column: Any = pa.Array.from_buffers(pa.int64(), count, [None, timestamps])
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _checked_count(count: int) -> int:
    if not 1 <= count <= BLOCK_RECORDS_MAX:
        raise UsageError(f"a block holds 1 to {BLOCK_RECORDS_MAX} records, not {count}")
    return count


def _column(rows: Sequence[object], kind: Any, name: str) -> AnyArray:
    try:
        column: AnyArray | pa.ChunkedArray[Any] = pa.array(rows, type=kind)
    except (pa.ArrowException, TypeError, ValueError) as refused:
        raise UsageError(f"{name} must be {kind}: {refused}") from refused
    if isinstance(column, pa.ChunkedArray):  # More than 2 GiB.
        raise UsageError(f"{name} exceed a block of {BLOCK_BYTES_MAX} bytes")
    return column


def timestamps(timestamps_us: Sequence[int] | int, count: int) -> pa.Buffer:
    try:
        if isinstance(timestamps_us, int):
            return pa.py_buffer(array("q", (timestamps_us,)) * count)
        return pa.py_buffer(array("q", timestamps_us))
    except (TypeError, OverflowError) as refused:
        raise UsageError(f"timestamps must be 64-bit microseconds: {refused}") from refused


def _header_rows(headers: Sequence[HeaderPairs]) -> HeaderRows | None:
    column: Any = _column(headers, HEADERS_TYPE, "headers")
    entries = column.values
    if column.null_count or entries.field(1).null_count:
        raise UsageError("a header value or a record's headers are None")
    if len(entries) == 0:
        return None
    offsets = column.buffers()[1].slice(0, (len(column) + 1) * 4)
    return HeaderRows(offsets, entries.field(0), entries.field(1))
