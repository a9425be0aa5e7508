"""A block's body: columns, each laid out as the Arrow buffer it will be read as.

The body begins with a table of six u32: bytes of values, bytes of keys, number of header entries,
bytes of header names, bytes of header values, and zero.  Every other size follows from the number
of records, so the table cannot contradict itself.  Then come the sections:

    timestamps      int64[n]                  microseconds since 1970
    values          int32[n + 1], bytes
    keys            bitmap, int32[n + 1], bytes                        only with HAS_KEYS
    headers         int32[n + 1] into the m entries                    only with HAS_HEADERS
    header names    int32[m + 1], bytes (UTF-8)
    header values   int32[m + 1], bytes

Invariants:

  I1  Every section begins at a multiple of 8 bytes from the start of the body; the bytes between
      are zero.  Numbers are little endian.
  I2  Offsets begin at 0, never fall, and end at the size of what they point into.
  I3  Nothing is handed out before I2 was checked, in native code: a body with a right checksum
      and absurd columns gives CorruptBlock, never a read outside of it.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import CorruptBlock, RecordTooLarge
from millrace.limits import RECORD_BYTES_MAX

if sys.byteorder != "little":
    raise ImportError("millrace needs a little-endian machine: blocks are used where they lie")

ALIGNMENT: Final = 8
TABLE: Final = Struct("<6I")
HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())
ENTRY_TYPE: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]
)

_ZEROS: Final = bytes(ALIGNMENT)
_ONE_ROW: Final = Struct(TABLE.format + "q2i")  # Table, timestamp, offsets of the value.
_ONE_KEY: Final = Struct("<B7x2i")  # Bitmap, offsets of the key.
_NO_BYTES: Final = pa.py_buffer(b"")
_ONE_ZERO_OFFSET: Final = pa.py_buffer(bytes(4))

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]
else:
    AnyArray = pa.Array  # Generic for type checkers alone.


@dataclass(frozen=True, slots=True)
class HeaderRows:
    """Headers on their way in: row i owns entries `offsets[i]..offsets[i + 1]`."""

    offsets: pa.Buffer
    names: AnyArray
    values: AnyArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Records on their way into a body.  Values have no nulls; arrays may be slices."""

    count: int
    timestamps: pa.Buffer
    values: AnyArray
    keys: AnyArray | None = None
    headers: HeaderRows | None = None


@dataclass(frozen=True, slots=True)
class Sections:
    """An encoded body in pieces, to be joined by one copy."""

    parts: list[bytes | pa.Buffer]
    size: int


def padding(size: int) -> int:
    return -size % ALIGNMENT


def encode(rows: Rows) -> Sections:
    """Raises RecordTooLarge, of the largest record, before anything is copied."""
    value_offsets, values = flat(rows.values)
    sections: list[bytes | pa.Buffer] = [rows.timestamps, value_offsets, values]
    weighed: list[tuple[pa.Buffer, pa.Buffer | None]] = [(value_offsets, None)]
    key_bytes = entries = name_bytes = header_bytes = 0
    if rows.keys is not None:
        key_offsets, keys = flat(rows.keys)
        key_bytes = keys.size
        sections += [_validity(rows.keys), key_offsets, keys]
        weighed.append((key_offsets, None))
    if rows.headers is not None:
        name_offsets, names = flat(rows.headers.names)
        header_offsets, headers = flat(rows.headers.values)
        entries, name_bytes, header_bytes = len(rows.headers.names), names.size, headers.size
        sections += [rows.headers.offsets, name_offsets, names, header_offsets, headers]
        weighed += [(name_offsets, rows.headers.offsets), (header_offsets, rows.headers.offsets)]
    table = TABLE.pack(values.size, key_bytes, entries, name_bytes, header_bytes, 0)
    parts: list[bytes | pa.Buffer] = [table]
    for section in sections:
        parts += [section, _ZEROS[: padding(len(section))]]
    size = sum(map(len, parts))
    if size > RECORD_BYTES_MAX:  # No record is larger than its body: rarely asked.
        _check_records(rows.count, weighed)
    return Sections(parts, size)


def encode_one(timestamp_us: int, value: bytes, key: bytes | None) -> tuple[bytes, ...]:
    """The parts of a body of one record without headers, as `encode` makes them.  An append that
    has no company is the commonest small block, and Arrow would cost it ten times as much."""
    size = len(value)
    if key is None:
        front = _ONE_ROW.pack(size, 0, 0, 0, 0, 0, timestamp_us, 0, size)
        return front, value, _ZEROS[: padding(size)]
    key_size = len(key)
    front = _ONE_ROW.pack(size, key_size, 0, 0, 0, 0, timestamp_us, 0, size)
    key_front = _ONE_KEY.pack(1, 0, key_size)
    return front, value, _ZEROS[: padding(size)], key_front, key, _ZEROS[: padding(key_size)]


def flat(column: AnyArray) -> tuple[pa.Buffer, pa.Buffer]:
    """Offsets from 0 and exactly the bytes they cover, of a binary or string array."""
    _, offsets, data = column.buffers()
    if len(column) == 0 or offsets is None:
        return _ONE_ZERO_OFFSET, _NO_BYTES
    offsets = offsets.slice(column.offset * 4, (len(column) + 1) * 4)
    numbers = memoryview(offsets).cast("i")
    begin, end = numbers[0], numbers[-1]
    if begin != 0:
        shifted = pc.subtract(_int32(offsets), pa.scalar(begin, pa.int32()))
        offsets = shifted.buffers()[1].slice(0, offsets.size)
    return offsets, _NO_BYTES if data is None else data.slice(begin, end - begin)


