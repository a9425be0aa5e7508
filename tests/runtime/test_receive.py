"""Cutting bytes into frames: however the network cuts them, the same messages come out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopback import block_of
from millrace.codec import frames
from millrace.core.messages import Blocks, Message, MetaSet, Ping
from millrace.errors import ProtocolError
from millrace.runtime.receive import HELD_BYTES_MAX, PAYLOAD_ALIGNMENT, SCRATCH_BYTES, FrameReceiver

SIZES = [0, 1, 100, HELD_BYTES_MAX - 200, HELD_BYTES_MAX, 70_000, SCRATCH_BYTES, 700_000]


class Stream:
    """Feeds bytes to a receiver as a socket would, `cuts` bytes at a time."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[ProtocolError] = []
        self.receiver = FrameReceiver(self._deliver, self._refuse)

    def _deliver(self, header: frames.FrameHeader, body: memoryview) -> None:
        self.messages.append(frames.decode(header, body))

    def _refuse(self, error: ProtocolError) -> None:
        self.errors.append(error)
        self.receiver.discard()

    def feed(self, data: bytes, cuts: list[int]) -> None:
        position, turn = 0, 0
        while position < len(data):
            buffer = self.receiver.next_buffer()
            assert len(buffer) > 0
            size = min(len(buffer), cuts[turn % len(cuts)], len(data) - position)
            buffer[:size] = data[position : position + size]
            self.receiver.received(size)
            position += size
            turn += 1


def message_of(size: int) -> Message:
    return Ping() if size == 0 else Blocks(size, 1, (block_of(size), block_of(3)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(SIZES), min_size=1, max_size=8),
    st.lists(st.sampled_from([1, 7, 23, 24, 25, 4096, 65_536, 10**9]), min_size=1, max_size=4),
)
def test_any_cut_gives_the_same_messages(sizes: list[int], cuts: list[int]) -> None:
    if sum(sizes) > 100_000:
        cuts = [max(cut, 4096) for cut in cuts]
    stream = Stream()
    sent = [message_of(size) for size in sizes]
    stream.feed(b"".join(b"".join(frames.encode(message)) for message in sent), cuts)
    assert not stream.errors
    assert len(stream.messages) == len(sent)
    for found, wanted in zip(stream.messages, sent, strict=True):
        assert type(found) is type(wanted)
        if isinstance(found, Blocks) and isinstance(wanted, Blocks):
            assert [b.data for b in found.blocks] == [b.data for b in wanted.blocks]


def test_two_connections_may_share_the_scratch_buffer() -> None:
    one, other = Stream(), Stream()
    first = b"".join(frames.encode(MetaSet("one", b"1" * 500, 0)))
    second = b"".join(frames.encode(MetaSet("two", b"2" * 500, 0)))
    for at in range(0, len(first), 50):
        one.feed(first[at : at + 50], [50])
        other.feed(second[at : at + 50], [50])
    assert one.messages == [MetaSet("one", b"1" * 500, 0)]
    assert other.messages == [MetaSet("two", b"2" * 500, 0)]


def test_a_kept_block_is_not_overwritten_by_what_comes_later() -> None:
    stream = Stream()
    small = Blocks(1, 1, (block_of(100),))
    stream.feed(b"".join(frames.encode(small)), [10**9])
    stream.feed(b"".join(frames.encode(MetaSet("k", b"\xff" * 9_000, 0))), [10**9])
    kept = stream.messages[0]
    assert isinstance(kept, Blocks)
    assert kept.blocks[0].data == small.blocks[0].data


@pytest.mark.parametrize("size", [100, 500_000])
def test_the_payload_lies_at_an_aligned_address(size: int) -> None:
    import pyarrow as pa

    stream = Stream()
    stream.feed(b"".join(frames.encode(Blocks(1, 1, (block_of(size),)))), [10**9])
    message = stream.messages[0]
    assert isinstance(message, Blocks)
    alignment = PAYLOAD_ALIGNMENT if size > SCRATCH_BYTES else 8
    assert pa.py_buffer(message.blocks[0].data).address % alignment == 0


def test_nothing_is_delivered_behind_garbage() -> None:
    stream = Stream()
    ping = b"".join(frames.encode(Ping()))
    stream.feed(ping + b"garbage" * 10 + ping, [10**9])
    stream.feed(ping, [10**9])
    assert stream.messages == [Ping()]
    assert len(stream.errors) == 1
