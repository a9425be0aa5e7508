"""What is committed of an open log: which runs stay in memory, and which may leave it."""

import pytest

from millrace.core.commit.record import StreamCommit
from millrace.store.commit_tail import CommitTail
from millrace.types import Lsn
from tests.conformance.commit_rig import context_of, run

RUNS = [run(each, each, 3 * each, 1) for each in range(1, 10)]
SLOT = 4


def tail_of(count: int) -> CommitTail:
    tail = CommitTail(slot=SLOT)
    tail.commit(context_of(RUNS[count - 1]), RUNS[:count])
    return tail


def in_memory(tail: CommitTail) -> list[StreamCommit]:
    return list(tail.runs.within(Lsn(0), Lsn(1_000)))


def no_seek(low: StreamCommit, end: Lsn, local: Lsn) -> StreamCommit | None:
    raise AssertionError("the disk is not needed")


@pytest.mark.parametrize(
    ("durable", "left"),
    [
        pytest.param(0, 9, id="nothing is durable"),
        pytest.param(3, 6, id="some are"),
        pytest.param(9, 2, id="all are"),
    ],
)
def test_runs_leave_memory_when_they_are_durable_and_too_many(durable: int, left: int) -> None:
    """I1, I3."""
    tail = tail_of(9)
    if durable:
        tail.settled(SLOT, RUNS[durable - 1].end, 2)
    assert in_memory(tail) == RUNS[9 - left :]
    assert tail.oldest == (RUNS[0] if left < 9 else None)
    assert tail.first == RUNS[0]


def test_the_last_run_stays_even_if_none_should() -> None:
    """I2: it may grow."""
    tail = tail_of(3)
    tail.settled(SLOT, RUNS[2].end, 0)
    assert in_memory(tail) == [RUNS[2]]
    longer = run(4, 4, 10, 5)
    assert tail.commit(context_of(longer), [longer]) == [run(4, 3, 9, 6)]


def test_a_run_that_grew_since_it_was_written_stays() -> None:
    tail = tail_of(1)
    tail.commit(context_of(run(2, 2, 4, 1)), [run(2, 2, 4, 1), run(3, 3, 9, 1)])
    tail.settled(SLOT, RUNS[0].end, 1)
    assert in_memory(tail) == [run(2, 1, 3, 2), run(3, 3, 9, 1)]


def test_what_was_written_before_runs_were_forgotten_says_nothing_of_later_ones() -> None:
    """I4."""
    tail = tail_of(9)
    assert tail.forget() == SLOT
    tail.slot = SLOT + 1
    tail.commit(context_of(RUNS[2]), RUNS[:3])
    tail.settled(SLOT, RUNS[8].end, 1)
    assert in_memory(tail) == RUNS[:3]


def test_trimming_in_memory_needs_no_disk() -> None:
    tail = tail_of(9)
    tail.settled(SLOT, RUNS[8].end, 4)
    tail.trim(Lsn(1), no_seek)
    assert tail.first == RUNS[0]
    tail.trim(Lsn(7), no_seek)
    assert (tail.oldest, tail.first) == (None, RUNS[6])
    tail.trim(Lsn(50), no_seek)
    assert (tail.oldest, tail.first) == (None, None)


def test_trimming_what_is_on_disk_alone_seeks_there() -> None:
    tail = tail_of(9)
    tail.settled(SLOT, RUNS[8].end, 4)
    asked: list[tuple[StreamCommit, Lsn, Lsn]] = []

    def seek(low: StreamCommit, end: Lsn, local: Lsn) -> StreamCommit | None:
        asked.append((low, end, local))
        return RUNS[2]

    tail.trim(Lsn(3), seek)
    assert asked == [(RUNS[0], RUNS[5].first, Lsn(3))]
    assert (tail.oldest, in_memory(tail)) == (RUNS[2], RUNS[5:])
