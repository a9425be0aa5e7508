"""Columnar bodies: many documents, or many keys, in one frame, read where they lie.

    table           u32 layout, u32 rows, u32 bytes of the first binary column, u32 of the second
    numbers         one column after the other, as the layout says
    binaries        for each column int32[rows + 1] offsets, and the bytes they point into
    trailer         u32 zero, u32 crc32c of all before it

It is little-endian, unlike the frame around it, because columns are used as Arrow buffers.  The
layout's number stands in the body, so that one is never taken for another.

  I1  Every column begins at a multiple of 8 bytes; the bytes between are zero.
  I2  Offsets begin at 0, never fall, and end at the size of what they point into.
  I3  Nothing is handed out before sizes, checksum and I2 were checked: bytes that are no such
      body give ProtocolError, nothing else, and never a read outside of them.
  I4  Encoding is deterministic.
  I5  Keys of documents have 1 to DOCUMENT_KEY_BYTES_MAX bytes, whoever sends them: longer ones are
      more than a disk can file.
"""

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from itertools import accumulate, pairwise
from operator import attrgetter, sub
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

import google_crc32c
import pyarrow as pa

from millrace.codec.columns import AnyArray, padding
from millrace.core.documents.document import ChangeKind, Document
from millrace.errors import ProtocolError
from millrace.limits import DOCUMENT_BATCH_MAX, DOCUMENT_KEY_BYTES_MAX

_TABLE: Final = Struct("<4I")
_TRAILER: Final = Struct("<II")
_ZEROS: Final = bytes(8)
# Of anything followed by its own crc32c: so a body is checked by one call, and never copied.
_CHECKSUM_RESIDUE: Final = 0x48674BC7


Typecode = Literal["B", "H", "I", "q", "Q"]


class LayoutId(IntEnum):
    """Never renumber: peers of other versions speak them."""

    DOCUMENTS = 1
    KEYS = 2
    MULTI_GET = 3
    MULTI_GET_ANSWER = 4
    MULTI_SET = 5
    MULTI_SET_ANSWER = 6
    REVISIONS = 7
    REVISIONS_ANSWER = 8
    TYPED_REVISIONS = 9
    TYPED_REVISIONS_ANSWER = 10


class Layout(NamedTuple):
    """`numbers` are typecodes of `array`, one for each column."""

    id: LayoutId
    numbers: tuple[Typecode, ...]
    binaries: int


class Body(NamedTuple):
    """A body whose sizes and checksum are right; `starts` are those of its columns."""

    layout: Layout
    data: bytes
    rows: int
    starts: tuple[int, ...]
    binary_sizes: tuple[int, ...]

    def numbers(self, column: int) -> list[int]:
        typecode = self.layout.numbers[column]
        start = self.starts[column]
        end = start + self.rows * array(typecode).itemsize
        return memoryview(self.data)[start:end].cast(typecode).tolist()

    def binary(self, column: int) -> list[bytes]:
        """Keeps I2."""
        at = len(self.layout.numbers) + 2 * column
        start, data = self.starts[at], self.data
        offsets = memoryview(data)[start : start + 4 * (self.rows + 1)].cast("i").tolist()
        if offsets[0] != 0 or offsets[-1] != self.binary_sizes[column]:
            raise ProtocolError(f"offsets of column {column} run past its bytes")
        if self.rows and min(map(sub, offsets[1:], offsets)) < 0:
            raise ProtocolError(f"offsets of column {column} fall")
        begin = self.starts[at + 1]
        pieces = data[begin : begin + self.binary_sizes[column]]
        return [pieces[first:end] for first, end in pairwise(offsets)]

    def arrow_binary(self, column: int, buffer: pa.Buffer) -> AnyArray:
        """As `binary`, without a copy."""
        at = len(self.layout.numbers) + 2 * column
        offsets = buffer.slice(self.starts[at], 4 * (self.rows + 1))
        numbers = memoryview(offsets).cast("i")
        size = self.binary_sizes[column]
        if numbers[0] != 0 or numbers[-1] != size:
            raise ProtocolError(f"offsets of column {column} run past its bytes")
        buffers = [None, offsets, buffer.slice(self.starts[at + 1], size)]
        try:
            found = pa.Array.from_buffers(pa.binary(), self.rows, buffers)
            found.validate(full=True)
        except pa.ArrowInvalid as invalid:
            raise ProtocolError(f"offsets of column {column}: {invalid}") from invalid
        return found


def encode_body(
    layout: Layout,
    rows: int,
    numbers: Sequence[Iterable[int]],
    binaries: Sequence[Sequence[bytes]] = (),
) -> bytes:
    assert rows <= DOCUMENT_BATCH_MAX, "split it"
    columns: list[bytes] = []
    for typecode, column in zip(layout.numbers, numbers, strict=True):
        columns.append(array(typecode, column).tobytes())
    sizes = []
    for pieces in binaries:
        offsets = array("i", accumulate(map(len, pieces), initial=0))
        columns += (offsets.tobytes(), b"".join(pieces))
        sizes.append(offsets[-1])
    parts = [_TABLE.pack(layout.id, rows, *sizes, *(0,) * (2 - len(sizes)))]
    for data in columns:
        parts += (data, _ZEROS[: padding(len(data))])
    parts.append(_ZEROS[:4])
    checksum = 0
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    parts.append(checksum.to_bytes(4, "little"))
    return b"".join(parts)