def _validity(column: AnyArray) -> bytes:
    """The bitmap of `column`, with zeros above the last row so that equal rows give equal bytes."""
    ones = (1 << len(column)) - 1
    if column.null_count:
        valid = pc.is_valid(column)
        bitmap = valid.buffers()[1]
        assert bitmap is not None
        ones &= int.from_bytes(memoryview(bitmap), "little") >> valid.offset
    return ones.to_bytes((len(column) + 7) // 8, "little")


def _check_records(count: int, weighed: list[tuple[pa.Buffer, pa.Buffer | None]]) -> None:
    """A record's size is the sum of its pieces in all columns."""
    total: Any = pa.scalar(0, pa.int64())
    for offsets, rows in weighed:
        ends = _int32(offsets) if rows is None else _int32(offsets).take(_int32(rows))
        total = pc.add(total, pc.subtract(ends.slice(1, count), ends.slice(0, count)))
    largest = pc.max(total).as_py()
    if largest > RECORD_BYTES_MAX:
        row = pc.index(total, largest).as_py()
        raise RecordTooLarge(
            f"record {row} of the batch has {largest} bytes; at most {RECORD_BYTES_MAX} fit"
        )


def _int32(buffer: pa.Buffer) -> Any:
    return pa.Array.from_buffers(pa.int32(), buffer.size // 4, [None, buffer])


class Columns:
    """Columns of a stored body, each checked when it is taken and then used where it lies."""

    __slots__ = ("_body", "_name", "_sections", "_table", "count", "has_headers", "has_keys")

    def __init__(
        self, body: pa.Buffer, count: int, *, has_keys: bool, has_headers: bool, name: str
    ) -> None:
        """`name` is what errors call the block."""
        if body.size < TABLE.size:
            raise CorruptBlock(f"{name}: {body.size} bytes are too few for the section table")
        self._body = body
        self._name = name
        self.count = count
        self.has_keys = has_keys
        self.has_headers = has_headers
        self._table = TABLE.unpack_from(body)
        self._sections = self._layout()

    def _layout(self) -> list[tuple[int, int]]:
        """Start and size of each section in order; they must tile the body exactly."""
        values, keys, entries, names, headers, zero = self._table
        if zero or (keys and not self.has_keys):
            raise CorruptBlock(f"{self._name}: section table names a section that the flags deny")
        if (entries or names or headers) and not self.has_headers:
            raise CorruptBlock(f"{self._name}: section table names headers that the flags deny")
        rows = (self.count + 1) * 4
        sizes = [self.count * 8, rows, values]
        if self.has_keys:
            sizes += [(self.count + 7) // 8, rows, keys]
        if self.has_headers:
            sizes += [rows, (entries + 1) * 4, names, (entries + 1) * 4, headers]
        starts = []
        start = TABLE.size
        for size in sizes:
            starts.append((start, size))
            start += size + padding(size)
        if start != self._body.size:
            raise CorruptBlock(
                f"{self._name}: sections end at byte {start} of a body of {self._body.size}"
            )
        return starts

    def _section(self, index: int) -> pa.Buffer:
        return self._body.slice(*self._sections[index])

    def timestamps(self) -> pa.Buffer:
        return self._section(0)

    def values(self) -> AnyArray:
        return self._binary(pa.binary(), self.count, 1, "value")

    def keys(self) -> AnyArray | None:
        if not self.has_keys:
            return None
        return self._binary(pa.binary(), self.count, 4, "key", self._section(3))

    def headers(self) -> AnyArray | None:
        """Rows of type map<string, binary>; children are names and values of the entries."""
        if not self.has_headers:
            return None
        entries = self._table[2]
        first = 6 if self.has_keys else 3
        names = self._binary(pa.string(), entries, first + 1, "header name")
        values = self._binary(pa.binary(), entries, first + 3, "header value")
        offsets = self._section(first)
        self._check_ends(offsets, entries, "header")
        try:
            pairs = pa.Array.from_buffers(ENTRY_TYPE, entries, [None], children=[names, values])
            rows = pa.Array.from_buffers(
                HEADERS_TYPE, self.count, [None, offsets], children=[pairs]
            )
            rows.validate(full=True)
        except pa.ArrowInvalid as invalid:
            raise CorruptBlock(f"{self._name}: header column: {invalid}") from invalid
        return rows

    def _binary(
        self, kind: Any, count: int, index: int, name: str, validity: pa.Buffer | None = None
    ) -> AnyArray:
        offsets, data = self._section(index), self._section(index + 1)
        self._check_ends(offsets, data.size, name)
        try:
            column = pa.Array.from_buffers(kind, count, [validity, offsets, data])
            column.validate(full=True)  # Keeps I3: every offset and, of names, every byte.
        except pa.ArrowInvalid as invalid:
            raise CorruptBlock(f"{self._name}: {name} column: {invalid}") from invalid
        return column

    def _check_ends(self, offsets: pa.Buffer, size: int, name: str) -> None:
        numbers = memoryview(offsets).cast("i")
        if numbers[0] != 0 or numbers[-1] != size:
            raise CorruptBlock(
                f"{self._name}: {name} offsets run from {numbers[0]} to {numbers[-1]}, "
                f"not from 0 to {size}"
            )


def pieces(column: AnyArray) -> list[bytes]:
    """The rows of a binary or string array as bytes, by one copy and one slice each."""
    offsets, data = flat(column)
    whole = data.to_pybytes()
    return [whole[begin:end] for begin, end in pairwise(memoryview(offsets).cast("i").tolist())]
