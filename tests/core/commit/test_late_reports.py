"""Who says less than it was told: a report may be late, an answer is not, and what was told need
not be durable yet."""

import pytest

from millrace.core.commit.committer import RETRY_MS
from millrace.core.messages import CommitTaken, CommitVerdict, RefusedCommit, Report
from millrace.types import NodeId
from tests.core.commit.committer_office import (
    LOG,
    ONE,
    TERM,
    TICKET,
    Office,
    record_of,
    stream_of,
)

TWO = NodeId(2)


def told_after(office: Office, told: int) -> list[tuple[int, int]]:
    """Whom, and which version."""
    return [(node, commit.version) for node, commit in office.commits[told:]]


def test_a_report_that_was_overtaken_holds_up_no_commit() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    late = Report(LOG, TERM, TWO, office.reports(TWO))
    office.write(ONE, 5)
    office.perform(office.committer.reported(TICKET, late, office.now_ms))
    told = len(office.commits)
    office.write(ONE, 5)
    assert sorted(told_after(office, told)) == [(1, 2), (2, 2), (3, 2)]


def test_who_answers_that_it_took_nothing_is_told_again_after_a_pause() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    nothing = CommitTaken(office.reports(TWO))
    office.write(ONE, 5)
    told, commit = len(office.commits), office.commits[-1][1]
    office.perform(office.committer.answered(TWO, commit, nothing, office.now_ms))
    office.pass_time(RETRY_MS - 1)
    assert told_after(office, told) == []
    office.pass_time(1)
    assert told_after(office, told) == [(2, 1)]


@pytest.mark.parametrize(
    ("refused", "again"),
    [
        pytest.param((), [], id="not durable yet"),
        pytest.param((RefusedCommit(ONE, CommitVerdict.TOO_LONG),), [(2, 2)], id="refused"),
    ],
)
def test_who_answers_with_an_earlier_version_is_told_again_only_if_it_refused(
    refused: tuple[RefusedCommit, ...], again: list[tuple[int, int]]
) -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.write(ONE, 5)
    taken = CommitTaken(office.reports(TWO), refused)
    office.holds_answers = {TWO}
    office.write(ONE, 5)
    told, commit = len(office.commits), office.commits[-1][1]
    office.perform(office.committer.answered(TWO, commit, taken, office.now_ms))
    assert told_after(office, told) == []
    office.holds_answers = set()
    office.pass_time(RETRY_MS)
    assert told_after(office, told) == again


def test_a_commit_that_is_not_durable_yet_does_not_hold_up_the_next() -> None:
    office = Office(record_of(stream_of(ONE, 1, 2, 3)))
    office.lags = {TWO}
    office.write(ONE, 5)
    told = len(office.commits)
    office.write(ONE, 5)
    assert sorted(told_after(office, told)) == [(1, 2), (2, 2), (3, 2)]
