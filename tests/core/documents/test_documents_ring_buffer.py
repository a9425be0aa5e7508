"""A consumer's ring buffer: which keys an undo has to fetch, and whether it knows them all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import Seq
from millrace.core.documents.ring_buffer import RingBuffer, RingEntry


def filled(*changes: tuple[int, bytes], entries_max: int = 3) -> RingBuffer:
    ring = RingBuffer(entries_max)
    ring.add_many(RingEntry(Seq(seq), key) for seq, key in changes)
    return ring


@pytest.mark.parametrize(
    ("start", "keys"),
    [(5, []), (4, [b"a"]), (2, [b"b", b"a"]), (1, [b"a", b"b"]), (0, None)],
    ids=["nothing above", "one", "some", "down to its oldest", "below it"],
)
def test_it_knows_the_keys_above_a_seq(start: int, keys: list[bytes] | None) -> None:
    ring = filled((1, b"c"), (2, b"a"), (3, b"b"), (5, b"a"))
    assert ring.above(Seq(start)) == keys


def test_while_nothing_fell_out_it_knows_everything() -> None:
    assert filled((1, b"a"), (2, b"b")).above(Seq(0)) == [b"a", b"b"]


def test_what_is_cut_is_not_undone_again() -> None:
    ring = filled((1, b"a"), (2, b"b"), (3, b"c"))
    ring.cut(Seq(1))
    assert (ring.above(Seq(0)), ring.last) == ([b"a"], 1)


def test_after_a_start_from_nothing_it_knows_everything_again() -> None:
    ring = filled((1, b"a"), (2, b"b"), (3, b"c"), (4, b"d"))
    ring.cut(Seq(0))
    assert ring.above(Seq(0)) == []


def test_what_an_undo_fetched_lies_above_what_follows() -> None:
    ring = filled((1, b"a"), (9, b"b"), (2, b"c"))
    assert (ring.above(Seq(5)), ring.last) == ([b"b"], 9)


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=30), st.integers(1, 8), st.data())
def test_it_never_leaves_out_a_key_that_changed(
    keys: list[bytes], entries_max: int, data: st.DataObject
) -> None:
    ring = filled(*enumerate(keys, 1), entries_max=entries_max)
    start = data.draw(st.integers(0, len(keys)))
    assert len(ring) <= entries_max
    found = ring.above(Seq(start))
    assert found is None or set(found) == set(keys[start:])
    assert found is not None or len(keys) - start > entries_max
