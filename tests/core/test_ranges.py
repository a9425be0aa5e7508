"""TakenRanges against a model: a set of positions."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.ranges import TakenRanges
from millrace.types import Lsn

SPAN = 24


class TakenRangesMachine(RuleBasedStateMachine):
    """The model: blocks by their first position, and the trim point."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = TakenRanges(Lsn(1), Lsn(1))
        self.blocks: dict[int, int] = {}  # first -> end
        self.trim_end = 1

    def positions(self) -> set[int]:
        held = {lsn for first, end in self.blocks.items() for lsn in range(first, end)}
        return {lsn for lsn in held if lsn >= self.trim_end}

    @rule(first=st.integers(1, SPAN), count=st.integers(1, 4))
    def take(self, first: int, count: int) -> None:
        end = first + count
        is_free = first >= self.trim_end and not self.positions() & set(range(first, end))
        assert self.taken.overlaps(Lsn(first), Lsn(end)) == (not is_free)
        if is_free:
            self.taken.take(Lsn(first), Lsn(end))
            self.blocks[first] = end

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.blocks)))
        end = self.blocks.pop(first)
        self.taken.release(Lsn(first), Lsn(end))

    @rule(end=st.integers(1, SPAN))
    def trim(self, end: int) -> None:
        self.taken.trim(Lsn(end))
        self.trim_end = max(self.trim_end, end)
        self.blocks = {first: last for first, last in self.blocks.items() if last > self.trim_end}

    @invariant()
    def agrees(self) -> None:
        held = self.positions()
        solid = self.trim_end
        while solid in held:
            solid += 1
        assert self.taken.trim_end == self.trim_end
        assert self.taken.contiguous_end == solid
        assert self.taken.end == max([solid, *(lsn + 1 for lsn in held)])
        for lsn in range(1, SPAN + 6):
            assert self.taken.holds(Lsn(lsn)) == (lsn in held), lsn
            is_there = lsn in held or lsn < self.trim_end
            assert self.taken.covers(Lsn(lsn), Lsn(lsn + 1)) == is_there
            whole = all(one in held or one < self.trim_end for one in range(lsn, lsn + 3))
            assert self.taken.covers(Lsn(lsn), Lsn(lsn + 3)) == whole
        assert self.taken.islands == sorted(self.taken.islands)
        assert all(first > solid for first, _ in self.taken.islands)


TakenRangesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestTakenRanges = TakenRangesMachine.TestCase


def test_a_block_across_the_trim_point_can_be_released() -> None:
    """What is below the trim point stays below it: the next block begins a solid prefix."""
    taken = TakenRanges(Lsn(1), Lsn(1))
    taken.take(Lsn(1), Lsn(8))
    taken.trim(Lsn(5))
    taken.release(Lsn(1), Lsn(8))
    assert taken.contiguous_end == 5
    taken.take(Lsn(5), Lsn(8))
    assert (taken.contiguous_end, taken.islands) == (8, [])


@pytest.mark.parametrize(
    ("trim", "contiguous_end", "islands"),
    [
        (2, 3, [(5, 7), (9, 10)]),
        (4, 4, [(5, 7), (9, 10)]),
        (5, 7, [(9, 10)]),
        (6, 7, [(9, 10)]),
        (7, 7, [(9, 10)]),
        (8, 8, [(9, 10)]),
        (9, 10, []),
        (12, 12, []),
    ],
)
def test_trim_takes_up_islands(
    trim: int, contiguous_end: int, islands: list[tuple[int, int]]
) -> None:
    taken = TakenRanges(Lsn(1), Lsn(3))
    taken.take(Lsn(5), Lsn(7))
    taken.take(Lsn(9), Lsn(10))
    taken.trim(Lsn(trim))
    assert (taken.contiguous_end, taken.islands) == (contiguous_end, islands)


def test_a_taken_range_cannot_be_taken_again() -> None:
    taken = TakenRanges(Lsn(1), Lsn(3))
    taken.take(Lsn(5), Lsn(7))
    for first, end in ((1, 2), (2, 4), (4, 6), (6, 8), (4, 9)):
        with pytest.raises(AssertionError):
            taken.take(Lsn(first), Lsn(end))


def test_what_is_not_taken_cannot_be_released() -> None:
    taken = TakenRanges(Lsn(1), Lsn(3))
    taken.take(Lsn(5), Lsn(7))
    for first, end in ((2, 4), (4, 5), (6, 8), (8, 9)):
        with pytest.raises(AssertionError):
            taken.release(Lsn(first), Lsn(end))


def test_a_copy_is_its_own() -> None:
    taken = TakenRanges(Lsn(1), Lsn(3))
    taken.take(Lsn(5), Lsn(7))
    twin = taken.copy()
    twin.take(Lsn(3), Lsn(5))
    assert (taken.contiguous_end, taken.islands) == (3, [(5, 7)])
    assert (twin.contiguous_end, twin.islands) == (7, [])
