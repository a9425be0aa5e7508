"""The fixed header of a block: 88 bytes, little endian, a multiple of 8 so that the body behind it
keeps the block's alignment.

    magic "MRB1"   version u16   flags u16
    kind u8        zero u8[3]    count u32
    log u64        first u64     epoch u64
    token client u64             token request u64
    oldest timestamp i64         newest timestamp i64         microseconds
    body size u32                raw size u32                 as stored; uncompressed
    body checksum u32            header checksum u32          crc32c

Invariants:

  I1  The header checksum is last and covers every byte before it, the body's checksum included.
  I2  A header that parses makes sense: kind and flags are known, positions lie within the log's
      range, sizes within the limits, and a block without records has neither body nor writer.
"""

from enum import IntFlag
from struct import Struct, error
from typing import Final

import google_crc32c
import msgspec
import pyarrow as pa

from millrace.errors import CorruptBlock, UsageError
from millrace.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, KIB, PUBLISHED_RECORDS_MAX
from millrace.types import FIRST_LSN, LSN_MAX, NO_TOKEN, Buffer, EntryKind, Epoch, LogId, Lsn, Token

MAGIC: Final = b"MRB1"
VERSION: Final = 1
COUNT_MAX: Final = 2**32 - 1
BODY_BYTES_MAX: Final = BLOCK_BYTES_MAX - 88

_FIELDS: Final = Struct("<4sHHB3sIQQQQQqqIII")
_CHECKSUM: Final = Struct("<I")
_WHOLE: Final = Struct(_FIELDS.format + "I")
HEADER_BYTES: Final = _WHOLE.size

_PLACE: Final = Struct("<QQQ")  # Log, first, epoch.
_PLACE_AT: Final = Struct("<4sHHB3sI").size
_NEWEST: Final = Struct("<q")
_NEWEST_AT: Final = Struct("<4sHHB3sIQQQQQq").size
_NO_RESERVED: Final = bytes(3)
_COPIED_BYTES_MAX: Final = 4 * KIB  # Up to here a copy is cheaper than wrapping the memory.


class Flags(IntFlag):
    """How the body is written.  The numbers are on disk: never renumber."""

    NONE = 0
    ZSTD = 1
    HAS_KEYS = 2
    HAS_HEADERS = 4
    CUT = 8  # The body is what a reader selected (`cuts.py`); never on disk.
    PUBLISHED = 16  # The body says where in another log the records lie (`published.py`).


# Looked up, because calling an enum costs as much as all the rest of parsing a header.
_ZSTD: Final = int(Flags.ZSTD)
_PUBLISHED: Final = (Flags.PUBLISHED, Flags.PUBLISHED | Flags.HAS_KEYS)
_FLAGS: Final = {number: Flags(number) for number in (*range(8), Flags.CUT, *_PUBLISHED)}
_KINDS: Final = {int(kind): kind for kind in EntryKind}
_DATA: Final = int(EntryKind.DATA)


class Header(msgspec.Struct, frozen=True):
    """All that a header says.  `checksum` is the header's own, `body_checksum` the body's."""

    flags: Flags
    kind: EntryKind
    count: int
    log: LogId
    first: Lsn
    epoch: Epoch
    token: Token
    timestamp_min_us: int
    timestamp_max_us: int
    body_size: int
    raw_size: int
    body_checksum: int
    checksum: int = 0

    @property
    def block_size(self) -> int:
        return HEADER_BYTES + self.body_size

    @property
    def last(self) -> Lsn:
        return Lsn(self.first + self.count - 1)

    @property
    def end(self) -> Lsn:
        return Lsn(self.first + self.count)


def checksum_of(data: Buffer | pa.Buffer) -> int:
    """crc32c of a buffer where it lies: the checksum library takes `bytes` or an Arrow buffer,
    which wraps any memory without a copy."""
    if not isinstance(data, bytes):
        data = bytes(data) if len(data) <= _COPIED_BYTES_MAX else pa.py_buffer(data)
    checksum: int = google_crc32c.value(data)
    return checksum


def timestamp_max_us(data: Buffer) -> int:
    """That field alone, of a block whose header was parsed before."""
    (newest,) = _NEWEST.unpack_from(data, _NEWEST_AT)
    return int(newest)


