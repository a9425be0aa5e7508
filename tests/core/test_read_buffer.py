"""Blocks in, in any order; blocks out, in order."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.read_buffer import ReadBuffer
from millrace.limits import READ_BUFFER_BLOCKS_MAX
from millrace.types import Lsn
from tests.core.core_samples import block


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.randoms())
def test_any_order_and_repetition_comes_out_in_order(counts: list[int], chance: object) -> None:
    blocks, at = [], 1
    for count in counts:
        blocks.append(block(at, count))
        at += count
    arriving = blocks * 2
    chance.shuffle(arriving)  # type: ignore[attr-defined]
    buffer, next_lsn, delivered = ReadBuffer(), Lsn(1), []
    for one in arriving:
        assert buffer.add(one, next_lsn)
        while (ready := buffer.pop(next_lsn)) is not None:
            delivered.append(ready)
            next_lsn = ready.end
    assert delivered == blocks
    assert len(buffer) == 0


def test_what_is_behind_us_is_dropped_and_what_straddles_us_is_kept() -> None:
    buffer = ReadBuffer()
    assert buffer.add(block(1, 2), Lsn(3))
    assert len(buffer) == 0
    assert buffer.add(block(1, 4), Lsn(3))
    ready = buffer.pop(Lsn(3))
    assert ready is not None
    assert ready.first == 1


def test_it_is_bounded() -> None:
    buffer, one = ReadBuffer(), block(2)
    for first in range(2, READ_BUFFER_BLOCKS_MAX + 2):
        one.first = Lsn(first)
        assert buffer.add(one, Lsn(1))
    one.first = Lsn(READ_BUFFER_BLOCKS_MAX + 2)
    assert not buffer.add(one, Lsn(1))
    buffer.clear()
    assert len(buffer) == 0
    assert buffer.add(one, Lsn(1))
