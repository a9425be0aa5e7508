"""Appending one block: what is asked of whom, and what the client is told."""

from typing import Any

import pytest

from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.append import (
    Append,
    Appended,
    AppendUnknown,
    NotAppended,
    NotAppendedReason,
)
from millrace.core.messages import Refusal, Refused
from millrace.core.projection import ReconfigureReason
from millrace.limits import APPEND_ATTEMPTS_MAX
from millrace.types import Ack, Epoch, Lsn, NodeId
from tests.core.core_samples import (
    DEADLINE,
    FAILED,
    LOG,
    MINE,
    OTHER,
    SEQUENCER,
    TIMED_OUT,
    Run,
    block,
    hole,
    projection,
)

WRITTEN = m.Written()
ISSUED = m.Issued(Lsn(5), 1)
DONE = Appended(Lsn(5), Lsn(5))


def refused(reason: Refusal, epoch: int = 1, *found: Any) -> Refused:
    return Refused(reason, Epoch(epoch), blocks=found)


def start(**fields: Any) -> tuple[Append, Run]:
    append = Append(LOG, 1, MINE, Ack.DISK, lambda first, epoch: block(first))
    return append, Run(append.run(projection(**fields)))


def run(*answers: Any, **fields: Any) -> Run:
    return start(**fields)[1].answer(*answers)


def test_an_append_takes_four_round_trips_in_chain_order() -> None:
    done = run(ISSUED, WRITTEN, WRITTEN, WRITTEN)
    assert done.asked() == [(SEQUENCER, "Next"), (1, "Write"), (2, "Write"), (3, "Write")]
    assert done.result == Appended(Lsn(5), Lsn(5))


def test_every_write_carries_the_chain_the_epoch_and_the_acknowledgement() -> None:
    append = Append(LOG, 1, MINE, Ack.MEMORY, lambda first, epoch: block(first))
    last = Run(append.run(projection(epoch=4))).answer(ISSUED).last
    assert isinstance(last, p.Ask)
    assert isinstance(last.message, m.Write)
    write = last.message
    assert (write.epoch, write.copyset, write.ack) == (4, (1, 2, 3), Ack.MEMORY)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((ISSUED, WRITTEN, WRITTEN, refused(Refusal.TRIMMED)), DONE),
        ((ISSUED, refused(Refusal.WRITTEN, 1, block(5)), WRITTEN, WRITTEN), DONE),
        ((DEADLINE,), NotAppendedReason.DEADLINE),
        ((ISSUED, DEADLINE), AppendUnknown),
        ((ISSUED, WRITTEN, DEADLINE), AppendUnknown),
        ((ISSUED, refused(Refusal.BUSY), DEADLINE), NotAppendedReason.DEADLINE),
        ((ISSUED, refused(Refusal.BUSY), None, DEADLINE), AppendUnknown),
        ((ISSUED, FAILED, TIMED_OUT), NotAppendedReason.UNAVAILABLE),
        ((ISSUED, FAILED, DEADLINE), NotAppendedReason.DEADLINE),
        ((ISSUED, TIMED_OUT, TIMED_OUT), AppendUnknown),
        ((ISSUED, TIMED_OUT, DEADLINE), AppendUnknown),
        ((ISSUED, WRITTEN, FAILED, TIMED_OUT), AppendUnknown),
        ((ISSUED, refused(Refusal.BAD_REQUEST)), NotAppendedReason.REFUSED),
        ((ISSUED, WRITTEN, refused(Refusal.BAD_REQUEST)), AppendUnknown),
        ((ISSUED, m.Filled()), AppendUnknown),
        ((refused(Refusal.BAD_REQUEST),), NotAppendedReason.REFUSED),
        ((m.Written(),), NotAppendedReason.REFUSED),
        ((TIMED_OUT, TIMED_OUT), NotAppendedReason.UNAVAILABLE),
        ((ISSUED, WRITTEN, refused(Refusal.WRITTEN, 1, hole(5))), AppendUnknown),
        ((ISSUED, refused(Refusal.EPOCH, 2), TIMED_OUT), NotAppendedReason.UNAVAILABLE),
    ],
    ids=[
        "trimmed behind the head",
        "repaired for me",
        "deadline before next",
        "deadline during the first write",
        "deadline between writes",
        "deadline while waiting for a busy node",
        "deadline after waiting for a busy node",
        "connect fails and no chain",
        "connect fails and deadline",
        "write times out and no chain",
        "write times out and deadline",
        "second write fails and no chain",
        "refused for certain",
        "refused behind the head",
        "an answer that makes no sense",
        "sequencer refuses",
        "sequencer makes no sense",
        "sequencer silent and no chain",
        "two blocks in one chain",
        "fenced and no projection",
    ],
)  # fmt: skip
def test_outcomes(answers: tuple[Any, ...], expected: Any) -> None:
    """L6: acknowledged, definitely not, unknown."""
    done = run(*answers)
    assert done.is_done
    if isinstance(expected, Appended):
        assert done.result == expected
    elif isinstance(expected, NotAppendedReason):
        assert isinstance(done.result, NotAppended)
        assert done.result.reason is expected
    else:
        assert isinstance(done.result, AppendUnknown)
        assert done.result.first == 5


