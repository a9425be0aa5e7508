"""What a reader does at a position that the tail does not hold."""

from typing import Any

import pytest

from millrace.codec.blocks import junk
from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.messages import Refusal, Refused
from millrace.core.projection import ReconfigureReason
from millrace.core.repair import ROUNDS_MAX, ChainTrouble, FillPolicy, RepairResult, repair
from millrace.core.trim import retention_point, trim
from millrace.types import Block, EntryKind, Epoch, Lsn
from tests.core.core_samples import (
    LOG,
    OTHER,
    SEQUENCER,
    TIMED_OUT,
    Run,
    block,
    hole,
    projection,
)

PEEKED = m.Peeked(Lsn(9), Lsn(5), Lsn(6))
EMPTY = Refused(Refusal.UNWRITTEN, Epoch(1))
WRITTEN = m.Written()


def refused(reason: Refusal, epoch: int = 1, *found: Any) -> Refused:
    return Refused(reason, Epoch(epoch), blocks=found)


def index_of(*blocks: Block) -> m.IndexPage:
    extents = tuple(each.extent() for each in blocks)
    return m.IndexPage(extents, Lsn(70_000), Lsn(1), Lsn(5))


def run(*answers: Any, wait_ms: int | None = 0, chain: tuple[int, ...] = (1, 2, 3)) -> Run:
    policy = FillPolicy(wait_ms)
    return Run(repair(projection(chain=chain), Lsn(5), policy, junk)).answer(*answers)


def test_a_position_nobody_was_given_is_never_filled() -> None:
    done = run(m.Peeked(Lsn(4)))
    assert (done.result, done.asked()) == (RepairResult.NOT_ISSUED, [(SEQUENCER, "Peek")])
    assert not run(m.Peeked(Lsn(5))).is_done


def test_a_partial_write_is_completed_at_once_with_the_heads_bytes() -> None:
    value = block(5, 2, OTHER)
    done = run(PEEKED, m.Found(value), wait_ms=1_000)
    assert isinstance(done.last, p.Ask)
    assert isinstance(done.last.message, m.Write)
    assert done.last.message.block is value
    done.answer(WRITTEN, refused(Refusal.WRITTEN, 1, value))
    assert done.result is RepairResult.COMPLETED
    assert done.notes == []
    assert [node for node, kind in done.asked() if kind == "Write"] == [2, 3]


def test_another_block_below_the_head_is_noted() -> None:
    done = run(PEEKED, m.Found(block(5)), refused(Refusal.WRITTEN, 1, hole(5)), WRITTEN)
    assert done.notes == ["chain.diverged"]


def test_the_interval_is_waited_once_and_the_head_is_probed_again() -> None:
    done = run(PEEKED, EMPTY, wait_ms=70)
    assert done.last == p.Pause(70)
    done.answer(None, PEEKED, m.Found(block(5)), WRITTEN, WRITTEN)
    assert done.result is RepairResult.COMPLETED
    filling = run(PEEKED, EMPTY, None, PEEKED, EMPTY, wait_ms=70)
    assert filling.asked()[-1] == (1, "Fill")


def test_holes_are_filled_as_they_were_issued_from_the_head_down() -> None:
    done = run(PEEKED, EMPTY, m.Filled(), WRITTEN, WRITTEN)
    assert done.result is RepairResult.FILLED
    assert done.asked()[2:] == [(1, "Fill"), (2, "Write"), (3, "Write")]
    fill = done.effects[2]
    assert isinstance(fill, p.Ask)
    assert isinstance(fill.message, m.Fill)
    junked = fill.message.block
    assert (junked.first, junked.last, junked.kind) == (5, 6, EntryKind.HOLE)


