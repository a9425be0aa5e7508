"""Blocks wait in order, once; what a recovery wrote takes the place of what it found nowhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.reading.buffer import Added, BlockBuffer, Entry, entry_of
from millrace.types import Block, EntryKind, GapKind, Lsn, NodeId
from tests.core.reading.read_cluster import at, block

ONE, TWO = NodeId(1), NodeId(2)


def entry(stored: Block, node: NodeId = ONE) -> Entry:
    return entry_of(stored, stored.end, node, stored.size)


def taken(buffer: BlockBuffer, first: Lsn) -> list[tuple[int, int, str]]:
    """(first, end, what) of all that can be had from `first` on without a break."""
    found = []
    while (part := buffer.take_at(first)) is not None:
        what = "block" if part.gap is None else part.gap.value
        found.append((part.first & 0xFF, part.end & 0xFF, what))
        first = part.end
    return found


def test_blocks_come_out_in_order() -> None:
    buffer = BlockBuffer()
    for stored in (block(at(5), 2), block(at(1), 4), block(at(9))):
        assert buffer.add(entry(stored)) is Added.NEW
    assert taken(buffer, at(1)) == [(1, 5, "block"), (5, 7, "block")]
    assert buffer.first is not None and buffer.first.first == at(9)


def test_another_copy_is_a_duplicate_and_costs_nothing() -> None:
    buffer = BlockBuffer()
    buffer.add(entry(block(at(5), 2)))
    assert buffer.add(entry(block(at(5), 2), TWO)) is Added.DUPLICATE
    assert (buffer.bytes_of(ONE), buffer.bytes_of(TWO), len(buffer)) == (100, 0, 1)


def other(stored: Block) -> Block:
    return Block(
        stored.log,
        stored.first,
        stored.count,
        stored.epoch,
        stored.kind,
        stored.token,
        stored.checksum + 1,
        stored.data,
    )


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(other(block(at(5), 3)), id="other bytes"),
        pytest.param(block(at(5), 2), id="shorter"),
        pytest.param(block(at(7), 3), id="overlaps its end"),
        pytest.param(block(at(4), 2), id="overlaps its begin"),
        pytest.param(block(at(1), 9), id="around it"),
    ],
)
def test_two_blocks_for_one_position_are_a_conflict(second: Block) -> None:
    buffer = BlockBuffer()
    buffer.add(entry(block(at(5), 3)))
    assert buffer.add(entry(second, TWO)) is Added.CONFLICT
    assert taken(buffer, at(5)) == [(5, 8, "block")]


DATA, HOLE, LOSS = EntryKind.DATA, EntryKind.HOLE, EntryKind.LOSS


@pytest.mark.parametrize(
    ("arriving", "expected"),
    [
        pytest.param(
            [(DATA, 5, 3), (HOLE, 5, 3)], [(5, 8, "hole")], id="a recovery found it nowhere"
        ),
        pytest.param([(HOLE, 5, 3), (DATA, 5, 3)], [(5, 8, "hole")], id="in whatever order"),
        pytest.param([(LOSS, 5, 3), (DATA, 5, 3)], [(5, 8, "block")], id="it is found after all"),
        pytest.param(
            [(DATA, 5, 2), (DATA, 7, 1), (HOLE, 5, 3)], [(5, 8, "hole")], id="a hole for two blocks"
        ),
        pytest.param(
            [(DATA, 6, 1), (LOSS, 5, 4)],
            [(5, 6, "dataloss"), (6, 7, "block"), (7, 9, "dataloss")],
            id="a loss around what is found",
        ),
        pytest.param(
            [(LOSS, 5, 4), (DATA, 6, 1)],
            [(5, 6, "dataloss"), (6, 7, "block"), (7, 9, "dataloss")],
            id="what is found in a loss",
        ),
        pytest.param(
            [(HOLE, 5, 2), (HOLE, 6, 3)], [(5, 7, "hole"), (7, 9, "hole")], id="holes that overlap"
        ),
    ],
)
def test_what_stands_where_nodes_differ(
    arriving: list[tuple[EntryKind, int, int]], expected: list[tuple[int, int, str]]
) -> None:
    buffer = BlockBuffer()
    for kind, first, count in arriving:
        assert buffer.add(entry(block(at(first), count, kind))) is not Added.CONFLICT
    assert taken(buffer, at(5)) == expected
    assert buffer.bytes_of(ONE) == 0


def test_what_lies_below_is_dropped() -> None:
    buffer = BlockBuffer()
    for stored in (block(at(1), 2), block(at(3), 4)):
        buffer.add(entry(stored))
    buffer.drop_below(at(5))
    assert buffer.bytes_of(ONE) == 100
    assert taken(buffer, at(5)) == [(5, 7, "block")]


def test_nothing_waits_after_a_rewind() -> None:
    buffer = BlockBuffer()
    buffer.add(entry(block(at(1), 2)))
    buffer.clear()
    assert (len(buffer), buffer.bytes_of(ONE)) == (0, 0)


PIECES = st.tuples(
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([GapKind.HOLE, GapKind.DATALOSS, GapKind.BRIDGE, GapKind.FILTERED_OUT]),
    st.sampled_from([ONE, TWO]),
)


@given(st.lists(PIECES, max_size=12))
def test_entries_never_overlap_and_cover_all_that_came(
    pieces: list[tuple[int, int, GapKind, NodeId]],
) -> None:
    buffer = BlockBuffer()
    covered: set[int] = set()
    for first, count, kind, node in pieces:
        buffer.add(Entry(Lsn(first), Lsn(first + count), node, 10, gap=kind))
        covered |= set(range(first, first + count))
    found: list[int] = []
    while buffer.first is not None:
        part = buffer.take_at(buffer.first.first)
        assert part is not None
        found += range(part.first, part.end)
    assert found == sorted(covered)
    assert buffer.bytes_of(ONE) == buffer.bytes_of(TWO) == 0
