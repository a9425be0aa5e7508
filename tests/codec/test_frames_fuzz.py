"""Whatever bytes arrive, a frame is either read or refused by one of two errors."""

import struct
import tracemalloc

import google_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from message_samples import comparable, sample

from millrace.codec import frames
from millrace.core.messages import Message
from millrace.errors import CorruptBlock, ProtocolError

SAMPLES = [b"".join(frames.encode(sample(kind), 5)) for kind in frames.message_types()]
EXAMPLES = settings(max_examples=300, deadline=None)


def read(data: bytes) -> Message | None:
    """The message, or None if it was refused.  Any other exception fails the test."""
    try:
        header = frames.parse_frame_header(data)
        return frames.decode(header, memoryview(data)[frames.FRAME_HEADER_BYTES :])
    except (ProtocolError, CorruptBlock):
        return None


def sealed(data: bytes) -> bytes:
    """The same frame with sizes and checksum made right, as a hostile peer would."""
    if len(data) < frames.FRAME_HEADER_BYTES:
        return data
    meta_size = len(data) - frames.FRAME_HEADER_BYTES
    covered = data[8:16] + struct.pack("<II", meta_size, 0) + data[24:]
    return data[:4] + struct.pack("<I", google_crc32c.value(covered)) + covered


@EXAMPLES
@given(st.sampled_from(SAMPLES), st.data())
def test_a_truncated_frame_is_refused(frame: bytes, data: st.DataObject) -> None:
    assert read(frame[: data.draw(st.integers(0, len(frame) - 1))]) is None


@EXAMPLES
@given(st.sampled_from(SAMPLES), st.data())
def test_a_flipped_bit_is_noticed(frame: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    assert read(bytes(flipped)) is None


@EXAMPLES
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert read(data) is None


@EXAMPLES
@given(st.sampled_from(SAMPLES), st.binary(min_size=1, max_size=8), st.data())
def test_a_forged_frame_is_read_or_refused(frame: bytes, new: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(frames.FRAME_HEADER_BYTES, len(frame) - 1))
    tracemalloc.start()
    message = read(sealed(frame[:at] + new + frame[at + len(new) :]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    if message is not None:
        again = b"".join(frames.encode(message))
        assert comparable(read(again)) == comparable(message)


@EXAMPLES
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_claimed_sizes_are_never_believed(meta_size: int, payload_size: int) -> None:
    frame = SAMPLES[0]
    claim = frame[:16] + struct.pack("<II", meta_size, payload_size) + frame[24:]
    if claim != frame:
        assert read(claim) is None
