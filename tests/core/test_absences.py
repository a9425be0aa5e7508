"""When nodes that take no copies are asked whether they do again."""

import pytest

from millrace.core.sequenced.absences import PAUSE_MS, PAUSE_MS_MAX, Absences
from millrace.types import NodeId

A, B = NodeId(1), NodeId(2)


@pytest.fixture
def absences() -> Absences:
    """A did not take a copy, at 0 ms."""
    absences = Absences()
    absences.missed(A, 0)
    return absences


def test_a_node_is_asked_after_a_pause(absences: Absences) -> None:
    assert absences.due(PAUSE_MS - 1, ()) == []
    assert absences.due(PAUSE_MS, ()) == [A]


def test_it_is_asked_one_question_at_a_time(absences: Absences) -> None:
    assert absences.due(PAUSE_MS, ()) == [A]
    assert absences.due(9 * PAUSE_MS, ()) == []
    absences.answered(A, False, 9 * PAUSE_MS)
    assert absences.due(10 * PAUSE_MS, ()) == [A]


def test_failing_again_while_it_is_away_changes_nothing(absences: Absences) -> None:
    for now_ms in range(1, PAUSE_MS):
        absences.missed(A, now_ms)
    assert absences.due(PAUSE_MS, ()) == [A]


def test_those_left_out_are_asked_when_they_are_not_any_more(absences: Absences) -> None:
    absences.missed(B, 0)
    assert absences.due(PAUSE_MS, {A}) == [B]
    assert absences.due(PAUSE_MS, ()) == [A]


def test_who_has_stored_is_not_absent(absences: Absences) -> None:
    absences.stored(A)
    absences.stored(B)
    absences.answered(A, True, 1)
    assert A not in absences
    assert absences.nodes == absences.due(PAUSE_MS, ()) == []


def test_who_answers_and_takes_no_copies_is_asked_less_and_less_often(absences: Absences) -> None:
    pauses = []
    now_ms = asked_ms = PAUSE_MS
    for _ in range(10):
        while not absences.due(now_ms, ()):
            now_ms += PAUSE_MS
        pauses.append(now_ms - asked_ms)
        asked_ms = now_ms
        absences.answered(A, True, now_ms)
        for _ in range(3):  # All that waited was sent, and none of it was taken.
            absences.missed(A, now_ms)
    assert pauses == [0, *(min(PAUSE_MS << n, PAUSE_MS_MAX) for n in range(1, 10))]
    absences.hope(now_ms)
    assert absences.due(now_ms, ()) == [A], "things have changed: at once"
    absences.answered(A, False, now_ms)
    assert absences.due(now_ms + PAUSE_MS, ()) == [A]
