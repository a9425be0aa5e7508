"""Blocks that publish rows of another log: what they say, what is sent of them, and damage."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from block_samples import (
    EPOCH,
    FIRST,
    LOG,
    NOON_US,
    TOKEN,
    golden,
    placed,
    published,
    resealed,
    with_field,
)
from cut_samples import cut_of
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.codec import arrow, blocks, cuts
from millrace.codec.blocks import HEADER_BYTES
from millrace.codec.published import (
    Publication,
    StagedRange,
    StagedRows,
    draft_published,
    joined,
    publication_of,
)
from millrace.errors import CorruptBlock, UsageError
from millrace.limits import PUBLISHED_RECORDS_MAX
from millrace.types import Block, LogId, Lsn, Selection

OTHER_LOG = LogId(8)


def rows(*ranges: tuple[int, int], has_keys: bool = False) -> StagedRows:
    lying = tuple(StagedRange(Lsn(first), count) for first, count in ranges)
    return StagedRows(OTHER_LOG, lying, 1_000, NOON_US, NOON_US + 9, has_keys, NOON_US // 1_000)


def block_of(staged: StagedRows) -> Block:
    return placed(draft_published("orders", 3, 99, staged))


# -- What they say --------------------------------------------------------------------------------


def test_the_format_of_a_publishing_block_has_not_changed() -> None:
    assert bytes(published().data) == golden("published")


def test_a_block_says_who_publishes_and_where_the_rows_lie() -> None:
    block = blocks.parse(golden("published"))
    publication = publication_of(block)
    assert block.is_published
    assert block.count == 70_013, "more than a block could hold"
    assert (publication.app, publication.version, publication.mark) == ("orders", 3, 2**62)
    assert publication.ranges[0] == StagedRange(Lsn(101), 70_000)


def test_moving_and_seeing_it_elsewhere_keeps_what_it_is() -> None:
    block = blocks.parse(golden("published"))
    for other in (blocks.move(block, EPOCH, Lsn(9)), blocks.seen_at(block, OTHER_LOG, Lsn(9))):
        assert other.is_published
        assert publication_of(other) == publication_of(block)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(blocks.columns, id="columns"),
        pytest.param(blocks.records, id="records"),
        pytest.param(arrow.record_batch, id="a batch"),
    ],
)
def test_it_has_no_rows_itself(read: Callable[[Block], object]) -> None:
    with pytest.raises(UsageError, match="publishes rows of another log"):
        read(published())


@pytest.mark.parametrize("count", [0, PUBLISHED_RECORDS_MAX + 1])
def test_how_many_rows_can_be_published_at_once(count: int) -> None:
    with pytest.raises(UsageError, match=f"not {count}"):
        draft_published("orders", 3, 1, rows((1, count)) if count else rows())


RANGES = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 40)), min_size=1, max_size=8)


@settings(deadline=None)
@given(RANGES, st.data())
def test_any_part_of_it_lies_where_its_ranges_say(
    ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    block = block_of(rows(*ranges))
    first = data.draw(st.integers(block.first, block.last))
    end = data.draw(st.integers(first + 1, block.end))
    lying = [lsn for begin, count in ranges for lsn in range(begin, begin + count)]
    pieces = list(publication_of(block).placed(block.first, Lsn(first), Lsn(end)))
    assert [lsn for each in pieces for lsn in range(each.first, each.end)] == lying[
        first - block.first : end - block.first
    ]
    assert pieces[0].at == first
    assert all(one.at + one.end - one.first == two.at for one, two in pairwise(pieces))


@settings(deadline=None)
@given(RANGES)
def test_joined_ranges_are_the_same_positions_and_few(ranges: list[tuple[int, int]]) -> None:
    staged = rows(*ranges).ranges
    few = joined(staged)
    assert [lsn for each in few for lsn in range(each.first, each.end)] == [
        lsn for each in staged for lsn in range(each.first, each.end)
    ]
    assert all(one.end != two.first for one, two in pairwise(few))


def test_staged_rows_are_taken_for_as_young_as_they_were_staged() -> None:
    old = blocks.draft([b"a"], timestamps_us=5)
    assert old.reaching(NOON_US).timestamps_us == (5, NOON_US)
    assert old.reaching(1).timestamps_us == (5, 5)
    assert blocks.records(placed(old.reaching(NOON_US)))[0].timestamp == 5


# -- What is sent of them -------------------------------------------------------------------------

KEYED, KEYLESS = rows((1, 70_000), has_keys=True), rows((1, 70_000))


@pytest.mark.parametrize(
    ("staged", "selection", "is_sent"),
    [
        pytest.param(KEYED, Selection(), True, id="everything"),
        pytest.param(KEYED, Selection(columns=("key",)), True, id="a column"),
        pytest.param(KEYED, Selection(columns=()), True, id="positions alone: it may be void"),
        pytest.param(KEYED, Selection(keys=(b"k",)), True, id="a key"),
        pytest.param(KEYLESS, Selection(keys=(b"k",)), False, id="a key, and no row has one"),
        pytest.param(KEYED, Selection(time_first_us=NOON_US + 9), True, id="a time"),
        pytest.param(KEYED, Selection(time_first_us=NOON_US + 10), False, id="a later time"),
        pytest.param(KEYED, Selection(time_end_us=NOON_US), False, id="an earlier time"),
    ],
)
def test_it_is_sent_whole_unless_its_header_decides(
    staged: StagedRows, selection: Selection, is_sent: bool
) -> None:
    block = block_of(staged)
    sent = cut_of(block, selection)
    if is_sent:
        assert sent is block
    else:
        again = blocks.parse(sent.data)
        assert again.is_cut and not again.is_published
        assert again.count == block.count
        assert cuts.selected_batch(again, selection).num_rows == 0


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(Selection(), id="everything"),
        pytest.param(Selection(columns=("value",), keys=(b"k1",)), id="rows of a key"),
        pytest.param(Selection(columns=("key",)), id="a column"),
        pytest.param(Selection(columns=()), id="positions alone"),
    ],
)
def test_rows_are_seen_where_they_were_published(selection: Selection) -> None:
    drafted = blocks.draft([b"a", b"b", b"c"], keys=[b"k1", b"k2", b"k1"], timestamps_us=NOON_US)
    block = blocks.place(drafted, OTHER_LOG, EPOCH, Lsn(500), TOKEN)
    there = cuts.selected_batch(cut_of(block, selection), selection)
    here = cuts.selected_batch(
        blocks.shifted(cut_of(block, selection), LOG, FIRST - 500), selection
    )
    assert here["lsn"].to_pylist() == [lsn - 500 + FIRST for lsn in there["lsn"].to_pylist()]
    assert here.drop_columns(["lsn"]) == there.drop_columns(["lsn"])


# -- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(0, len(golden("published")), 3))
def test_a_publishing_block_cut_short(size: int) -> None:
    with pytest.raises(CorruptBlock):
        blocks.parse(golden("published")[:size])


@settings(deadline=None)
@given(st.integers(0, 8 * len(golden("published")) - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(golden("published"))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBlock):
        blocks.parse(bytes(data))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    """A writer may send what it wants, with right checksums."""
    header = golden("published")[:HEADER_BYTES]
    data = with_field(with_field(header + body, "I", 72, len(body)), "I", 76, len(body))
    _read(blocks.parse(data))


@settings(deadline=None)
@given(st.integers(HEADER_BYTES, len(golden("published")) - 1), st.integers(0, 255))
def test_a_body_with_another_byte_is_read_or_refused(at: int, byte: int) -> None:
    data = bytearray(golden("published"))
    data[at] = byte
    _read(blocks.parse(resealed(bytes(data))))


def _read(block: Block) -> Publication | None:
    try:
        publication = publication_of(block)
    except CorruptBlock:
        return None
    assert sum(each.count for each in publication.ranges) == block.count
    assert all(each.first >= 1 and each.count >= 1 for each in publication.ranges)
    return publication


@pytest.mark.parametrize(
    ("kind", "offset", "value", "complaint"),
    [
        pytest.param("I", 12, 70_012, "where 70013 rows lie", id="a row too few"),
        pytest.param("I", 12, PUBLISHED_RECORDS_MAX + 1, "exceed", id="too many rows"),
        pytest.param("H", 6, 16 | 4, "not all known", id="with headers"),
        pytest.param("H", 6, 16 | 1, "not all known", id="compressed"),
        pytest.param("B", 8, 1, "no body", id="a hole that publishes"),
    ],
)
def test_a_header_that_makes_no_sense(kind: str, offset: int, value: int, complaint: str) -> None:
    with pytest.raises(CorruptBlock, match=complaint):
        publication_of(blocks.parse(with_field(golden("published"), kind, offset, value)))
