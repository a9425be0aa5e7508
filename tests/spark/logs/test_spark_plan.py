"""Cutting reads into partitions and micro-batches."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.runs import Runs
from millrace.limits import MIB
from millrace.lsn import lsn_of
from millrace.spark import plan
from millrace.spark.plan import PARTITION_BYTES_MAX, Cut, Piece, Survey, Weight, reach, share, split
from millrace.types import Epoch, Lsn, Run


def weights(*sizes: int, first: int = 1, records: int = 100) -> list[Weight]:
    return [
        Weight(first + number * records, first + (number + 1) * records, size)
        for number, size in enumerate(sizes)
    ]


def test_one_large_log_is_read_by_all_cores() -> None:
    pieces = split({"clicks": weights(*[10 * MIB] * 8)}, 2, None)
    assert pieces == [Cut("clicks", 1, 401), Cut("clicks", 401, 801)]


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
    assert split({"clicks": weights(0)}, 2, None) == [Cut("clicks", 1, 101)]
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


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


def surveyed(*counts: int, record_bytes: int = MIB // 10) -> Survey:
    """A log with so many records in its epochs, asked for from below to above them."""
    runs = Runs(
        Run(at(epoch, 1), at(epoch, 1 + count)) for epoch, count in enumerate(counts, start=1)
    )
    weights = [Weight(runs.begin, runs.end, runs.count * record_bytes)] if runs.count else []
    return Survey(at(1, 0), at(len(counts) + 1, 0), runs, weights)


def test_epochs_are_cut_without_the_void_between_them() -> None:
    pieces = plan.pieces({"clicks": surveyed(100, 0, 100)}, 4, None)
    assert pieces == [
        Piece("clicks", at(1, 0), at(1, 51)),
        Piece("clicks", at(1, 51), at(1, 101)),
        Piece("clicks", at(1, 101), at(3, 51)),
        Piece("clicks", at(3, 51), at(4, 0)),
    ]


def test_what_has_no_records_is_one_piece() -> None:
    survey = surveyed(0, 0)
    assert plan.pieces({"a": survey}, 4, 9) == [Piece("a", survey.first, survey.end)]


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6),
    st.integers(1, 16),
    st.none() | st.integers(1, 40),
)
def test_pieces_of_epochs_tile_the_range_and_share_the_records(
    counts: list[int], cores: int, partitions_min: int | None
) -> None:
    survey = surveyed(*counts)
    pieces = plan.pieces({"clicks": survey}, cores, partitions_min)
    assert (pieces[0].first, pieces[-1].end) == (survey.first, survey.end)
    assert all(before.end == after.first for before, after in pairwise(pieces))
    shares = [survey.runs.within(piece.first, piece.end) for piece in pieces]
    assert sum(shares) == sum(counts)
    assert max(shares) - min(shares) <= 1


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
