"""Whatever bytes arrive in whatever pieces: frames, a refusal, or nothing yet.  Any exception
other than those that are promised fails these tests."""

import struct
import tracemalloc
from contextlib import suppress

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memcached_samples import ANSWERS, DOCUMENTS, MESSAGES, PUSHES, REVISIONS

from millrace.codec.memcached import columns, multi, observing, pushes, revisions, streams
from millrace.codec.memcached.binary import (
    Durability,
    Frame,
    FrameDecoder,
    Refused,
    Request,
    encode_refused,
    encode_request,
)
from millrace.codec.memcached.opcodes import DurabilityLevel, Opcode
from millrace.codec.memcached.pushes import BadMessage
from millrace.codec.memcached.text import TextDecoder
from millrace.codec.memcached.text_commands import Command
from millrace.errors import ProtocolError

EXAMPLES = settings(max_examples=300, deadline=None)
BODY_BYTES_MAX = 4096
FRAMES = [
    encode_request(Opcode.GET, b"key", opaque=1),
    encode_request(Opcode.SET, b"key", b"value", bytes(8), cas=7),
    encode_request(Opcode.SETQ, b"key", bytes(BODY_BYTES_MAX), bytes(8)),
    encode_request(Opcode.INCREMENT, b"n", extras=bytes(20)),
    encode_request(Opcode.SET_WITH_META, b"k", b"v", bytes(24)),
    encode_request(Opcode.DELETE_WITH_META, b"k", extras=bytes(24)),
    encode_request(Opcode.DELETE, b"k", durability=Durability(DurabilityLevel.MAJORITY, 9)),
    *(streams.encode_message(message, 3) for message in MESSAGES),
    *(streams.encode_answer(answer, 0x53, 4) for _, answer in ANSWERS),
    *(frame for push in PUSHES for frame in pushes.encode_push(push, 5)),
    *(frame for push in PUSHES for frame in pushes.encode_push(push, 5, is_batched=True)),
]
LINES = [
    b"get a b c\r\n",
    b"set k 0 0 5\r\nvalue\r\n",
    b"cas k 1 -1 0 9 noreply\r\n\r\n",
    b"set k 0 0 99999\r\n" + b"x" * 5000,
    b"incr n 1\r\n",
    b"gat 1 a\r\n",
    b"quit\r\n",
    b"y" * 3000,
]


def revisions_read(data: bytes) -> revisions.RevisionsRead:
    return revisions.decode_revisions_read(data, [b"a", b"b"])


BODIES = [
    columns.encode_documents(DOCUMENTS),
    columns.encode_keys([b"a", b"bb"]),
    multi.encode_multi_get(multi.MultiGet([1, 2], [b"a", b"b"])),
    multi.encode_multi_got(multi.MultiGot([0], [1], [2], [b"v"])),
    multi.encode_multi_set(multi.MultiSet([1], [b"k"], [b"v"], [0], [0])),
    multi.encode_multi_stored(multi.MultiStored([0, 1], [2, 3])),
    revisions.encode_revisions(revisions.PlacedRevisions([1, 2], REVISIONS)),
    revisions.encode_revisions_read([0, 1], [DOCUMENTS[0], None]),
]
READERS = [
    columns.decode_documents,
    columns.to_arrow,
    columns.decode_keys,
    multi.decode_multi_get,
    multi.decode_multi_got,
    multi.decode_multi_set,
    multi.decode_multi_stored,
    revisions.decode_revisions,
    revisions_read,
]


@st.composite
def damaged(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """A few samples in a row with bytes flipped, put in, or left out."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(samples), min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=4))
    return bytes(data)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def frames_of(pieces: list[bytes]) -> list[Frame]:
    decoder = FrameDecoder(BODY_BYTES_MAX, takes_answers=True)
    frames: list[Frame] = []
    for piece in pieces:
        frames += decoder.feed(piece)
        assert decoder.held_bytes <= BODY_BYTES_MAX + 24
    return frames


def commands_of(pieces: list[bytes]) -> list[Command]:
    decoder = TextDecoder(BODY_BYTES_MAX)
    return [command for piece in pieces for command in decoder.feed(piece)]


def read(frame: Frame) -> None:
    """As both sides of a stream would."""
    if isinstance(frame, Refused):
        encode_refused(frame)
        return
    if isinstance(frame, Request):
        with suppress(BadMessage):
            streams.decode_message(frame)
        with suppress(BadMessage):
            pushes.decode_push(frame)
    else:
        for asked, _ in ANSWERS:
            with suppress(BadMessage):
                streams.decode_answer(frame, asked)


CUTS = st.lists(st.integers(0, 3000), max_size=6)
FRAME_STREAMS = damaged(FRAMES) | st.binary(max_size=200)
LINE_STREAMS = damaged(LINES) | st.binary(max_size=200)


@EXAMPLES
@given(FRAME_STREAMS, CUTS)
def test_frames_do_not_depend_on_how_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    assert frames_of(in_pieces(data, cuts)) == frames_of([data])


@EXAMPLES
@given(FRAME_STREAMS)
def test_every_frame_is_read_or_refused(data: bytes) -> None:
    for frame in frames_of([data]):
        read(frame)


@EXAMPLES
@given(st.sampled_from(FRAMES), st.data())
def test_a_truncated_frame_waits(frame: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(frame) - 1))
    assert not [each for each in frames_of([frame[:size]]) if not isinstance(each, Refused)]


@EXAMPLES
@given(LINE_STREAMS, CUTS)
def test_commands_do_not_depend_on_how_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    assert commands_of(in_pieces(data, cuts)) == commands_of([data])


@EXAMPLES
@given(st.binary(max_size=24), st.integers(0, 255), st.binary(max_size=60), st.binary(max_size=60))
def test_any_extras_of_any_opcode_are_read_or_refused(
    extras: bytes, opcode: int, key: bytes, value: bytes
) -> None:
    read(Request(opcode, 1, 2, 3, extras, key, value))


def sealed(body: bytes) -> bytes:
    return body[:-4] + struct.pack("<I", google_crc32c.value(body[:-4]))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@settings(max_examples=150, deadline=None)
@given(data=damaged(BODIES))
def test_a_forged_body_is_read_or_refused(reader: object, data: bytes) -> None:
    assert callable(reader)
    tracemalloc.start()
    with suppress(ProtocolError):
        reader(sealed(data))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


@EXAMPLES
@given(st.sampled_from(BODIES), st.data())
def test_a_flipped_bit_in_a_body_is_noticed(body: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    flipped = bytearray(body)
    flipped[bit // 8] ^= 1 << bit % 8
    for reader in READERS:
        with pytest.raises(ProtocolError):
            reader(bytes(flipped))


@EXAMPLES
@given(st.binary(max_size=64))
def test_any_small_body_is_read_or_refused(data: bytes) -> None:
    for decode in (
        observing.decode_observe,
        observing.decode_observed,
        observing.decode_seq_wait,
        observing.decode_state_wanted,
        observing.decode_partition_seqs,
        observing.decode_features,
    ):
        with suppress(BadMessage):
            decode(data)