@pytest.mark.parametrize(
    ("answer", "suspects", "reason"),
    [
        (FAILED, {1}, ReconfigureReason.UNREACHABLE),
        (TIMED_OUT, {1}, ReconfigureReason.UNREACHABLE),
        (refused(Refusal.INCOMPLETE), {1}, ReconfigureReason.INCOMPLETE),
        (refused(Refusal.DISK_FULL), {1}, ReconfigureReason.DISK_FULL),
        (refused(Refusal.UNAVAILABLE), {1}, ReconfigureReason.BROKEN),
        (refused(Refusal.EPOCH, 0), {1}, ReconfigureReason.INCOMPLETE),
    ],
    ids=["connect", "timeout", "incomplete", "full", "broken", "epoch behind"],
)
def test_what_changes_the_chain(answer: Any, suspects: set[int], reason: ReconfigureReason) -> None:
    last = run(ISSUED, answer).last
    assert isinstance(last, p.Reconfigure)
    assert (set(last.suspects), last.reason) == (suspects, reason)
    assert last.seen == projection()


@pytest.mark.parametrize(
    ("answer", "suspects"),
    [(FAILED, {SEQUENCER}), (refused(Refusal.NOT_READY, 0), set())],
    ids=["silent", "not ready"],
)
def test_a_lost_sequencer_changes_the_chain(answer: Any, suspects: set[NodeId]) -> None:
    last = run(answer).last
    assert isinstance(last, p.Reconfigure)
    assert (set(last.suspects), last.reason) == (suspects, ReconfigureReason.SEQUENCER_LOST)


def test_the_append_goes_on_with_the_same_position_after_the_head_failed() -> None:
    done = run(ISSUED, FAILED, projection(2, (2, 3), 1), WRITTEN, WRITTEN)
    assert done.result == Appended(Lsn(5), Lsn(5))
    assert [node for node, kind in done.asked() if kind == "Next"] == [SEQUENCER]


def test_acknowledgements_carry_over_to_the_next_epoch_only() -> None:
    after_tail_failed = (ISSUED, WRITTEN, WRITTEN, TIMED_OUT)
    assert run(*after_tail_failed, projection(2, (1, 2), 1)).result == Appended(Lsn(5), Lsn(5))
    later = run(*after_tail_failed, projection(3, (1, 2), 2))
    assert not later.is_done
    assert later.asked()[-1] == (1, "Write")


def test_a_node_that_joined_is_written_too() -> None:
    done = run(ISSUED, WRITTEN, WRITTEN, TIMED_OUT, projection(2, (1, 2, 4), 1))
    assert done.asked()[-1] == (4, "Write")


@pytest.mark.parametrize(
    "found", [hole(5), block(5, token=OTHER), block(4, 2)], ids=["junk", "another's", "shifted"]
)
def test_a_position_held_by_somebody_else_is_given_up_for_a_new_one(found: Any) -> None:
    done = run(ISSUED, refused(Refusal.WRITTEN, 1, found))
    assert done.asked()[-1] == (SEQUENCER, "Next")
    done.answer(m.Issued(Lsn(8), 1), WRITTEN, WRITTEN, WRITTEN)
    assert done.result == Appended(Lsn(8), Lsn(8))


def test_after_a_new_position_the_outcome_of_the_old_one_is_forgotten() -> None:
    """I3: nothing of the block is in the log, so the failure is definite."""
    done = run(ISSUED, TIMED_OUT, projection(2, (2, 3), 1))
    done.answer(refused(Refusal.WRITTEN, 2, hole(5)), DEADLINE)
    assert isinstance(done.result, NotAppended)


