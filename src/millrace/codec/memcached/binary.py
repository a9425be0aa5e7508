"""Frames of memcached's binary protocol.

    header (24 bytes, big-endian)
       0  u8   magic
       1  u8   opcode
       2  u16  key size           framed: u8 size of the framing extras, u8 key size
       4  u8   extras size
       5  u8   datatype
       6  u16  partition          of a response: status
       8  u32  body size          framing extras, extras, key and value together
      12  u32  opaque             comes back with the answer
      16  u64  cas
    body                          framing extras, extras, key, value

A decoder is fed whatever arrived and gives back what is whole by then.  What cannot be served is
a value too (`Refused`), because requests before it on the same connection are answered first.

  I1  Any bytes whatever give frames, a Refused, or nothing yet; no exception.
  I2  After a fatal Refused nothing is decoded any more: the connection is to be answered and
      closed.  Which are fatal is as in memcached: it knows no more where the next request begins,
      or a client that errs so has lost its mind.
  I3  A decoder holds at most one frame (`body_bytes_max`) and what arrived with its end.  A body
      above that is refused at once and read past, to DOCUMENT_SKIP_BYTES_MAX.
  I4  The shape of a request (extras, key, value) is right when a Request is handed out.
"""

from struct import Struct
from typing import Final

import msgspec

from millrace.codec.memcached.opcodes import (
    SHAPED,
    SHAPES,
    STATUS_TEXT,
    DurabilityLevel,
    Magic,
    Status,
    shape_of,
)
from millrace.limits import (
    DOCUMENT_FRAME_BYTES_MAX,
    DOCUMENT_KEY_BYTES_MAX,
    DOCUMENT_SKIP_BYTES_MAX,
)

HEADER: Final = Struct(">BBHBBHIIQ")
HEADER_BYTES: Final = HEADER.size
FLAGS: Final = Struct(">I")  # Extras of a response to get.
FLAGS_AND_EXPIRY: Final = Struct(">II")  # Extras of set, add, replace.
COUNTER: Final = Struct(">QQI")  # Extras of increment, decrement: delta, initial, expiry.
META: Final = Struct(">IIQQ")  # Extras of those with meta: flags, expiry, revision, CAS.
EXPIRY: Final = Struct(">I")  # Extras of touch, get-and-touch, flush.
NUMBER: Final = Struct(">Q")  # Value of a response to increment, decrement.

_UNPACK: Final = HEADER.unpack_from
_PACK: Final = HEADER.pack
_PACK_GOT: Final = Struct(">BBHBBHIIQI").pack
_REQUEST: Final = int(Magic.REQUEST)
_RESPONSE: Final = int(Magic.RESPONSE)
_FRAMED: Final = (int(Magic.FRAMED_REQUEST), int(Magic.FRAMED_RESPONSE))
_RESPONSES: Final = (int(Magic.RESPONSE), int(Magic.FRAMED_RESPONSE))
_MAGICS: Final = frozenset(int(magic) for magic in Magic)
_LEVELS: Final = {int(level): level for level in DurabilityLevel}
_TIMEOUT_MS_MAX: Final = 0xFFFF
_KEY_BYTES_MAX: Final = DOCUMENT_KEY_BYTES_MAX

_FRAME_BARRIER: Final = 0  # Of requests carried out of order; here they never are.
_FRAME_DURABILITY: Final = 1
_NIBBLE_ESCAPE: Final = 15


class Durability(msgspec.Struct, frozen=True, gc=False):
    """What a mutation asks to be true before it is answered; no timeout: the server's own."""

    level: DurabilityLevel
    timeout_ms: int | None = None


class Request(msgspec.Struct, gc=False):
    """`opcode` is a number that need not be an Opcode."""

    opcode: int
    partition: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes
    datatype: int = 0
    durability: Durability | None = None

    @property
    def size(self) -> int:
        """Its bytes on the wire: what flow control counts, framing extras left out."""
        return HEADER_BYTES + len(self.extras) + len(self.key) + len(self.value)