@pytest.mark.parametrize(
    ("peeked", "answers", "filled"),
    [
        (m.Peeked(Lsn(9)), (index_of(),), (5, 5)),
        (m.Peeked(Lsn(9)), (index_of(block(8)),), (5, 7)),
        (PEEKED, (refused(Refusal.WRITTEN, 1, block(6)),), (5, 5)),
    ],
    ids=["range forgotten, nothing above", "range forgotten", "range issued again"],
)
def test_what_is_filled_when_the_range_is_not_known(
    peeked: m.Peeked, answers: tuple[Any, ...], filled: tuple[int, int]
) -> None:
    last = run(peeked, EMPTY, *answers).last
    assert isinstance(last, p.Ask)
    assert isinstance(last.message, m.Fill)
    assert (last.message.block.first, last.message.block.last) == filled


def test_a_forgotten_range_is_not_waited_for() -> None:
    """The sequencer that issued it is gone, so its writer takes another position."""
    done = run(m.Peeked(Lsn(9)), EMPTY, wait_ms=1_000)
    assert done.asked()[-1] == (1, "Index")
    assert run(m.Peeked(Lsn(9)), EMPTY, wait_ms=None).result is RepairResult.WAITING
    trouble = run(m.Peeked(Lsn(9)), EMPTY, TIMED_OUT).result
    assert isinstance(trouble, ChainTrouble)
    assert trouble.cause is ReconfigureReason.UNREACHABLE


def test_a_late_writer_wins_at_the_head() -> None:
    done = run(m.Peeked(Lsn(9), Lsn(5), Lsn(5)), EMPTY, refused(Refusal.WRITTEN, 1, block(5)))
    assert done.asked()[-1] == (SEQUENCER, "Peek")
    done.answer(PEEKED, m.Found(block(5)), WRITTEN, WRITTEN)
    assert done.result is RepairResult.COMPLETED


def test_looking_again_has_an_end() -> None:
    single = m.Peeked(Lsn(9), Lsn(5), Lsn(5))
    done = run(single, EMPTY)
    for _ in range(ROUNDS_MAX - 1):
        done.answer(refused(Refusal.WRITTEN, 1, block(5)), single, EMPTY)
    done.answer(refused(Refusal.WRITTEN, 1, block(5)))
    assert done.result is RepairResult.WAITING


def test_policies_and_trimmed_positions() -> None:
    assert run(PEEKED, EMPTY, wait_ms=None).result is RepairResult.WAITING
    assert run(PEEKED, refused(Refusal.TRIMMED)).result is RepairResult.READABLE
    trimmed = run(PEEKED, m.Found(block(5)), refused(Refusal.TRIMMED))
    assert trimmed.result is RepairResult.COMPLETED


def test_a_chain_of_one_is_its_own_head() -> None:
    assert run(PEEKED, EMPTY, m.Filled(), chain=(1,)).result is RepairResult.FILLED
    found = run(PEEKED, m.Found(block(5)), described(readable_end=6), chain=(1,))
    assert found.result is RepairResult.COMPLETED


@pytest.mark.parametrize(
    ("answers", "node", "cause", "epoch"),
    [
        ((TIMED_OUT,), SEQUENCER, ReconfigureReason.UNREACHABLE, 0),
        ((refused(Refusal.NOT_READY, 0),), SEQUENCER, ReconfigureReason.SEQUENCER_LOST, 0),
        ((refused(Refusal.EPOCH, 4),), SEQUENCER, None, 4),
        ((m.Written(),), SEQUENCER, None, 0),
        ((PEEKED, TIMED_OUT), 1, ReconfigureReason.UNREACHABLE, 0),
        ((PEEKED, refused(Refusal.EPOCH, 4)), 1, None, 4),
        ((PEEKED, refused(Refusal.INCOMPLETE)), 1, ReconfigureReason.INCOMPLETE, 1),
        ((PEEKED, EMPTY, refused(Refusal.DISK_FULL)), 1, ReconfigureReason.DISK_FULL, 1),
        ((PEEKED, EMPTY, refused(Refusal.BUSY)), 1, None, 1),
        ((PEEKED, EMPTY, m.Filled(), TIMED_OUT), 2, ReconfigureReason.UNREACHABLE, 0),
        (
            (PEEKED, m.Found(block(5)), WRITTEN, refused(Refusal.UNAVAILABLE)),
            3,
            ReconfigureReason.BROKEN,
            1,
        ),
    ],
)
def test_troubles(
    answers: tuple[Any, ...], node: int, cause: ReconfigureReason | None, epoch: int
) -> None:
    trouble = run(*answers).result
    assert isinstance(trouble, ChainTrouble)
    assert (trouble.node, trouble.cause, trouble.epoch) == (node, cause, epoch)


