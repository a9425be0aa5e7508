"""Blocks: placing, reading and checking them.

A block is one contiguous buffer, header and body.  It is made once, by the client, and used as it
is everywhere: sent, stored, sent again, read.  The copyset is not part of a block: replicas are
equal byte for byte.

Invariants:

  I1  The header's checksum covers the body's and is `Block.checksum`: it stands for the whole
      block wherever two copies are compared (L9).
  I2  No size is believed before it was compared with the bytes at hand and with `limits`.
  I3  Filling a range gives the same bytes on whichever node it happens (`junk`).
  I4  Records have the positions that the fields of `Block` say.  The header may say others: those
      in a stream, of a block that is read as one of a commit log (`seen_at`).
"""

from collections.abc import Iterable
from itertools import pairwise, repeat
from typing import Any, cast

import msgspec
import pyarrow as pa

from millrace.codec.columns import ALIGNMENT, AnyArray, Columns, pieces
from millrace.codec.compression import decompress
from millrace.codec.drafts import Draft, HeaderPairs, draft
from millrace.codec.header import (
    COUNT_MAX,
    HEADER_BYTES,
    Flags,
    Header,
    checksum_of,
    parse_header,
    restamp,
    stamp,
)
from millrace.errors import CorruptBlock, UsageError
from millrace.types import (
    FIRST_LSN,
    LSN_MAX,
    NO_TOKEN,
    Block,
    Buffer,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    Record,
    Token,
)

__all__ = [
    "HEADER_BYTES",
    "Draft",
    "Flags",
    "Header",
    "block_of",
    "body_of",
    "columns",
    "draft",
    "junk",
    "lone_record",
    "move",
    "parse",
    "parse_header",
    "place",
    "records",
    "records_of",
    "rows_of",
    "seen_at",
    "shifted",
    "values",
    "verify",
]


def place(draft: Draft, log: LogId, epoch: Epoch, first: Lsn, token: Token) -> Block:
    """Give the draft its position.  The first placing moves nothing; a later one copies."""
    buffer, template = draft.take()
    header = msgspec.structs.replace(template, log=log, epoch=epoch, first=first, token=token)
    return block_of(header, stamp(header, buffer), buffer)


def lone_record(log: LogId, value: bytes, token: Token) -> Block:
    """A block of one record that a sequencer is to place."""
    made = draft([value], timestamps_us=0, compress=False)
    return place(made, log, Epoch(0), FIRST_LSN, token)


def values(block: Block) -> list[bytes]:
    """Those of its records; a junk block has none."""
    return [record.value for record in records(block)]


def move(block: Block, epoch: Epoch, first: Lsn, log: LogId | None = None) -> Block:
    """The same records, by the same writer, at another position, or in another log.  A block that
    was received lies in memory of its own, and only its header is written; any other is copied."""
    log, last = block.log if log is None else log, first + block.count - 1
    if first < FIRST_LSN or last > LSN_MAX:
        raise UsageError(f"positions {first}..{last} lie outside of 1..{LSN_MAX}")
    data = block.data
    if not isinstance(data, memoryview) or data.readonly:
        data = bytearray(data)
    checksum = restamp(data, log, first, epoch)
    kind, token = block.kind, block.token
    return Block(
        log,
        first,
        block.count,
        epoch,
        kind,
        token,
        checksum,
        data,
        block.is_cut,
        block.is_published,
    )


def seen_at(block: Block, log: LogId, first: Lsn) -> Block:
    """The same bytes as a block of this log that begins at `first`, whatever their header says."""
    return Block(
        log,
        first,
        block.count,
        block.epoch,
        block.kind,
        block.token,
        block.checksum,
        block.data,
        block.is_cut,
        block.is_published,
        block.shift,
    )


def shifted(block: Block, log: LogId, by: int) -> Block:
    """The same records as those of another log, whose positions are higher by this much."""
    seen = seen_at(block, log, Lsn(block.first + by))
    seen.shift += by
    return seen


def junk(log: LogId, first: Lsn, count: int, kind: EntryKind) -> Block:
    """A block that says that `count` positions hold no records: a HOLE or a LOSS."""
    assert kind is not EntryKind.DATA
    if not 1 <= count <= COUNT_MAX:
        raise UsageError(f"a block fills 1 to {COUNT_MAX} positions, not {count}")
    header = Header(Flags.NONE, kind, count, log, first, Epoch(0), NO_TOKEN, 0, 0, 0, 0, 0)
    buffer = bytearray(HEADER_BYTES)
    return block_of(header, stamp(header, buffer), buffer)