def stamp(header: Header, target: bytearray | memoryview) -> int:
    """Write the header at the front of `target`; returns its checksum."""
    if header.first < FIRST_LSN or header.last > LSN_MAX:
        raise UsageError(f"positions {header.first}..{header.last} lie outside of 1..{LSN_MAX}")
    try:
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            header.flags,
            header.kind,
            _NO_RESERVED,
            header.count,
            header.log,
            header.first,
            header.epoch,
            header.token.client,
            header.token.request,
            header.timestamp_min_us,
            header.timestamp_max_us,
            header.body_size,
            header.raw_size,
            header.body_checksum,
        )
    except error as out_of_range:
        raise UsageError(f"a header field is out of range: {out_of_range}: {header}") from None
    checksum: int = google_crc32c.value(fields)
    target[:HEADER_BYTES] = fields + _CHECKSUM.pack(checksum)
    return checksum


def restamp(target: bytearray | memoryview, log: LogId, first: Lsn, epoch: Epoch) -> int:
    """Change the place in a header that was parsed before; returns its new checksum."""
    _PLACE.pack_into(target, _PLACE_AT, log, first, epoch)
    checksum: int = google_crc32c.value(bytes(target[: _FIELDS.size]))
    _CHECKSUM.pack_into(target, _FIELDS.size, checksum)
    return checksum


def parse_header(data: Buffer) -> Header:
    """The header at the front of `data`, which may be longer or end with the header."""
    front = bytes(memoryview(data)[:HEADER_BYTES])
    if len(front) < HEADER_BYTES:
        raise CorruptBlock(f"{len(front)} bytes are too few for a header of {HEADER_BYTES}")
    (magic, version, flags, kind, zeros, count, log, first, epoch, client, request, oldest, newest,
     body_size, raw_size, body_checksum, checksum) = _WHOLE.unpack(front)  # fmt: skip
    if magic != MAGIC:
        raise CorruptBlock(f"a block begins with {MAGIC!r}, this one with {magic!r}")
    computed = google_crc32c.value(front[: _FIELDS.size])
    if computed != checksum:
        raise CorruptBlock(
            f"header checksum is {computed:#010x}, the header says {checksum:#010x} "
            f"(it claims to be of log {log} at {first})"
        )
    if version != VERSION:
        raise CorruptBlock(f"block of log {log} at {first} has version {version}, not {VERSION}")
    if kind not in _KINDS or flags not in _FLAGS or zeros != _NO_RESERVED:
        raise CorruptBlock(
            f"block of log {log} at {first} has kind {kind}, flags {flags:#x}, "
            f"reserved {zeros.hex()}: not all known"
        )
    header = Header(
        _FLAGS[flags],
        _KINDS[kind],
        count,
        LogId(log),
        Lsn(first),
        Epoch(epoch),
        Token(client, request),
        oldest,
        newest,
        body_size,
        raw_size,
        body_checksum,
        checksum,
    )
    is_plain = (
        kind == _DATA
        and 0 < count <= BLOCK_RECORDS_MAX
        and FIRST_LSN <= first <= LSN_MAX - BLOCK_RECORDS_MAX
        and body_size <= raw_size <= BODY_BYTES_MAX
        and oldest <= newest
        and (body_size < raw_size) == (flags & _ZSTD)
    )
    if not is_plain and (complaint := _complaint(header)):
        raise CorruptBlock(f"block of log {log} at {first}: {complaint}")
    return header


def _complaint(header: Header) -> str:
    """What makes no sense in a header whose checksum is right; empty if nothing (I2)."""
    if header.count == 0:
        return "it has no positions"
    if header.first < FIRST_LSN or header.last > LSN_MAX:
        return f"positions up to {header.last} lie outside of 1..{LSN_MAX}"
    if max(header.body_size, header.raw_size) > BODY_BYTES_MAX:
        return f"body of {header.body_size}, raw {header.raw_size} bytes exceeds {BODY_BYTES_MAX}"
    if header.timestamp_min_us > header.timestamp_max_us:
        return "its oldest timestamp is newer than its newest"
    if header.kind is not EntryKind.DATA:
        is_bare = header.token == NO_TOKEN and not (
            header.epoch
            or header.flags
            or header.raw_size
            or header.body_size
            or header.body_checksum
            or header.timestamp_min_us
            or header.timestamp_max_us
        )
        return "" if is_bare else f"a {header.kind.name} block has no body and no writer"
    records_max = BLOCK_RECORDS_MAX if header.flags < Flags.CUT else PUBLISHED_RECORDS_MAX
    if header.count > records_max:
        return f"{header.count} records exceed {records_max}"
    if header.flags & Flags.ZSTD:
        return "" if header.body_size < header.raw_size else "compression made it no smaller"
    return "" if header.body_size == header.raw_size else "its two body sizes differ"
