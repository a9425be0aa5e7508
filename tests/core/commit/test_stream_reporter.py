"""When a node reports to the committer of a log, and who that is."""

import pytest

from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.reporter import (
    REDIRECTS_MAX,
    REPORT_IDLE_MS,
    REPORT_UNREST_MS,
    Reporter,
    strangers,
)
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.types import NO_NODE, Epoch, Lsn, NodeId, StreamId, Version
from tests.core.commit.stream_samples import LOG, ME, SECOND, STREAM, THIRD, of

LOST = Failure(FailureKind.LOST)
TERM = Epoch(4)
REPORTED = m.Reported(TERM)


def reports(count: int, stream: StreamId = STREAM) -> tuple[m.StreamReport, ...]:
    state = m.ReplicaState.OPEN
    return (m.StreamReport(stream, Epoch(1), state, Version(3), Lsn(5), count),)


SEALED = (m.StreamReport(STREAM, Epoch(1), m.ReplicaState.SEALED),)


class Rig:
    def __init__(self) -> None:
        self.reporter = Reporter(LOG, ME)
        self.reporter.heard(SECOND, TERM)
        self.effects: list[e.NodeEffect] = []

    def look(self, now: tuple[m.StreamReport, ...]) -> list[e.AskCommitter]:
        return self._note(self.reporter.look(now))

    def answer(self, answer: Answer, now: tuple[m.StreamReport, ...]) -> list[e.AskCommitter]:
        order = of(self.effects, e.AskCommitter)[-1]
        return self._note(self.reporter.answered(order, answer, now))

    def fire(self, now: tuple[m.StreamReport, ...]) -> list[e.AskCommitter]:
        timer = of(self.effects, e.SetStreamTimer)[-1]
        return self._note(self.reporter.timer_fired(timer.number, now))

    def timers(self) -> list[int]:
        return [each.ms for each in of(self.effects, e.SetStreamTimer)]

    def _note(self, effects: list[e.NodeEffect]) -> list[e.AskCommitter]:
        self.effects += effects
        return of(effects, e.AskCommitter)


def test_one_report_is_under_way_and_what_changes_meanwhile_goes_with_the_next() -> None:
    rig = Rig()
    (first,) = rig.look(reports(1))
    assert first.node == SECOND
    assert first.message == m.Report(LOG, TERM, ME, reports(1))
    assert rig.look(reports(2)) == rig.look(reports(3)) == []
    (next_one,) = rig.answer(REPORTED, reports(3))
    assert next_one.message.reports == reports(3)
    assert rig.answer(REPORTED, reports(3)) == []


def test_what_is_not_new_is_not_reported() -> None:
    rig = Rig()
    rig.look(reports(1))
    rig.answer(REPORTED, reports(1))
    assert rig.look(reports(1)) == []
    rig.reporter.told(reports(2))
    assert rig.look(reports(2)) == [], "the committer heard it with an answer"


def test_an_idle_node_reports_now_and_then() -> None:
    rig = Rig()
    rig.look(reports(1))
    rig.answer(REPORTED, reports(1))
    assert rig.timers() == [REPORT_IDLE_MS]
    assert rig.fire(reports(1)) == [], "it has reported since the timer was set"
    assert len(rig.fire(reports(1))) == 1
    assert rig.timers() == [REPORT_IDLE_MS] * 3


def test_while_a_replica_is_not_open_reports_come_more_often() -> None:
    rig = Rig()
    rig.look(reports(1))
    rig.answer(REPORTED, reports(1))
    rig.look(SEALED)
    rig.answer(REPORTED, SEALED)
    assert rig.timers() == [REPORT_IDLE_MS, REPORT_UNREST_MS]
    assert rig.reporter.timer_fired(1, SEALED) == [], "an earlier timer does not count any more"
    rig.fire(SEALED)
    assert len(rig.fire(SEALED)) == 1


def test_a_redirection_is_followed_at_once_but_not_for_ever() -> None:
    rig = Rig()
    rig.look(reports(1))
    for _ in range(REDIRECTS_MAX):
        (again,) = rig.answer(m.Redirected(THIRD, Epoch(5)), reports(1))
        assert (again.node, again.message.term) == (THIRD, Epoch(5))
    assert rig.answer(m.Redirected(THIRD, Epoch(5)), reports(1)) == []
    assert rig.timers()[-1] == REPORT_UNREST_MS


@pytest.mark.parametrize(
    "answer", [LOST, m.Refused(m.Refusal.NOT_READY)], ids=["failure", "refusal"]
)
def test_after_a_failure_somebody_must_find_out_who_is_the_committer(answer: Answer) -> None:
    rig = Rig()
    rig.look(reports(1))
    assert rig.answer(answer, reports(1)) == []
    assert rig.look(reports(2)) == [], "not before a pause"
    (again,) = rig.fire(reports(2))
    assert (again.node, again.message.reports) == (NO_NODE, reports(2))


def test_the_committer_of_the_newest_term_is_the_one() -> None:
    reporter = Rig().reporter
    assert not reporter.heard(THIRD, Epoch(3))
    assert reporter.committer == SECOND
    assert reporter.heard(THIRD, Epoch(5))
    assert (reporter.committer, reporter.term) == (THIRD, 5)


def test_whoever_took_the_report_is_the_committer() -> None:
    rig = Rig()
    rig.look(reports(1))
    order = e.AskCommitter(LOG, NodeId(9), m.Report(LOG, TERM, ME, reports(1)), 1)
    rig.reporter.answered(order, m.Reported(Epoch(7)), reports(1))
    assert (rig.reporter.committer, rig.reporter.term) == (9, 7)


def test_a_node_without_replicas_reports_nothing() -> None:
    assert Rig().look(()) == []


def test_strangers_are_told_by_what_was_reported_of_them() -> None:
    others = reports(1, StreamId(8))
    order = e.AskCommitter(LOG, SECOND, m.Report(LOG, TERM, ME, reports(2) + others), 1)
    assert strangers(order, m.Reported(TERM, (StreamId(8), StreamId(9)))) == others
    assert strangers(order, LOST) == ()
