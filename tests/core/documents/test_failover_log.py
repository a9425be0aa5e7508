"""The failover log: what an entry does to those before it, and which logs are believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import FailoverId, Seq
from millrace.core.documents.failover_log import (
    FAILOVER_ENTRIES_MAX,
    NO_LOG,
    FailoverLog,
    parse_failover_log,
)
from tests.core.documents.partition_samples import BA5E, CAFE, DEAD, log


@pytest.mark.parametrize(
    ("before", "begun", "after"),
    [
        pytest.param(NO_LOG, (CAFE, 0), log((CAFE, 0)), id="the_first_master"),
        pytest.param(
            log((CAFE, 0)), (DEAD, 5), log((DEAD, 5), (CAFE, 0)), id="a_failover_comes_in_front"
        ),
        pytest.param(
            log((BA5E, 7), (CAFE, 0)),
            (DEAD, 5),
            log((DEAD, 5), (CAFE, 0)),
            id="what_was_begun_above_is_no_longer_true",
        ),
        pytest.param(
            log((BA5E, 5), (CAFE, 0)),
            (DEAD, 5),
            log((DEAD, 5), (BA5E, 5), (CAFE, 0)),
            id="what_was_begun_at_the_same_seq_stays",
        ),
    ],
)
def test_a_new_master_begins_an_entry(
    before: FailoverLog, begun: tuple[FailoverId, int], after: FailoverLog
) -> None:
    assert before.begin(begun[0], Seq(begun[1])) == after


def test_the_oldest_entries_go_when_there_are_too_many() -> None:
    grown = NO_LOG
    for number in range(1, FAILOVER_ENTRIES_MAX + 4):
        grown = grown.begin(FailoverId(number), Seq(number))
    assert len(grown.entries) == FAILOVER_ENTRIES_MAX
    assert (grown.newest, grown.entries[-1].id) == (FAILOVER_ENTRIES_MAX + 3, 4)


def test_an_id_is_never_0() -> None:
    with pytest.raises(AssertionError, match="never 0"):
        NO_LOG.begin(FailoverId(0), Seq(0))


def test_nobody_was_master_of_an_empty_log() -> None:
    assert NO_LOG.newest == 0
    assert NO_LOG.position_of(CAFE) is None


def test_entries_above_a_seq_are_left_out() -> None:
    assert log((DEAD, 5), (CAFE, 0)).up_to(Seq(4)) == log((CAFE, 0))


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        pytest.param([(0, 0)], "entry 0: 0x0 is no failover id", id="id_0"),
        pytest.param([(2**64, 0)], "entry 0", id="id_of_more_than_64_bits"),
        pytest.param([(1, -1)], "entry 0: seq -1", id="negative_seq"),
        pytest.param([(2, 5), (1, 6)], "entry 1: seq 6", id="older_entry_with_a_higher_seq"),
        pytest.param([(1, 5), (1, 5)], "entry 1: id 0000000000000001", id="id_twice"),
        pytest.param(
            [(number, 0) for number in range(1, FAILOVER_ENTRIES_MAX + 2)],
            "has 26 entries",
            id="too_many",
        ),
    ],
)
def test_a_log_that_cannot_be_is_not_believed(pairs: list[tuple[int, int]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_failover_log(pairs)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), max_size=40))
def test_whatever_masters_come_the_log_is_one_that_is_believed(
    masters: list[tuple[int, int]],
) -> None:
    grown = NO_LOG
    for id, seq in masters:
        grown = grown.begin(FailoverId(id), Seq(seq))
    assert parse_failover_log([(entry.id, entry.seq) for entry in grown.entries]) == grown
