"""What a replica of a stream is after a restart: all cases, and whatever else a disk may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.commit.recovery import (
    Quarantine,
    Quarantined,
    ReplicaFacts,
    Valid,
    recover,
    vouched,
)
from millrace.types import Lsn
from tests.core.commit.commit_samples import context, facts, run
from tests.core.commit.recovery_cases import (
    QUARANTINED,
    TEN,
    TEN_CONTEXT,
    VALID,
    RecoveryCase,
    valid,
)


@pytest.mark.parametrize("case", VALID, ids=str)
def test_what_fits_together_is_valid(case: RecoveryCase) -> None:
    assert recover(case.found) == case.expected


@pytest.mark.parametrize("case", QUARANTINED, ids=str)
def test_what_does_not_fit_is_quarantined_and_says_what_a_sync_may_keep(
    case: RecoveryCase,
) -> None:
    answer = recover(case.found)
    assert isinstance(answer, Quarantined)
    assert (answer.cause, answer.kept_first, answer.kept_end) == (case.expected, *case.left)
    assert answer.why
    assert answer.otherwise is None


def test_a_stream_that_ends_before_it_begins_cannot_be() -> None:
    answer = recover(facts(entries=(5, 3), end=2))
    assert isinstance(answer, Quarantined)
    assert (answer.cause, answer.kept_first, answer.kept_end) == (Quarantine.CONTRADICTION, 5, 5)


@pytest.mark.parametrize(
    ("first", "is_accepted"),
    [
        pytest.param(2, True, id="the stream's own next position"),
        pytest.param(3, True, id="the log's next position before the commit"),
        pytest.param(4, True, id="the log's next position after it"),
        pytest.param(1, False, id="a position that the stream has already"),
        pytest.param(5, False, id="above the log's next position"),
    ],
)
def test_both_conventions_of_empty_contexts_are_read(first: int, is_accepted: bool) -> None:
    """LogStream1 of the RFC's example: its one entry is the log's first of three."""
    found = facts(entries=(1, 2), context=context(2, 3, 2, first, 0, 1), runs=(run(1, 1, 1, 1),))
    assert (recover(found) == valid(2, 3, 2, 2, 1)) is is_accepted


@pytest.mark.parametrize("first", [1, 8])
def test_a_stream_without_entries_has_an_empty_context(first: int) -> None:
    found = facts(entries=(1, 4), context=context(6, 7, 1, first, 0, 0))
    assert recover(found) == valid(6, 7, 1, 4, 0)


@pytest.mark.parametrize(
    "impossible",
    [
        pytest.param(context(10, 10, 1, 1, 10, 9), id="ends elsewhere in the log"),
        pytest.param(context(10, 9, 1, 1, 10, 10), id="above the high watermark"),
        pytest.param(context(10, 10, 11, 6, 0, 5), id="fewer positions than entries"),
        pytest.param(context(10, 10, 11, 1, 0, 0), id="entries that are nowhere"),
        pytest.param(context(10, 10, 1, 11, 0, 10), id="somewhere without entries"),
        pytest.param(context(10, 10, 0, 1, 10, 10), id="before the first position"),
        pytest.param(context(10, 10, 12, 12, -1, 10), id="less than nothing"),
        pytest.param(context(-1, 10, 1, 1, 10, 10), id="before the first version"),
    ],
)
def test_a_context_that_no_commit_leaves_behind(impossible: CommitContext) -> None:
    answer = recover(facts(entries=(1, 11), context=impossible, runs=(TEN,)))
    assert isinstance(answer, Quarantined)
    assert answer.cause is Quarantine.CONTRADICTION


def test_runs_that_a_trim_has_not_removed_yet_are_passed_over() -> None:
    found = facts(entries=(11, 11), context=TEN_CONTEXT, runs=(run(4, 1, 1, 6),))
    assert recover(found) == valid(10, 10, 11, 11, 10)
    assert vouched(found) == (11, 11)


def test_a_replica_that_lost_memory_is_not_valid_but_says_what_is_left() -> None:
    found = facts(entries=(1, 21), context=TEN_CONTEXT, runs=(TEN,), is_dirty=True)
    answer = recover(found)
    assert isinstance(answer, Quarantined)
    assert answer.cause is Quarantine.MEMORY_LOST
    assert answer.otherwise == valid(10, 10, 11, 21, 10)


def test_a_replica_that_does_not_fit_is_not_excused_by_lost_memory() -> None:
    answer = recover(facts(entries=(1, 11), runs=(TEN,), is_dirty=True))
    assert isinstance(answer, Quarantined)
    assert (answer.cause, answer.otherwise) == (Quarantine.CONTEXT_MISSING, None)


numbers = st.integers(-2, 14)
contexts = st.builds(CommitContext, numbers, numbers, numbers, numbers, numbers, numbers)
runs = st.builds(StreamCommit, numbers, numbers, numbers, numbers)
anything = st.builds(
    ReplicaFacts,
    numbers, numbers, numbers, st.none() | contexts, st.none() | runs, st.none() | runs,
    st.booleans(),
)  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> ReplicaFacts:
    """A stream that commits, hears of empty commits, is trimmed and written to: always valid."""
    local, high_watermark, last = 1, 0, 0
    all_runs: list[StreamCommit] = []
    newest: CommitContext | None = None
    commits = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    for version, (count, others) in enumerate(commits, 1):
        first = high_watermark + 1
        high_watermark += count + others
        if count:
            all_runs.append(run(version, local, first, count))
            last = first + count - 1
        newest = context(version, high_watermark, local, first, count, last)
        local += count
    trim_end = draw(st.integers(1, local))
    left = tuple(each for each in all_runs if each.local_end > trim_end)
    end = local + draw(st.integers(0, 3))
    return facts(entries=(trim_end, end), context=newest, runs=left)


@given(anything | histories())
def test_any_facts_give_an_answer_and_valid_implies_m1(found: ReplicaFacts) -> None:
    answer = recover(found)
    if isinstance(answer, Quarantined):
        assert answer.why
        assert answer.kept_first <= answer.kept_end
        return
    assert 1 <= found.trim_end <= answer.local_end <= answer.end == found.end
    assert answer.local_end == (1 if found.context is None else found.context.local_end)
    if found.last_run is not None and found.last_run.local_end > found.trim_end:
        assert answer.local_end == found.last_run.local_end
        assert answer.last == found.last_run.end - 1
    else:
        assert answer.local_end == found.trim_end


@given(histories())
def test_whatever_a_history_leaves_is_valid(found: ReplicaFacts) -> None:
    answer = recover(found)
    assert isinstance(answer, Valid)
    assert vouched(found) == (found.trim_end, answer.local_end)


@given(histories(), st.integers(1, 3))
def test_losing_committed_entries_is_always_noticed(found: ReplicaFacts, lost: int) -> None:
    answer = recover(found)
    assert isinstance(answer, Valid)
    end = answer.local_end - lost
    if end >= found.trim_end:
        cut = ReplicaFacts(
            found.trim_end, Lsn(end), Lsn(end), found.context, found.first_run, found.last_run
        )
        assert isinstance(recover(cut), Quarantined)