class Response(msgspec.Struct, gc=False):
    opcode: int
    status: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes
    datatype: int = 0


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A frame that cannot be served.  Answer it (`encode_refused`), and close if it is fatal."""

    opcode: int
    opaque: int
    status: Status
    is_fatal: bool
    detail: str
    is_silent: bool = False  # It is no request: there is nothing to answer.


Frame = Request | Response | Refused
_Header = tuple[int, int, int, int, int, int, int, int, int]


class FrameDecoder:
    """One direction of a connection.  A client takes answers; so does a server on a connection
    that streams, where it asks and the consumer answers (`takes_answers` may be set later)."""

    __slots__ = (
        "_body_bytes_max",
        "_held",
        "_skip_bytes",
        "_wanted_bytes",
        "is_over",
        "takes_answers",
    )

    def __init__(
        self, body_bytes_max: int = DOCUMENT_FRAME_BYTES_MAX, *, takes_answers: bool = False
    ) -> None:
        self.takes_answers = takes_answers
        self.is_over = False  # A fatal one was given out.
        self._body_bytes_max = body_bytes_max
        self._held = bytearray()  # Of the frame that is not whole yet.
        self._wanted_bytes = 0  # Before so much is held there is nothing to decode.
        self._skip_bytes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> list[Frame]:
        """What is whole now, in order."""
        if self.is_over:
            return []
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if self._held:
            self._held += data
            if len(self._held) < self._wanted_bytes:
                return []
            data = bytes(self._held)
            self._held = bytearray()
        return self._read(data)

    def _read(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        at, end, body_bytes_max = 0, len(data), self._body_bytes_max
        self._wanted_bytes = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            header: _Header = _UNPACK(data, at)
            magic, opcode, key_size, extras_size, datatype, partition, body_size, opaque, cas = (
                header
            )
            body = at + HEADER_BYTES
            key = body + extras_size
            value = key + key_size
            stop = body + body_size
            shape = opcode << 10 | extras_size << 2 | (key_size > 0) << 1 | (value < stop)
            is_plain = (
                magic == _REQUEST
                and value <= stop
                and key_size <= _KEY_BYTES_MAX
                and body_size <= body_bytes_max
                and (shape in SHAPES or opcode not in SHAPED)
            )
            if not is_plain and (refused := self._refuse(header)) is not None:
                frames.append(refused)
                if refused.is_fatal:
                    self.is_over = True
                    return frames
                self._skip_bytes = max(0, stop - end)
            elif stop > end:
                self._wanted_bytes = stop - at
                break
            elif is_plain:
                frames.append(
                    Request(
                        opcode,
                        partition,
                        opaque,
                        cas,
                        data[body:key],
                        data[key:value],
                        data[value:stop],
                        datatype,
                    )
                )
            else:
                frames.append(_read_unusual(header, data[body:stop]))
            at = stop
        if at < end:
            self._held += data[at:] if at else data
        return frames

    def _refuse(self, header: _Header) -> Refused | None:
        """What the header alone shows to be wrong."""
        magic, opcode, _, extras_size, _, _, body_size, opaque, _ = header
        is_answer = magic in _RESPONSES
        if magic not in _MAGICS or (is_answer and not self.takes_answers):
            detail = f"a frame that begins with {magic:#04x}"
            return Refused(opcode, opaque, Status.INVALID_ARGUMENTS, True, detail, True)
        framing_size, key_size = _key_sizes(header)
        before_value = framing_size + extras_size + key_size
        status, is_fatal = Status.INVALID_ARGUMENTS, True
        if before_value > body_size:
            status = Status.UNKNOWN_COMMAND  # The word that memcached has for it.
            detail = f"{before_value} bytes of extras and key in a body of {body_size}"
        elif body_size > self._body_bytes_max:
            status, is_fatal = Status.TOO_LARGE, is_answer or body_size > DOCUMENT_SKIP_BYTES_MAX
            detail = f"a body of {body_size} bytes; {self._body_bytes_max} are allowed"
        elif is_answer:
            return None
        elif key_size > _KEY_BYTES_MAX:
            detail = f"a key of {key_size} bytes; {_KEY_BYTES_MAX} are allowed"
        elif opcode in SHAPED and (
            shape_of(opcode, extras_size, key_size > 0, before_value < body_size) not in SHAPES
        ):
            detail = f"opcode {opcode:#04x} with {extras_size} bytes of extras, {key_size} of key"
        else:
            return None
        return Refused(opcode, opaque, status, is_fatal, detail, is_answer)


def _key_sizes(header: _Header) -> tuple[int, int]:
    """Of the framing extras, and of the key."""
    magic, both = header[0], header[2]
    return (both >> 8, both & 0xFF) if magic in _FRAMED else (0, both)


def _read_unusual(header: _Header, body: bytes) -> Frame:
    """A response, or a frame with framing extras; its sizes are known to be right."""
    magic, opcode, _, extras_size, datatype, place, _, opaque, cas = header
    framing, key_size = _key_sizes(header)
    key = framing + extras_size
    value = key + key_size
    parts = (body[framing:key], body[key:value], body[value:])
    if magic in _RESPONSES:
        return Response(opcode, place, opaque, cas, *parts, datatype)
    durability = _read_framing(body[:framing])
    if isinstance(durability, Status):
        detail = f"framing extras {body[:framing].hex()}"
        return Refused(opcode, opaque, durability, False, detail)
    return Request(opcode, place, opaque, cas, *parts, datatype, durability)


def _read_framing(framing: bytes) -> Durability | Status | None:
    """Frame infos: a nibble of id, a nibble of size, each with one byte more when it is 15."""
    durability: Durability | None = None
    at = 0
    while at < len(framing):
        id, size = framing[at] >> 4, framing[at] & 0xF
        at += 1
        if (id == _NIBBLE_ESCAPE) + (size == _NIBBLE_ESCAPE) > len(framing) - at:
            return Status.INVALID_ARGUMENTS
        if id == _NIBBLE_ESCAPE:
            id, at = id + framing[at], at + 1
        if size == _NIBBLE_ESCAPE:
            size, at = size + framing[at], at + 1
        content = framing[at : at + size]
        at += size
        if len(content) < size:
            return Status.INVALID_ARGUMENTS
        if id == _FRAME_DURABILITY:
            found = _read_durability(content)
            if isinstance(found, Status):
                return found
            durability = found
        elif id != _FRAME_BARRIER:
            return Status.UNKNOWN_FRAME_INFO
    return durability


def _read_durability(content: bytes) -> Durability | Status:
    if len(content) not in (1, 3):
        return Status.INVALID_ARGUMENTS
    if content[0] not in _LEVELS:
        return Status.DURABILITY_INVALID_LEVEL
    timeout_ms = int.from_bytes(content[1:], "big")
    return Durability(_LEVELS[content[0]], timeout_ms or None)


def encode_request(
    opcode: int,
    key: bytes = b"",
    value: bytes = b"",
    extras: bytes = b"",
    *,
    partition: int = 0,
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
    durability: Durability | None = None,
) -> bytes:
    key_size, extras_size = len(key), len(extras)
    size = extras_size + key_size + len(value)
    if durability is None:
        header = _PACK(
            _REQUEST, opcode, key_size, extras_size, datatype, partition, size, opaque, cas
        )
        return b"".join((header, extras, key, value))
    framing = _encode_durability(durability)
    sizes = len(framing) << 8 | key_size
    size += len(framing)
    magic = Magic.FRAMED_REQUEST
    header = _PACK(magic, opcode, sizes, extras_size, datatype, partition, size, opaque, cas)
    return b"".join((header, framing, extras, key, value))


def _encode_durability(durability: Durability) -> bytes:
    if durability.timeout_ms is None:
        return bytes((_FRAME_DURABILITY << 4 | 1, durability.level))
    timeout_ms = min(max(durability.timeout_ms, 1), _TIMEOUT_MS_MAX)
    return bytes((_FRAME_DURABILITY << 4 | 3, durability.level)) + timeout_ms.to_bytes(2, "big")


def encode_response(
    opcode: int,
    status: int,
    opaque: int,
    cas: int = 0,
    value: bytes = b"",
    extras: bytes = b"",
    key: bytes = b"",
    datatype: int = 0,
) -> bytes:
    key_size, extras_size = len(key), len(extras)
    size = extras_size + key_size + len(value)
    header = _PACK(_RESPONSE, opcode, key_size, extras_size, datatype, status, size, opaque, cas)
    return b"".join((header, extras, key, value)) if size else header


def encode_got(
    opcode: int,
    opaque: int,
    cas: int,
    flags: int,
    value: bytes,
    key: bytes = b"",
    datatype: int = 0,
) -> bytes:
    """The answer to a get that found something; `key` is for those that want it back."""
    key_size = len(key)
    size = 4 + key_size + len(value)
    header = _PACK_GOT(_RESPONSE, opcode, key_size, 4, datatype, 0, size, opaque, cas, flags)
    return header + value if not key_size else b"".join((header, key, value))


def encode_error(opcode: int, status: int, opaque: int, cas: int = 0) -> bytes:
    """With the text that people read in packet captures."""
    text = STATUS_TEXT[status]
    return _PACK(_RESPONSE, opcode, 0, 0, 0, status, len(text), opaque, cas) + text


def encode_refused(refused: Refused) -> bytes:
    """Nothing when who sent it cannot be supposed to understand an answer."""
    if refused.is_silent:
        return b""
    return encode_error(refused.opcode, refused.status, refused.opaque)