# -- Trimming ---------------------------------------------------------------------------------


def test_the_tail_trims_first() -> None:
    running = Run(trim(projection(), Lsn(9)))
    assert running.asked() == [(3, "Trim")]
    running.answer(m.Trimmed(Lsn(9)))
    assert running.asked()[1:] == [(1, "Trim"), (2, "Trim")]
    assert running.answer([m.Trimmed(Lsn(9)), m.Trimmed(Lsn(12))]).result is None
    assert running.is_done


def test_what_the_tail_does_not_hold_is_trimmed_nowhere() -> None:
    running = Run(trim(projection(), Lsn(9))).answer(EMPTY)
    assert running.result == (3, EMPTY)
    assert running.asked() == [(3, "Trim")]


def test_who_did_not_trim_is_told() -> None:
    running = Run(trim(projection(), Lsn(9))).answer(m.Trimmed(Lsn(9)), [TIMED_OUT, EMPTY])
    assert running.result == (1, TIMED_OUT)


@pytest.mark.parametrize(
    ("oldest_us", "bytes_kept", "answers", "expected"),
    [
        (None, None, (), 0),
        (7, None, (m.Position(Lsn(4)),), 4),
        (None, 7, (m.Position(Lsn(6)),), 6),
        (7, 7, (m.Position(Lsn(4)), m.Position(Lsn(6))), 6),
        (7, 7, (m.Position(Lsn(6)), m.Position(Lsn(4))), 6),
        (7, 7, (TIMED_OUT,), TIMED_OUT),
        (7, 7, (m.Position(Lsn(6)), TIMED_OUT), TIMED_OUT),
    ],
)
def test_retention_goes_as_far_as_age_or_size_allows(
    oldest_us: int | None, bytes_kept: int | None, answers: tuple[Any, ...], expected: Any
) -> None:
    running = retention_point(projection(), oldest_us, bytes_kept)
    if not answers:
        with pytest.raises(StopIteration) as stopped:
            next(running)
        assert stopped.value.value == expected
    else:
        assert Run(running).answer(*answers).result == expected


def test_logs_are_named_in_requests() -> None:
    asked = run().last
    assert asked == p.Ask(SEQUENCER, m.Peek(LOG, Epoch(1), Lsn(5)))


def test_a_hole_below_the_reader_is_repaired_first() -> None:
    value = block(5, 2, OTHER)
    whole = (PEEKED, m.Found(value), refused(Refusal.WRITTEN, 1, value))
    done = run(*whole, refused(Refusal.WRITTEN, 1, value))
    assert isinstance(done.last, p.Ask)
    assert isinstance(done.last.message, m.Describe)
    done.answer(described(readable_end=3), m.Peeked(Lsn(9), Lsn(3), Lsn(4)), EMPTY)
    assert isinstance(done.last, p.Ask)
    assert isinstance(done.last.message, m.Fill)
    assert (done.last.message.block.first, done.last.message.block.last) == (3, 4)


def test_what_everybody_has_and_can_read_needs_no_repair() -> None:
    value = block(5, 2, OTHER)
    written = refused(Refusal.WRITTEN, 1, value)
    done = run(PEEKED, m.Found(value), written, written, described(readable_end=7))
    assert done.result is RepairResult.COMPLETED


def described(readable_end: int) -> m.Described:
    end = Lsn(readable_end)
    return m.Described(Epoch(1), m.Standing.MEMBER, Lsn(1), end, end, Lsn(7), 1, 100)