def layout_of(data: bytes, *layouts: Layout) -> Layout:
    """The one that the body says to have; the first if it is none of them."""
    number = int.from_bytes(data[:4], "little")
    return next((each for each in layouts if each.id == number), layouts[0])


def read_body(layout: Layout, data: bytes) -> Body:
    """Raises ProtocolError."""
    size = len(data)
    if size < _TABLE.size + _TRAILER.size:
        raise ProtocolError(f"{size} bytes are too few for a columnar body")
    id, rows, *sizes = _TABLE.unpack_from(data)
    if id != layout.id:
        raise ProtocolError(f"a body of layout {id} where {layout.id} belongs")
    if any(sizes[layout.binaries :]):
        raise ProtocolError(f"layout {id} has no binary column of {max(sizes)} bytes")
    if rows > DOCUMENT_BATCH_MAX:
        raise ProtocolError(f"{rows} rows; {DOCUMENT_BATCH_MAX} are allowed")
    starts, end = _starts(layout, rows, tuple(sizes))
    if end + _TRAILER.size != size:
        raise ProtocolError(f"columns end at byte {end} of a body of {size}")
    if google_crc32c.value(data) != _CHECKSUM_RESIDUE:
        raise ProtocolError("a columnar body whose checksum does not match")
    return Body(layout, data, rows, starts, tuple(sizes))


def _starts(layout: Layout, rows: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Where the columns begin, and where the last ends."""
    widths = [rows * array(typecode).itemsize for typecode in layout.numbers]
    for size in sizes[: layout.binaries]:
        widths += (4 * (rows + 1), size)
    starts = accumulate((width + padding(width) for width in widths), initial=_TABLE.size)
    *begins, end = starts
    return tuple(begins), end


# -- Documents --------------------------------------------------------------------------------

DOCUMENTS: Final = Layout(LayoutId.DOCUMENTS, ("q", "Q", "I", "I", "B", "B"), 2)
KEYS: Final = Layout(LayoutId.KEYS, (), 1)

_KINDS: Final = tuple(ChangeKind(number) for number in range(len(ChangeKind)))
_NUMBERS: Final = tuple(map(attrgetter, ("seq", "cas", "flags", "expiry_s", "kind", "datatype")))
_KEY: Final = attrgetter("key")
_VALUE: Final = attrgetter("value")


def encode_documents(documents: Sequence[Document]) -> bytes:
    """Their values have to be resident."""
    numbers = [map(number, documents) for number in _NUMBERS]
    binaries = (list(map(_KEY, documents)), list(map(_VALUE, documents)))
    return encode_body(DOCUMENTS, len(documents), numbers, binaries)


def decode_documents(data: bytes) -> list[Document]:
    body = read_body(DOCUMENTS, data)
    seqs, cas, flags, expiry, kinds, datatypes = (body.numbers(column) for column in range(6))
    if body.rows and max(kinds) >= len(_KINDS):
        raise ProtocolError(f"there is no kind of change {max(kinds)}")
    if body.rows and min(seqs) < 0:
        raise ProtocolError(f"{min(seqs)} is no seq")
    named = map(_KINDS.__getitem__, kinds)
    make: Any = Document  # Its fields are NewTypes of what the columns hold.
    keys, values = checked_keys(body.binary(0)), body.binary(1)
    return list(map(make, keys, values, seqs, cas, flags, expiry, named, datatypes))


def encode_keys(keys: Sequence[bytes]) -> bytes:
    return encode_body(KEYS, len(keys), (), (keys,))


def decode_keys(data: bytes) -> list[bytes]:
    return checked_keys(read_body(KEYS, data).binary(0))


def checked_keys(keys: list[bytes]) -> list[bytes]:
    """As the decoder of frames does it for the key of a frame.  Keeps I5."""
    if keys and not 0 < min(map(len, keys)) <= max(map(len, keys)) <= DOCUMENT_KEY_BYTES_MAX:
        raise ProtocolError(f"a key is empty, or longer than {DOCUMENT_KEY_BYTES_MAX} bytes")
    return keys


@cache
def arrow_schema() -> pa.Schema:
    """What `to_arrow` gives; tombstones have empty values."""
    fields: list[tuple[str, Any]] = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("seq", pa.int64()),
        ("cas", pa.uint64()),
        ("flags", pa.uint32()),
        ("expiry", pa.uint32()),
        ("kind", pa.uint8()),
        ("datatype", pa.uint8()),
    ]
    return pa.schema(fields)


def to_arrow(data: bytes) -> pa.RecordBatch:
    """Documents as Arrow columns that point into `data`, which they keep alive."""
    body = read_body(DOCUMENTS, data)
    buffer = pa.py_buffer(data)
    if buffer.address % 8:
        buffer = pa.py_buffer(bytearray(data))
    schema = arrow_schema()
    arrays = [body.arrow_binary(0, buffer), body.arrow_binary(1, buffer)]
    for column in range(len(DOCUMENTS.numbers)):
        type = schema.types[column + 2]
        size = body.rows * (type.bit_width // 8)
        buffers = [None, buffer.slice(body.starts[column], size)]
        arrays.append(pa.Array.from_buffers(type, body.rows, buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
