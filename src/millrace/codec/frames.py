"""A frame: one message on the wire, and the blocks it carries.

    header (24 bytes, little-endian)
       0  u32  magic          0x4352_4C4D, the bytes "MLRC"
       4  u32  checksum       crc32c of everything behind it, up to the end of the meta
       8  u8   version        of the protocol
       9  u8   flags          1: this frame is an answer
      10  u16  reserved       0
      12  u32  request id     0: one-way, nobody answers
      16  u32  meta size
      20  u32  payload size
    meta                      the message, a tagged MessagePack array
    payload                   the blocks of the message, back to back

The checksum stands in front of what it covers, so that it is made in one call.  It does not
cover the payload: a block has checksums of its own, made by the client that wrote it (L9), and
they are verified here, before anybody sees the block.  In the meta a block is only its size; the
bytes are never copied, neither on their way out nor on their way in.

  I1  Bytes that are not a well-formed frame raise ProtocolError, a damaged block CorruptBlock;
      nothing else is ever raised by `parse_frame_header` and `decode`.
  I2  A header is refused for its sizes before anything of that size is allocated.
  I3  The blocks of a message tile its payload: no byte is left over, none is used twice.
  I4  Cut blocks travel on read streams: any other message that carries one is refused, so none
      can be taken for the block that it was cut from.
  I5  Encoding is deterministic: `tests/golden/messages` pins the bytes of every message.
  I6  A block that travels with a position of its own (`Blocks.firsts`) is seen there alone.
"""

import struct
import threading
from functools import reduce
from operator import or_
from typing import Any, Final

import google_crc32c
import msgspec

from millrace.codec import blocks
from millrace.core import messages
from millrace.core.commit.record import log_of_stream
from millrace.core.messages import Message
from millrace.errors import MessageTooLarge, ProtocolError
from millrace.limits import FRAME_META_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX
from millrace.types import FIRST_LSN, LSN_MAX, Block, Buffer

PROTOCOL_VERSION: Final = 2
FRAME_MAGIC: Final = int.from_bytes(b"MLRC", "little")
FLAG_ANSWER: Final = 1
REQUEST_ID_MAX: Final = 2**32 - 1

_HEADER: Final = struct.Struct("<IIBBHIII")
_MAGIC_AND_CHECKSUM: Final = struct.Struct("<II")
_COVERED: Final = struct.Struct("<BBHIII")
FRAME_HEADER_BYTES: Final = _HEADER.size
_COVERED_FROM: Final = _MAGIC_AND_CHECKSUM.size


class UnknownVersion(ProtocolError):
    """The peer speaks another version of the protocol."""


class FrameHeader(msgspec.Struct, frozen=True):
    """A header whose sizes are within the limits; the checksum is verified with the meta."""

    request_id: int
    is_answer: bool
    meta_size: int
    payload_size: int
    checksum: int
    covered: bytes  # The part of the header that the checksum covers.

    @property
    def body_size(self) -> int:
        return self.meta_size + self.payload_size


def message_types() -> tuple[type[Message], ...]:
    """Every message there is, in the order of `core/messages/`."""
    return tuple(
        found
        for found in vars(messages).values()
        if isinstance(found, type) and issubclass(found, Message) and found is not Message
    )


def encode(message: Message, request_id: int = 0, is_answer: bool = False) -> list[Buffer]:
    """The frame as buffers to send in order: header and meta, then the data of each block."""
    writer = _codec.writer
    buffers: list[Buffer] = [b""]
    writer.buffers = buffers
    try:
        meta = writer.encoder.encode(message)
    finally:
        writer.buffers = []
    meta_size = len(meta)
    payload_size = sum(map(len, buffers))
    if meta_size > FRAME_META_BYTES_MAX or payload_size > FRAME_PAYLOAD_BYTES_MAX:
        raise MessageTooLarge(
            f"{type(message).__name__} is too large to send: {meta_size} bytes "
            f"and {payload_size} bytes of blocks"
        )
    flags = FLAG_ANSWER if is_answer else 0
    covered = _COVERED.pack(PROTOCOL_VERSION, flags, 0, request_id, meta_size, payload_size) + meta
    buffers[0] = _MAGIC_AND_CHECKSUM.pack(FRAME_MAGIC, google_crc32c.value(covered)) + covered
    return buffers