def parse(data: Buffer, *, verify: bool = True) -> Block:
    """The block that `data` is, whole and exactly; it is not copied.  Without `verify` the body's
    checksum is not computed, for bytes that were checked before."""
    header = parse_header(data)
    if len(data) != header.block_size:
        raise CorruptBlock(
            f"block of log {header.log} at {header.first} has {len(data)} bytes, "
            f"its header says {header.block_size}"
        )
    if verify:
        computed = checksum_of(memoryview(data)[HEADER_BYTES:])
        if computed != header.body_checksum:
            raise CorruptBlock(
                f"block of log {header.log} at {header.first}: body checksum is {computed:#010x}, "
                f"the header says {header.body_checksum:#010x}"
            )
    return block_of(header, header.checksum, data)


def verify(block: Block) -> None:
    """Raise CorruptBlock unless the block's bytes are whole and say what its fields say."""
    stored = parse(block.data)
    fields = ("log", "first", "count", "epoch", "kind", "token", "checksum")
    for name in fields:
        if getattr(stored, name) != getattr(block, name):
            raise CorruptBlock(
                f"{block!r} has {name} {getattr(block, name)}, "
                f"its bytes say {getattr(stored, name)}"
            )


def columns(block: Block) -> Columns:
    """The columns of a DATA block, decompressed if need be, at an aligned address."""
    if block.is_cut:
        raise UsageError(
            f"{block!r} was cut for a reader that selects: `codec.cuts` reads it by the selection"
        )
    if block.is_published:
        raise UsageError(
            f"{block!r} publishes rows of another log, and has none itself: a reader gives them"
        )
    header = parse_header(block.data)
    body = body_of(block, header)
    if block.count != header.count:
        raise CorruptBlock(f"{block!r} has {block.count} records, its bytes say {header.count}")
    if header.flags & Flags.ZSTD:
        body = pa.py_buffer(decompress(memoryview(body), header.raw_size, repr(block)))
    return Columns(
        body,
        header.count,
        has_keys=bool(header.flags & Flags.HAS_KEYS),
        has_headers=bool(header.flags & Flags.HAS_HEADERS),
        name=repr(block),
    )


def body_of(block: Block, header: Header) -> pa.Buffer:
    """The body as it lies, or as a copy if that is what puts it at an aligned address."""
    body = pa.py_buffer(memoryview(block.data)[HEADER_BYTES:])
    if body.size != header.body_size:
        raise CorruptBlock(f"{block!r} has a body of {body.size} bytes, not {header.body_size}")
    if body.address % ALIGNMENT and not header.flags & Flags.ZSTD:
        return pa.py_buffer(body.to_pybytes())
    return body


def rows_of(block: Block, first: Lsn | None, end: Lsn | None) -> tuple[int, int]:
    """The rows of a block that lie in [first, end), as a start and a count; none of junk."""
    if block.kind is not EntryKind.DATA:
        return 0, 0
    begin = block.first if first is None else max(first, block.first)
    stop = block.end if end is None else min(end, block.end)
    return begin - block.first, max(0, stop - begin)


def records(block: Block, first: Lsn | None = None, end: Lsn | None = None) -> list[Record]:
    """The records of a block whose positions lie in [first, end); a junk block has none."""
    start, count = rows_of(block, first, end)
    if count == 0:
        return []
    source = columns(block)
    lsns = cast("Iterable[Lsn]", range(block.first + start, block.first + start + count))
    stamps = memoryview(source.timestamps()).cast("q")[start : start + count].tolist()
    keys, headers = source.keys(), source.headers()
    return records_of(
        lsns,
        source.values().slice(start, count),
        None if keys is None else keys.slice(start, count),
        stamps,
        None if headers is None else headers.slice(start, count),
    )


def records_of(
    lsns: Iterable[Lsn],
    values: AnyArray,
    keys: AnyArray | None,
    stamps: list[int],
    headers: AnyArray | None,
) -> list[Record]:
    """Rows of columns as records."""
    return list(
        map(
            Record,
            lsns,
            pieces(values),
            repeat(None) if keys is None else _keys(keys),
            stamps,
            repeat(()) if headers is None else _headers(headers),
        )
    )


def _keys(column: AnyArray) -> list[bytes | None]:
    present = pieces(column)
    if not column.null_count:
        return list(present)
    valid = column.is_valid().to_pylist()
    return [key if is_valid else None for key, is_valid in zip(present, valid, strict=True)]


def _headers(column: Any) -> list[HeaderPairs]:
    entries = column.values
    names = [name.decode() for name in pieces(entries.field(0))]
    pairs = list(zip(names, pieces(entries.field(1)), strict=True))
    return [tuple(pairs[begin:end]) for begin, end in pairwise(column.offsets.to_pylist())]


def block_of(header: Header, checksum: int, data: Buffer) -> Block:
    """The block whose bytes are `data` and whose header was parsed or stamped already."""
    return Block(
        header.log,
        header.first,
        header.count,
        header.epoch,
        header.kind,
        header.token,
        checksum,
        data,
        header.flags is Flags.CUT,
        header.flags >= Flags.PUBLISHED,
    )
