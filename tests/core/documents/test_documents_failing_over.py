"""Who becomes the master, by what the holders of a fenced seat say."""

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.failing_over import (
    CannotFailOver,
    CannotReason,
    Promote,
    PromoteReason,
    decide,
)
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.map import Seat
from millrace.core.messages.documents import NO_FAILOVER_ID, HostedPartition
from millrace.types import NO_NODE, NodeId

A, B, C, D = (NodeId(number) for number in range(1, 5))
TERM = 5
OLD, NOW = FailoverId(0xCAFEBABE), FailoverId(0xDEADBEEF)
LOG_OLD = FailoverLog((FailoverEntry(OLD, Seq(0)),))
LOG_NOW = FailoverLog((FailoverEntry(NOW, Seq(5)), FailoverEntry(OLD, Seq(0))))
THREE = Seat(TERM, NOW, NO_NODE, (A, B, C))
TWO = Seat(TERM, NOW, NO_NODE, (A, B))


def copy(
    complete: int,
    log: FailoverLog = LOG_NOW,
    *,
    term: int = TERM,
    persisted: int | None = None,
    has_undo: bool = False,
) -> HostedPartition:
    return HostedPartition(
        PartitionId(0),
        PartitionState.REPLICA,
        term,
        log,
        Seq(complete),
        Seq(complete),
        Seq(complete),
        Seq(complete if persisted is None else persisted),
        has_undo,
        False,
        True,
    )


EMPTY = copy(0, FailoverLog())
BEST = PromoteReason.MOST_COMPLETE


