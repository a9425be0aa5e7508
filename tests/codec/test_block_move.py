"""A sequencer gives a block its position without touching its body."""

import pytest

from millrace.codec.blocks import draft, move, parse, place, records, verify
from millrace.errors import UsageError
from millrace.lsn import lsn_of
from millrace.types import FIRST_LSN, LSN_MAX, Block, Epoch, LogId, Lsn, Token

LOG = LogId(7)
TOKEN = Token(3, 4)
THERE = lsn_of(Epoch(5), 17)


def placed() -> Block:
    made = draft([b"one", b"two"], timestamps_us=[10, 20], keys=[b"k", None])
    return place(made, LOG, Epoch(0), FIRST_LSN, TOKEN)


def test_a_moved_block_is_whole_and_keeps_records_and_writer() -> None:
    block = move(placed(), Epoch(5), THERE)
    verify(block)
    assert (block.first, block.last, block.epoch, block.token) == (THERE, THERE + 1, 5, TOKEN)
    assert [record.value for record in records(block)] == [b"one", b"two"]


def test_memory_of_its_own_is_written_where_it_lies() -> None:
    memory = bytearray(placed().data)
    moved = move(parse(memoryview(memory)), Epoch(5), THERE)
    assert isinstance(moved.data, memoryview) and moved.data.obj is memory
    verify(moved)


@pytest.mark.parametrize("wrap", [bytes, bytearray, lambda data: memoryview(bytes(data))])
def test_anything_else_is_left_as_it_was(wrap: type) -> None:
    data = wrap(placed().data)
    before = bytes(data)
    move(parse(data), Epoch(5), THERE)
    assert bytes(data) == before


def test_a_position_outside_of_the_log_is_refused() -> None:
    with pytest.raises(UsageError, match="outside"):
        move(placed(), Epoch(5), Lsn(LSN_MAX))