def test_a_position_of_a_sequencer_that_counts_no_more_is_not_written() -> None:
    """G8: it may lie below what was acknowledged since."""
    moved = projection(2, (2, 3), 1, issuing_since=Epoch(2))
    done = run(ISSUED, FAILED, moved)
    assert done.asked()[-1] == (SEQUENCER, "Next")
    done = run(ISSUED, TIMED_OUT, moved)
    assert done.asked()[-1] == (2, "Read")
    done.answer(refused(Refusal.UNWRITTEN, 2))
    assert done.asked()[-1] == (SEQUENCER, "Next")
    done = run(ISSUED, TIMED_OUT, moved, m.Found(block(5)), WRITTEN, WRITTEN)
    assert done.result == Appended(Lsn(5), Lsn(5))


def test_a_fenced_node_makes_the_client_look_up_the_projection_first() -> None:
    done = run(ISSUED, refused(Refusal.EPOCH, 3))
    assert done.last == p.Refresh(LOG, Epoch(3))
    assert done.answer(projection(3, (2, 3), 2)).asked()[-1] == (2, "Write")


def test_a_seal_nobody_finished_is_finished_by_the_writer() -> None:
    last = run(ISSUED, refused(Refusal.EPOCH, 3), projection()).last
    assert isinstance(last, p.Reconfigure)
    assert (set(last.suspects), last.reason) == (set(), ReconfigureReason.FENCED)


@pytest.mark.parametrize("reason", [Refusal.DISK_FULL, Refusal.UNAVAILABLE])
def test_the_last_node_of_a_chain_is_never_taken_out_for_its_disk(reason: Refusal) -> None:
    done = run(ISSUED, refused(reason), chain=(1,))
    assert isinstance(done.result, NotAppended)


def test_a_sealed_log_takes_nothing() -> None:
    done = run(is_sealed=True)
    assert isinstance(done.result, NotAppended)
    assert done.result.reason is NotAppendedReason.SEALED


SEALED = projection(2, (2,), 1, is_sealed=True)
NOT_IN_SEALED = NotAppended(NotAppendedReason.SEALED, "the log is sealed")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (m.Found(block(5)), DONE),
        (m.Found(block(5, token=OTHER)), NOT_IN_SEALED),
        (m.Found(hole(5)), NOT_IN_SEALED),
        (refused(Refusal.UNWRITTEN, 2), NOT_IN_SEALED),
    ],
)
def test_the_head_of_a_sealed_chain_settles_what_was_unknown(head: Any, expected: Any) -> None:
    """Sealing made the chain equal: what its head holds is in the log, the rest never will be."""
    done = run(ISSUED, TIMED_OUT, SEALED)
    assert done.asked()[-1] == (2, "Read")
    assert done.answer(head).result == expected


def test_a_sealed_log_settles_when_the_append_is_resumed() -> None:
    append, first = start()
    assert isinstance(first.answer(ISSUED, DEADLINE).result, AppendUnknown)
    again = Run(append.run(SEALED)).answer(refused(Refusal.UNWRITTEN, 2))
    assert again.result == NOT_IN_SEALED
    assert Run(append.run(SEALED)).result == NOT_IN_SEALED


GONE = p.Failure(p.FailureKind.UNKNOWN_LOG, "log 1 does not exist")


@pytest.mark.parametrize(
    "answers",
    [
        (refused(Refusal.EPOCH, 2), GONE),
        (refused(Refusal.EPOCH, 0), GONE),
        (ISSUED, TIMED_OUT, GONE),
    ],
)
def test_a_deleted_log_holds_nothing(answers: tuple[Any, ...]) -> None:
    done = run(*answers)
    assert isinstance(done.result, NotAppended)
    assert done.result.reason is NotAppendedReason.UNKNOWN_LOG


def test_it_gives_up_after_many_changes() -> None:
    done = run(ISSUED)
    for epoch in range(2, APPEND_ATTEMPTS_MAX + 1):
        done.answer(TIMED_OUT, projection(epoch, (1, 2, 3), epoch - 1))
    done.answer(TIMED_OUT, projection(APPEND_ATTEMPTS_MAX + 1, (1, 2, 3), APPEND_ATTEMPTS_MAX))
    assert isinstance(done.result, AppendUnknown)


def test_running_again_after_an_unknown_outcome_makes_no_second_copy() -> None:
    append, first = start()
    first.answer(ISSUED, WRITTEN, DEADLINE)
    assert isinstance(first.result, AppendUnknown)
    again = Run(append.run(projection()))
    assert again.asked() == [(2, "Write")]
    again.answer(WRITTEN, refused(Refusal.WRITTEN, 1, block(5)))
    assert again.result == Appended(Lsn(5), Lsn(5))