@pytest.mark.parametrize(
    ("seat", "copies", "answers", "expected"),
    [
        pytest.param(THREE, 3, {B: copy(7), C: copy(8)}, Promote(C, BEST), id="most complete"),
        pytest.param(
            THREE,
            3,
            {B: copy(8, persisted=6), C: copy(8, persisted=7)},
            Promote(C, BEST),
            id="of equals the one with more on disk",
        ),
        pytest.param(
            THREE,
            3,
            {A: copy(8), B: copy(8), C: copy(8)},
            Promote(A, BEST),
            id="of equals the first in the seat",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(6), C: copy(9, LOG_OLD)},
            Promote(B, BEST),
            id="who knows the seat's id before who has more of another history",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(4, LOG_OLD), C: copy(9, LOG_OLD)},
            Promote(C, PromoteReason.EARLIER_HISTORY),
            id="nobody heard of the last master",
        ),
        pytest.param(
            msgspec.structs.replace(THREE, id=FailoverId(0xF00D)),
            3,
            {B: copy(5, LOG_NOW), C: copy(9, LOG_OLD)},
            Promote(B, PromoteReason.EARLIER_HISTORY),
            id="then the later history",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(4, LOG_NOW), C: copy(9, LOG_OLD)},
            Promote(C, PromoteReason.EARLIER_HISTORY),
            id="who rolled back for the last master, and did not get what it began with",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(7, has_undo=True), C: copy(7)},
            Promote(C, BEST),
            id="an unfinished undo disqualifies, and answers",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(9, has_undo=True), C: copy(7)},
            CannotReason.UNDO_PENDING,
            id="an unfinished undo that has more than the others is not passed over",
        ),
        pytest.param(
            msgspec.structs.replace(TWO, pending=D),
            2,
            {B: copy(7), D: copy(9)},
            Promote(D, BEST),
            id="one that is pending can be the best",
        ),
        pytest.param(
            TWO,
            2,
            {B: copy(7), C: copy(9)},
            Promote(C, BEST),
            id="one that was just taken out, too",
        ),
        pytest.param(TWO, 2, {B: copy(5)}, Promote(B, BEST), id="one of two copies is enough"),
        pytest.param(
            THREE, 3, {C: copy(9)}, CannotReason.TOO_FEW_ANSWERS, id="one of three is not"
        ),
        pytest.param(
            THREE,
            3,
            {C: copy(9), D: copy(9)},
            CannotReason.TOO_FEW_ANSWERS,
            id="who does not vote does not count",
        ),
        pytest.param(
            TWO, 3, {A: copy(1)}, CannotReason.TOO_FEW_ANSWERS, id="missing copies count against it"
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(9), C: copy(9, term=TERM - 1)},
            CannotReason.TOO_FEW_ANSWERS,
            id="who is not fenced may still get more",
        ),
        pytest.param(
            THREE,
            3,
            {B: copy(9), C: EMPTY},
            CannotReason.TOO_FEW_ANSWERS,
            id="who lost its disk answers for nothing",
        ),
        pytest.param(
            msgspec.structs.replace(THREE, founded=3),
            3,
            {B: copy(9), C: msgspec.structs.replace(EMPTY, created=2)},
            Promote(B, BEST),
            id="who was there before the first master, and never followed one, answers",
        ),
        pytest.param(
            msgspec.structs.replace(THREE, founded=3),
            3,
            {B: copy(9), C: msgspec.structs.replace(EMPTY, created=3)},
            CannotReason.TOO_FEW_ANSWERS,
            id="who was made when there was a master may be one that lost its disk",
        ),
        pytest.param(
            msgspec.structs.replace(TWO, founded=3),
            2,
            {B: msgspec.structs.replace(EMPTY, created=2)},
            CannotReason.ALL_LOST,
            id="who never followed a master is no master",
        ),
        pytest.param(
            TWO,
            2,
            {B: copy(7, has_undo=True)},
            CannotReason.UNDO_PENDING,
            id="only an unfinished undo",
        ),
        pytest.param(TWO, 2, {A: EMPTY, B: EMPTY}, CannotReason.ALL_LOST, id="nobody has anything"),
        pytest.param(THREE, 3, {}, CannotReason.TOO_FEW_ANSWERS, id="nobody answers"),
    ],
)
def test_decisions(
    seat: Seat,
    copies: int,
    answers: dict[NodeId, HostedPartition],
    expected: Promote | CannotReason,
) -> None:
    assert _told(decide(seat, copies, answers)) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({C: copy(9)}, Promote(C, PromoteReason.FORCED), id="without enough answers"),
        pytest.param(
            {B: copy(7), C: copy(9)}, Promote(C, BEST), id="nothing to force with enough answers"
        ),
        pytest.param({A: EMPTY}, Promote(A, PromoteReason.STARTS_EMPTY), id="all is lost"),
        pytest.param({C: EMPTY, B: copy(1)}, Promote(B, PromoteReason.FORCED), id="anything left"),
        pytest.param({C: copy(9, has_undo=True)}, CannotReason.UNDO_PENDING, id="never an undo"),
        pytest.param(
            {B: copy(9, has_undo=True), C: copy(7)},
            Promote(C, PromoteReason.FORCED),
            id="not waiting for one that undoes",
        ),
        pytest.param({}, CannotReason.TOO_FEW_ANSWERS, id="nobody to choose from"),
    ],
)
def test_an_operator_may_force_it(
    answers: dict[NodeId, HostedPartition], expected: Promote | CannotReason
) -> None:
    assert _told(decide(THREE, 3, answers, silent=(A,), force=True)) == expected


def test_those_that_live_are_waited_for() -> None:
    answers = {B: copy(7), C: copy(8)}
    waiting = decide(THREE, 3, answers, silent=(A,))
    assert isinstance(waiting, CannotFailOver) and waiting.reason is CannotReason.WAITING
    assert "nodes 1 " in waiting.detail


@pytest.mark.parametrize(
    ("answers", "silent", "expected"),
    [
        pytest.param({A: EMPTY, B: EMPTY}, (), A, id="the wanted one"),
        pytest.param({B: EMPTY}, (), B, id="the next if that one is gone"),
        pytest.param({B: EMPTY}, (A,), None, id="not before it had its time"),
        pytest.param({A: EMPTY, B: EMPTY}, (C,), None, id="when all that live have their copies"),
        pytest.param({}, (), None, id="nobody is ready"),
    ],
)
def test_a_new_partition_needs_no_quorum(
    answers: dict[NodeId, HostedPartition], silent: tuple[NodeId, ...], expected: NodeId | None
) -> None:
    new = Seat(TERM, NO_FAILOVER_ID, NO_NODE, (A, B, C))
    decided = decide(new, 3, answers, silent)
    if expected is None:
        assert _told(decided) is CannotReason.WAITING
    else:
        assert decided == Promote(expected, PromoteReason.FIRST)


def _told(decided: Promote | CannotFailOver) -> Promote | CannotReason:
    return decided.reason if isinstance(decided, CannotFailOver) else decided
