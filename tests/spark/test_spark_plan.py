"""Cutting reads into partitions and micro-batches."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.limits import MIB
from millrace.spark.plan import PARTITION_BYTES_MAX, Piece, Weight, reach, share, split
from millrace.types import Lsn


def weights(*sizes: int, first: int = 1, records: int = 100) -> list[Weight]:
    return [
        Weight(Lsn(first + number * records), Lsn(first + (number + 1) * records), size)
        for number, size in enumerate(sizes)
    ]


def test_one_large_log_is_read_by_all_cores() -> None:
    pieces = split({"clicks": weights(*[10 * MIB] * 8)}, 2, None)
    assert pieces == [Piece("clicks", Lsn(1), Lsn(401)), Piece("clicks", Lsn(401), Lsn(801))]


def test_pieces_have_equal_bytes_not_equal_counts() -> None:
    pieces = split({"clicks": weights(30 * MIB, 2 * MIB, 2 * MIB, 2 * MIB)}, 2, None)
    assert [piece.end - piece.first for piece in pieces] == [60, 340]


def test_little_is_not_cut_up() -> None:
    assert len(split({"clicks": weights(5_000)}, 8, None)) == 1
    assert len(split({"clicks": weights(3 * MIB)}, 8, None)) == 3


def test_the_user_may_ask_for_more() -> None:
    assert len(split({"clicks": weights(5_000)}, 2, 10)) == 10


def test_no_piece_is_huge() -> None:
    pieces = split({"clicks": weights(*[PARTITION_BYTES_MAX] * 5)}, 2, None)
    assert len(pieces) == 5


def test_logs_share_the_cores_by_their_bytes() -> None:
    pieces = split({"big": weights(90 * MIB), "small": weights(MIB)}, 4, None)
    assert [piece.log for piece in pieces] == ["big"] * 3 + ["small"]
    pieces = split({name: weights(MIB) for name in "abc"}, 2, 10)
    assert len(pieces) == 10


def test_what_weighs_nothing_is_read_too() -> None:
    assert split({"clicks": weights(0)}, 2, None) == [Piece("clicks", Lsn(1), Lsn(101))]
    assert split({}, 2, None) == []


@given(
    st.lists(st.integers(0, 500 * MIB), min_size=1, max_size=20),
    st.integers(1, 16),
    st.none() | st.integers(1, 40),
)
def test_pieces_tile_the_range(sizes: list[int], cores: int, partitions_min: int | None) -> None:
    parts = weights(*sizes, first=7)
    pieces = split({"clicks": parts}, cores, partitions_min)
    assert pieces[0].first == parts[0].first
    assert pieces[-1].end == parts[-1].end
    assert all(before.end == after.first for before, after in pairwise(pieces))
    assert all(piece.first < piece.end for piece in pieces)


def test_reach_counts_from_the_start() -> None:
    parts = weights(100, 0, 300)
    assert reach(parts, 0) == 1
    assert reach(parts, 50) == 51
    assert reach(parts, 100) == 201
    assert reach(parts, 250) == 251
    assert reach(parts, 9_999) == 301


@given(st.integers(1, 1000), st.dictionaries(st.text(max_size=3), st.integers(0, 10_000)))
def test_shares_keep_to_the_limit_and_never_stop_a_query(
    limit: int, waiting: dict[str, int]
) -> None:
    shares = share(limit, waiting)
    assert set(shares) == set(waiting)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= shares[log] <= waiting[log] for log in waiting)


def test_shares_follow_what_waits() -> None:
    assert share(100, {"big": 900, "small": 100}) == {"big": 90, "small": 10}
    assert share(2, {"a": 5, "b": 9, "c": 1}) == {"a": 1, "b": 1, "c": 0}