def parse_frame_header(data: Buffer, start: int = 0) -> FrameHeader:
    """The header that begins at `start` of `data`.  Keeps I2."""
    end = start + FRAME_HEADER_BYTES
    if len(data) < end:
        raise ProtocolError(f"a frame header cut off after {len(data) - start} bytes")
    magic, checksum, version, flags, reserved, request_id, meta_size, payload_size = (
        _HEADER.unpack_from(data, start)
    )
    if magic != FRAME_MAGIC:
        raise ProtocolError(f"not a frame: it begins with {bytes(data[start : start + 4]).hex()}")
    if version != PROTOCOL_VERSION:
        raise UnknownVersion(
            f"the peer speaks version {version} of the protocol, this side {PROTOCOL_VERSION}"
        )
    if flags & ~FLAG_ANSWER or reserved:
        raise ProtocolError(f"unknown frame flags {flags:#x}, {reserved:#x}")
    if meta_size > FRAME_META_BYTES_MAX:
        raise ProtocolError(f"a message of {meta_size} bytes; {FRAME_META_BYTES_MAX} are allowed")
    if payload_size > FRAME_PAYLOAD_BYTES_MAX:
        raise ProtocolError(f"{payload_size} bytes of blocks; {FRAME_PAYLOAD_BYTES_MAX} allowed")
    if flags and not request_id:
        raise ProtocolError("an answer to no request")
    covered = bytes(data[start + _COVERED_FROM : end])
    return FrameHeader(request_id, flags != 0, meta_size, payload_size, checksum, covered)


def decode(header: FrameHeader, body: memoryview) -> Message:
    """The message whose meta and payload are `body`; its blocks are slices of `body`."""
    meta_size, payload_size = header.meta_size, header.payload_size
    if len(body) != meta_size + payload_size:
        raise ProtocolError(f"a frame body of {len(body)} bytes instead of {header.body_size}")
    # A copy, because the checksum wants bytes.  The meta is small: the data are in the payload.
    meta = bytes(body[:meta_size])
    if google_crc32c.extend(google_crc32c.value(header.covered), meta) != header.checksum:
        raise ProtocolError("a frame whose checksum does not match")
    reader = _codec.reader
    if payload_size:  # Else it stays at rest, and any block finds no bytes.
        reader.begin(body[meta_size:])
    try:
        message: Message = reader.decoder.decode(meta)
        unused_bytes = payload_size - reader.used_bytes
        has_cut = reader.has_cut
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message that cannot be understood: {error}") from error
    finally:
        if payload_size:
            reader.begin(_NOTHING)
    if unused_bytes:
        raise ProtocolError(f"{unused_bytes} bytes behind the blocks of {type(message).__name__}")
    if has_cut and type(message) is not messages.Blocks:
        raise ProtocolError(f"{type(message).__name__} carries a block cut for a reader")
    if type(message) is messages.Blocks and message.firsts:
        return _in_commit_log(message)
    return message


def _in_commit_log(message: messages.Blocks) -> messages.Blocks:
    """Keeps I6."""
    if len(message.firsts) != len(message.blocks):
        raise ProtocolError(f"{len(message.blocks)} blocks at {len(message.firsts)} positions")
    seen: list[Block] = []
    for block, first in zip(message.blocks, message.firsts, strict=True):
        if not FIRST_LSN <= first <= LSN_MAX - block.count:
            raise ProtocolError(f"{block!r} cannot lie at {first} of a commit log")
        seen.append(blocks.seen_at(block, log_of_stream(block.log), first))
    return msgspec.structs.replace(message, blocks=tuple(seen))


_NOTHING: Final = memoryview(b"")


class _Writer:
    """Encodes messages; gathers the data of their blocks in `buffers`."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.encoder = msgspec.msgpack.Encoder(enc_hook=self._put_block)

    def _put_block(self, value: Any) -> int:
        if not isinstance(value, Block):
            raise NotImplementedError(f"{type(value).__name__} cannot be sent")
        self.buffers.append(value.data)
        return len(value.data)


class _Reader:
    """Decodes messages; their blocks are taken from `payload` one behind the other."""

    def __init__(self) -> None:
        self.begin(_NOTHING)
        union = reduce(or_, message_types())
        self.decoder = msgspec.msgpack.Decoder(union, dec_hook=self._take_block)

    def begin(self, payload: memoryview) -> None:
        self.payload = payload
        self.used_bytes = 0
        self.has_cut = False

    def _take_block(self, kind: type, value: Any) -> Block:
        if kind is not Block or type(value) is not int:
            raise ProtocolError(f"a {type(value).__name__} where the size of a block belongs")
        end = self.used_bytes + value
        if value <= 0 or end > len(self.payload):
            raise ProtocolError(f"a block of {value} bytes does not fit in the payload")
        data = self.payload[self.used_bytes : end]
        self.used_bytes = end
        block = blocks.parse(data)
        self.has_cut |= block.is_cut
        return block


class _Codec(threading.local):
    """One writer and one reader per thread: both hold the blocks of the message at hand."""

    def __init__(self) -> None:
        self.writer = _Writer()
        self.reader = _Reader()


_codec: Final = _Codec()
