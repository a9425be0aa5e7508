"""Frames: what is written is read, the bytes are pinned, bad bytes are refused with a reason."""

import struct

import google_crc32c
import msgspec
import pytest
from message_samples import (
    GOLDEN,
    REQUEST_ID,
    comparable,
    golden_path,
    golden_text,
    sample,
)

from millrace.codec import blocks, frames
from millrace.core.messages import Blocks, Found, Goodbye, Message, MetaSet, Next, Ping
from millrace.errors import CorruptBlock, MessageTooLarge, ProtocolError
from millrace.limits import FRAME_META_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, MIB
from millrace.types import Epoch, LogId, Lsn, Token

KINDS = frames.message_types()
NAMES = [kind.__name__ for kind in KINDS]


def block_of(value: bytes, first: int = 1) -> "blocks.Block":
    draft = blocks.draft([value], timestamps_us=1, compress=False)
    return blocks.place(draft, LogId(7), Epoch(2), Lsn(first), Token(1, 2))


def joined(message: Message, request_id: int = 0, is_answer: bool = False) -> bytes:
    return b"".join(frames.encode(message, request_id, is_answer))


def read(data: bytes) -> Message:
    header = frames.parse_frame_header(data)
    return frames.decode(header, memoryview(data)[frames.FRAME_HEADER_BYTES :])


def frame_of(meta: bytes, payload: bytes = b"") -> bytes:
    """A frame with a right checksum around any meta."""
    covered = struct.pack("<BBHIII", frames.PROTOCOL_VERSION, 0, 0, 0, len(meta), len(payload))
    checksum = google_crc32c.value(covered + meta)
    return struct.pack("<II", frames.FRAME_MAGIC, checksum) + covered + meta + payload


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_message_comes_back_as_it_was(kind: type[Message]) -> None:
    message = sample(kind)
    data = joined(message, REQUEST_ID, is_answer=True)
    header = frames.parse_frame_header(data)
    assert (header.request_id, header.is_answer) == (REQUEST_ID, True)
    assert comparable(read(data)) == comparable(message)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_the_bytes_of_every_message_are_pinned(kind: type[Message]) -> None:
    assert golden_path(kind).exists(), (
        "a new message: run python tests/codec/message_samples.py --rewrite"
    )
    assert golden_text(kind) == golden_path(kind).read_text()


def test_there_is_no_golden_file_of_a_message_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(NAMES)


def test_blocks_travel_uncopied_in_both_directions() -> None:
    first, second = block_of(b"a" * 1000, 1), block_of(b"b" * 50, 2)
    buffers = frames.encode(Blocks(1, 1, (first, second)))
    assert buffers[1] is first.data and buffers[2] is second.data
    data = bytearray(b"".join(buffers))
    message = read(data)  # type: ignore[arg-type]
    assert isinstance(message, Blocks)
    assert [bytes(block.data) for block in message.blocks] == [first.data, second.data]
    for block in message.blocks:
        assert isinstance(block.data, memoryview) and block.data.obj is data


def test_a_field_added_by_a_newer_version_is_ignored() -> None:
    assert read(frame_of(msgspec.msgpack.encode(["Goodbye", "a", "b", ["new"]]))) == (
        Goodbye("a", "b")
    )


def test_a_field_with_a_default_may_be_missing() -> None:
    assert read(frame_of(msgspec.msgpack.encode(["Goodbye", "a"]))) == Goodbye("a", "")


def test_a_message_too_large_to_send_is_the_senders_error() -> None:
    with pytest.raises(MessageTooLarge, match="MetaSet"):
        frames.encode(MetaSet("key", bytes(FRAME_META_BYTES_MAX), 0))
    half = block_of(bytes(15 * MIB))
    with pytest.raises(MessageTooLarge, match="Blocks"):
        frames.encode(Blocks(1, 1, (half, half, half)))


GOOD = joined(Next(LogId(1), Epoch(2), 3), 9)
FOUND = joined(Found(block_of(b"value")))


def with_u32(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


BAD_HEADERS = {
    "empty": (b"", "cut off"),
    "short": (GOOD[:23], "cut off"),
    "magic": (b"HTTP" + GOOD[4:], "not a frame"),
    "version": (GOOD[:8] + b"\x03" + GOOD[9:], "version 3"),
    "flags": (GOOD[:9] + b"\x80" + GOOD[10:], "flags"),
    "reserved": (GOOD[:10] + b"\x01" + GOOD[11:], "flags"),
    "answer-to-nothing": (joined(Ping())[:9] + b"\x01" + joined(Ping())[10:], "no request"),
    "meta-size": (with_u32(GOOD, 16, FRAME_META_BYTES_MAX + 1), "allowed"),
    "payload-size": (with_u32(GOOD, 20, FRAME_PAYLOAD_BYTES_MAX + 1), "allowed"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_bad_header_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        frames.parse_frame_header(data)


encoded = msgspec.msgpack.encode
BAD_BODIES = {
    "checksum": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum"),
    "request-id-flipped": (with_u32(GOOD, 12, 8), "checksum"),
    "body-short": (GOOD[:-1], "instead of"),
    "empty-meta": (frame_of(b""), "understood"),
    "unknown-tag": (frame_of(encoded(["Explode", 1])), "Explode"),
    "untagged": (frame_of(encoded({"a": 1})), "understood"),
    "too-few-fields": (frame_of(encoded(["Next", 1])), "understood"),
    "wrong-type": (frame_of(encoded(["Next", "a", 1, 1])), "understood"),
    "unknown-enum": (frame_of(encoded(["Refused", "whim"])), "whim"),
    "behind-the-message": (frame_of(encoded(["Ping"]) + b"\x00"), "understood"),
    "bad-utf8": (frame_of(b"\x92\xa7Goodbye\xa2\xff\xfe"), "understood"),
    "huge-array-claim": (frame_of(b"\x94\xa6Blocks\x01\x01\xdd\xff\xff\xff\xff"), "understood"),
    "nested-too-deep": (frame_of(b"\x92\xa4Ping" + b"\x91" * 100_000), "understood"),
    "payload-not-used": (frame_of(encoded(["Ping"]), b"abc"), "3 bytes behind"),
    "block-missing": (frame_of(encoded(["Found", 128])), "does not fit"),
    "block-of-nothing": (frame_of(encoded(["Found", 0])), "does not fit"),
    "block-negative": (frame_of(encoded(["Found", -5]), b"abcde"), "does not fit"),
    "block-not-a-size": (frame_of(encoded(["Found", "x"]), b"abc"), "size of a block"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_body_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read(data)


def test_a_damaged_block_is_told_from_a_damaged_frame() -> None:
    with pytest.raises(CorruptBlock):
        read(FOUND[:-1] + bytes([FOUND[-1] ^ 1]))


def test_an_error_leaves_nothing_behind_for_the_next_frame() -> None:
    with pytest.raises(ProtocolError):
        read(frame_of(encoded(["Ping"]), b"abc"))
    assert read(joined(Ping())) == Ping()
    assert isinstance(read(FOUND), Found)
