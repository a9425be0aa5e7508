"""The records of a log as one line, whatever lies between its epochs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.runs import Runs, joined
from millrace.lsn import first_of, lsn_of
from millrace.types import Epoch, Lsn, Run


def at(epoch: int, offset: int) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


def run(epoch: int, first: int, end: int) -> Run:
    return Run(at(epoch, first), at(epoch, end))


THREE = Runs([run(1, 1, 11), run(2, 1, 1), run(4, 1, 6)])


def test_a_chain_log_is_one_run_and_flat_already() -> None:
    runs = Runs([Run(Lsn(7), Lsn(107))])
    assert (runs.begin, runs.end, runs.count) == (7, 107, 100)
    assert [runs.flat(Lsn(n)) for n in (1, 7, 50, 107, 900)] == [7, 7, 50, 107, 107]
    assert [runs.lsn(n) for n in (7, 50, 107)] == [7, 50, 107]


@pytest.mark.parametrize(
    ("first", "end", "count"),
    [
        pytest.param((1, 1), (1, 11), 10, id="an epoch"),
        pytest.param((1, 1), (4, 6), 15, id="everything"),
        pytest.param((1, 4), (4, 3), 9, id="across"),
        pytest.param((1, 11), (4, 1), 0, id="the void"),
        pytest.param((1, 500), (4, 2), 1, id="from within the void"),
        pytest.param((0, 1), (9, 0), 15, id="from below to above"),
        pytest.param((4, 3), (1, 4), 0, id="backwards"),
    ],
)
def test_only_records_count(first: tuple[int, int], end: tuple[int, int], count: int) -> None:
    assert THREE.within(at(*first), at(*end)) == count


def test_so_many_records_end_right_behind_the_last_of_them() -> None:
    begin = THREE.begin
    assert [THREE.lsn(begin + n) for n in (0, 1, 10, 11, 15)] == [
        at(1, 1), at(1, 2), at(1, 11), at(4, 2), at(4, 6),
    ]  # fmt: skip


def test_no_runs_have_no_records() -> None:
    assert (Runs().count, Runs().within(at(1, 1), at(9, 1))) == (0, 0)


shapes = st.dictionaries(
    st.integers(1, 50),
    st.tuples(st.integers(1, 100), st.integers(0, 100)),
    min_size=1,
    max_size=8,
)


@given(shapes)
def test_the_line_keeps_the_order_and_leads_back(shape: dict[int, tuple[int, int]]) -> None:
    runs = Runs(run(epoch, first, first + n) for epoch, (first, n) in sorted(shape.items()))
    assert runs.count == sum(n for _, n in shape.values())
    if runs.count:
        flats = range(runs.begin, runs.end + 1)
        found = [runs.lsn(flat) for flat in flats]
        assert found == sorted(set(found))
        assert [runs.flat(lsn) for lsn in found] == list(flats)


@given(shapes, st.lists(st.integers(1, 1_000), min_size=1, max_size=5))
def test_what_nodes_hold_is_joined_by_epoch(
    shape: dict[int, tuple[int, int]], cuts: list[int]
) -> None:
    whole = [run(epoch, first, first + n) for epoch, (first, n) in sorted(shape.items())]
    parts = list(whole)
    for cut in cuts:
        each = whole[cut % len(whole)]
        middle = Lsn(each.first + cut % (each.end - each.first + 1))
        parts += [Run(each.first, middle), Run(middle, each.end)]
    assert joined(reversed(parts)) == whole
    assert joined([]) == []


def test_an_epoch_that_only_ends_has_no_records() -> None:
    bridge = Run(at(3, 8), at(3, 8))
    assert Runs(joined([bridge])).count == 0
    assert joined([bridge, run(3, 1, 5)]) == [run(3, 1, 8)]
    assert first_of(Epoch(3)) < bridge.first
