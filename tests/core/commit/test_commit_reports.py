"""Which reports of a stream's replicas count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commit.record import StreamCommit, StreamRecord
from millrace.core.commit.reports import LESSER_MAX, Reports, ReportVerdict
from millrace.core.messages.commit import ReplicaState, StreamReport
from millrace.types import Epoch, Lsn, NodeId, StreamId, Version
from tests.core.commit.commit_samples import run

ONE, TWO, STRANGER = NodeId(1), NodeId(2), NodeId(9)
VERSION = Version(9)
GENERATION = Epoch(3)
V8 = run(8, 11, 51, 6)
V9 = run(9, 17, 70, 23)


def stream(
    *history: StreamCommit, local_end: int = 40, generation: int = GENERATION
) -> StreamRecord:
    return StreamRecord(
        StreamId(1), Epoch(generation), (ONE, TWO), local_end=Lsn(local_end), history=history
    )


def report(
    version: int,
    local: int,
    end: int,
    generation: int = GENERATION,
    state: ReplicaState = ReplicaState.OPEN,
    number: int = 1,
) -> StreamReport:
    return StreamReport(
        StreamId(number), Epoch(generation), state, Version(version), Lsn(local), end - local
    )


def zeros(state: ReplicaState, generation: int = GENERATION) -> StreamReport:
    return report(0, 0, 0, generation, state)


def take(reports: Reports, said: StreamReport, record: StreamRecord) -> ReportVerdict:
    return reports.take(ONE, said, record, VERSION)


KNOWN = report(8, 17, 45)  # Since then 17..39 were committed, in version 9.
RECORD = stream(V9)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        pytest.param(report(8, 17, 46), ReportVerdict.TAKEN, id="same version, larger end"),
        pytest.param(report(9, 40, 46), ReportVerdict.TAKEN, id="higher version, larger end"),
        pytest.param(report(9, 40, 45), ReportVerdict.TAKEN, id="higher version, same end"),
        pytest.param(report(8, 17, 45), ReportVerdict.OLD, id="the same again"),
        pytest.param(report(8, 17, 44), ReportVerdict.OLD, id="same version, smaller end"),
        pytest.param(report(7, 17, 60), ReportVerdict.OLD, id="lower version, larger end"),
        pytest.param(report(8, 17, 30), ReportVerdict.OLD, id="less than is committed by now"),
        pytest.param(report(6, 11, 45), ReportVerdict.OLD, id="before commits that all took"),
        pytest.param(report(9, 40, 44), ReportVerdict.DIRTY, id="higher version, smaller end"),
        pytest.param(report(10, 40, 45), ReportVerdict.IMPOSSIBLE, id="version of the future"),
        pytest.param(report(8, 40, 46), ReportVerdict.IMPOSSIBLE, id="commit without its version"),
        pytest.param(report(9, 17, 46), ReportVerdict.IMPOSSIBLE, id="version without its commit"),
        pytest.param(report(9, 41, 46), ReportVerdict.IMPOSSIBLE, id="more than is committed"),
        pytest.param(report(9, 40, 39), ReportVerdict.IMPOSSIBLE, id="less than nothing"),
        pytest.param(report(-1, 17, 46), ReportVerdict.IMPOSSIBLE, id="version below 0"),
        pytest.param(report(8, -1, 46), ReportVerdict.IMPOSSIBLE, id="position below 0"),
        pytest.param(report(9, 40, 50, 2), ReportVerdict.WRONG_GENERATION, id="earlier generation"),
        pytest.param(zeros(ReplicaState.SEALED, 4), ReportVerdict.FENCED, id="later generation"),
        pytest.param(zeros(ReplicaState.LEARNING), ReportVerdict.SILENT, id="learning"),
        pytest.param(zeros(ReplicaState.OPEN), ReportVerdict.SILENT, id="open, but zeros"),
        pytest.param(zeros(ReplicaState.SEALED), ReportVerdict.OLD, id="from before it opened"),
        pytest.param(zeros(ReplicaState.QUARANTINED), ReportVerdict.REGRESSED, id="quarantined"),
        pytest.param(report(9, 1, 1, number=2), ReportVerdict.NOT_A_REPLICA, id="another stream"),
    ],
)
def test_a_report_after_another(said: StreamReport, verdict: ReportVerdict) -> None:
    reports = Reports()
    assert take(reports, KNOWN, RECORD) is ReportVerdict.TAKEN
    assert take(reports, said, RECORD) is verdict
    has_lost = verdict in {ReportVerdict.DIRTY, ReportVerdict.REGRESSED, ReportVerdict.FENCED}
    left = None if has_lost else said if verdict is ReportVerdict.TAKEN else KNOWN
    assert reports.taken.get(ONE) == left
    assert reports.has_regressed is has_lost


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        pytest.param(report(9, 40, 40), ReportVerdict.TAKEN, id="nothing to commit"),
        pytest.param(report(8, 17, 40), ReportVerdict.TAKEN, id="all but the newest commit"),
        pytest.param(report(8, 17, 39), ReportVerdict.OLD, id="less than is committed"),
        pytest.param(report(7, 11, 40), ReportVerdict.OLD, id="before commits that all took"),
        pytest.param(zeros(ReplicaState.SEALED), ReportVerdict.SILENT, id="not opened"),
    ],
)
def test_a_first_report(said: StreamReport, verdict: ReportVerdict) -> None:
    assert take(Reports(), said, RECORD) is verdict


def test_the_newest_version_has_one_end_even_without_a_history() -> None:
    assert take(Reports(), report(9, 17, 46), stream()) is ReportVerdict.IMPOSSIBLE


def test_a_replica_that_says_what_cannot_be_again_and_again_has_lost_something() -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    future = report(10, 40, 45)
    verdicts = [take(reports, future, RECORD) for _ in range(LESSER_MAX)]
    assert verdicts == [ReportVerdict.IMPOSSIBLE] * (LESSER_MAX - 1) + [ReportVerdict.REGRESSED]
    assert reports.has_regressed


def test_what_can_be_in_between_takes_it_back() -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    for _ in range(2 * LESSER_MAX):
        assert take(reports, report(10, 40, 45), RECORD) is ReportVerdict.IMPOSSIBLE
        take(reports, KNOWN, RECORD)
    assert not reports.has_regressed


def test_a_node_that_is_no_replica_leaves_no_trace() -> None:
    reports = Reports()
    assert reports.take(STRANGER, KNOWN, RECORD, VERSION) is ReportVerdict.NOT_A_REPLICA
    assert (reports.taken, reports.heard) == ({}, {})


def test_any_commit_in_the_history_can_still_be_taken() -> None:
    record = stream(V8, V9)
    said = [report(7, 11, 40), report(8, 17, 40), report(9, 40, 40)]
    reports = Reports()
    assert [take(reports, each, record) for each in said] == [ReportVerdict.TAKEN] * 3


def test_a_new_generation_begins_without_reports() -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    reports.follow(RECORD)
    assert reports.taken
    later = stream(V9, generation=4)
    reports.follow(later)
    assert not reports.taken
    assert take(reports, KNOWN, later) is ReportVerdict.WRONG_GENERATION
    cut_off = report(8, 17, 41, generation=4)
    assert take(reports, cut_off, later) is ReportVerdict.TAKEN


def test_what_was_heard_last_tells_who_is_silent() -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    learning = zeros(ReplicaState.LEARNING)
    take(reports, learning, RECORD)
    assert reports.heard == {ONE: learning}


# -- Regressed ---------------------------------------------------------------------------------

LATE = report(8, 17, 43)


def test_late_reports_do_not_make_a_replica_suspect() -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    for _ in range(3 * LESSER_MAX):
        assert take(reports, LATE, RECORD) is ReportVerdict.OLD
        assert take(reports, KNOWN, RECORD) is ReportVerdict.OLD
    assert not reports.has_regressed


@pytest.mark.parametrize(
    "less",
    [
        pytest.param(LATE, id="smaller end"),
        pytest.param(report(8, 17, 30), id="less than is committed"),
        pytest.param(report(6, 11, 45), id="before commits that all took"),
        pytest.param(zeros(ReplicaState.SEALED), id="not open any more"),
    ],
)
def test_a_replica_that_keeps_saying_less_has_regressed(less: StreamReport) -> None:
    reports = Reports()
    take(reports, KNOWN, RECORD)
    said = [take(reports, less, RECORD) for _ in range(LESSER_MAX)]
    assert said == [ReportVerdict.OLD] * (LESSER_MAX - 1) + [ReportVerdict.REGRESSED]
    assert reports.taken == {}


def test_a_replica_that_regressed_counts_again_in_the_next_generation_only() -> None:
    reports = Reports()
    take(reports, zeros(ReplicaState.QUARANTINED), RECORD)
    assert take(reports, report(9, 40, 99), RECORD) is ReportVerdict.REGRESSED
    later = stream(V9, generation=4)
    assert take(reports, report(9, 40, 40, 4), later) is ReportVerdict.TAKEN
    assert not reports.has_regressed


def test_a_replica_that_forgot_empty_commits_has_not_regressed() -> None:
    """They are not written to disk by themselves, so a restart takes its version back."""
    record, reports = stream(local_end=40), Reports()
    assert take(reports, report(9, 40, 40), record) is ReportVerdict.TAKEN
    said = [take(reports, report(5, 40, 42), record) for _ in range(2 * LESSER_MAX)]
    assert set(said) == {ReportVerdict.OLD}
    assert take(reports, report(9, 40, 42), record) is ReportVerdict.TAKEN


def test_replicas_that_were_sealed_and_never_opened_are_to_be_reformed() -> None:
    reports = Reports()
    take(reports, zeros(ReplicaState.SEALED), RECORD)
    assert reports.has_regressed
    take(reports, report(9, 40, 40), RECORD)
    assert not reports.has_regressed


numbers = st.integers(-1, 12)
anything = st.builds(
    StreamReport,
    st.sampled_from([1, 1, 1, 2]), st.sampled_from([3, 3, 3, 2, 4]),
    st.sampled_from([ReplicaState.OPEN, ReplicaState.OPEN, *ReplicaState]),
    numbers, numbers, numbers,
)  # fmt: skip
records = st.sampled_from(
    [
        stream(local_end=1),
        stream(local_end=6),
        stream(run(4, 3, 5, 3), local_end=6),
        stream(run(2, 1, 1, 2), run(4, 3, 5, 3), local_end=6),
        stream(local_end=6, generation=4),
    ]
)


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, STRANGER]), anything, records)))
def test_whatever_is_said_has_a_verdict_and_what_is_taken_never_shrinks(
    said: list[tuple[NodeId, StreamReport, StreamRecord]],
) -> None:
    reports = Reports()
    for node, each, record in said:
        reports.follow(record)
        before = reports.taken.get(node)
        verdict = reports.take(node, each, record, VERSION)
        after = reports.taken.get(node)
        assert (after == each) or verdict is not ReportVerdict.TAKEN
        if before is not None and after is not None:
            assert (after.version, after.end) >= (before.version, before.end)
            assert after.end >= before.end
        assert all(each.generation == record.generation for each in reports.taken.values())
        assert reports.heard.keys() <= {ONE, TWO}
