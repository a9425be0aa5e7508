"""Changing a log's chain."""

from typing import Any

import pytest

from millrace.codec.blocks import junk
from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.messages import Refusal, Refused, Sealed, Standing
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.reconfigure import RIVAL_PAUSES_MS, Change, create, reconfigure
from millrace.limits import RECONFIGURE_ATTEMPTS_MAX
from millrace.types import Epoch, Lsn, NodeId, Role, Token
from tests.core.core_samples import (
    CHAIN,
    DEADLINE,
    FAILED,
    LOG,
    MINE,
    SEQUENCER,
    TIMED_OUT,
    Run,
    node_info,
    projection,
)

UNREACHABLE = ReconfigureReason.UNREACHABLE
NODES = tuple(map(node_info, (1, 2, 3, 4)))
VIEW = p.ClusterView(
    (*NODES, node_info(SEQUENCER, roles=(Role.SEQUENCER,)), node_info(10, roles=(Role.SEQUENCER,))),
    frozenset(map(NodeId, (1, 2, 3, 4, 9, 10))),
)


def sealed(end: int = 5, standing: Standing = Standing.MEMBER) -> Sealed:
    return Sealed(Epoch(1), standing, Lsn(1), Lsn(end), Lsn(end))


SECOND = frozenset({NodeId(2)})
FULL = {"suspects": SECOND, "reason": ReconfigureReason.DISK_FULL}
BROKEN = {"suspects": SECOND, "reason": ReconfigureReason.BROKEN}
DIRTY, BLANK = sealed(5, Standing.DIRTY), sealed(5, Standing.BLANK)
AHEAD = Refused(Refusal.EPOCH, Epoch(2))


def boot(next_lsn: int = 5, since: int = 1) -> m.Bootstrapped:
    return m.Bootstrapped(Lsn(next_lsn), Epoch(since))


def start(*seals: Any, current: Projection | None = None, version: int = 7, **fields: Any) -> Run:
    """A change that has read the projection and had its seals answered."""
    change = Change(LOG, **({"reason": UNREACHABLE} | fields))
    run = Run(reconfigure(change, MINE, junk))
    return run.answer((current or projection(), version), list(seals))


def chain_of(run: Run) -> tuple[int, ...]:
    """The chain that is proposed once everything else went well."""
    run.answer(VIEW, boot())
    if isinstance(run.last, p.AskAll):
        run.answer([m.Admitted() for _ in run.last.asks])
    assert isinstance(run.last, p.ReplaceProjection)
    return run.last.projection.chain


@pytest.mark.parametrize(
    ("seals", "fields", "chain"),
    [
        ((TIMED_OUT, sealed(), sealed()), {}, (2, 3)),
        ((sealed(), sealed(), sealed()), {"suspects": frozenset({NodeId(1)})}, (1, 2, 3)),
        ((sealed(), DIRTY, BLANK), {}, (1,)),
        ((sealed(), sealed(), sealed()), FULL, (1, 3)),
        ((sealed(), sealed(), sealed()), BROKEN, (1, 3)),
        ((FAILED, sealed(), FAILED), FULL, (2,)),
        ((sealed(), sealed()), {"remove": frozenset({NodeId(1)})}, (2, 3)),
        ((sealed(), sealed(), sealed(), BLANK), {"add": (NodeId(4),)}, (1, 2, 3, 4)),
        ((sealed(), sealed(), sealed(), TIMED_OUT), {"add": (NodeId(4),)}, (1, 2, 3)),
        ((DIRTY, DIRTY, DIRTY), {}, (1, 2, 3)),
        ((BLANK, DIRTY, BLANK), {}, (2,)),
    ],
    ids=[
        "silent head leaves",
        "a suspect that answers stays",
        "who lost data leaves",
        "a full node leaves",
        "a broken node leaves",
        "the last one stays although full",
        "removed by an operator",
        "grown",
        "a learner that is silent is not added",
        "all dirty",
        "the dirty over the blank",
    ],
)  # fmt: skip
def test_who_is_in_the_new_chain(
    seals: tuple[Any, ...], fields: dict[str, Any], chain: tuple[int, ...]
) -> None:
    assert chain_of(start(*seals, **fields)) == chain


@pytest.mark.parametrize(
    "seals",
    [
        (DIRTY, DIRTY, TIMED_OUT),
        (TIMED_OUT, TIMED_OUT, TIMED_OUT),
        (BLANK, BLANK, BLANK),
        (DIRTY, BLANK, FAILED),
    ],
    ids=["somebody whole may be silent", "nobody", "all wiped", "one silent"],
)
def test_without_a_whole_member_nothing_is_changed(seals: tuple[Any, ...]) -> None:
    run = start(*seals)
    assert isinstance(run.last, p.Pause)
    assert run.notes == ["reconfigure.again"]


def test_a_silent_round_is_repeated_in_the_same_epoch_by_the_same_proposer() -> None:
    """So that whoever was sealed answers again, instead of refusing a rival."""
    run = start(DIRTY, DIRTY, TIMED_OUT)
    first = run.effects[1]
    run.answer(None, (projection(), 7))
    assert run.last == first


@pytest.mark.parametrize(
    ("current", "is_adopted"),
    [
        (projection(1), False),
        (projection(2, (2, 3), 1), True),
        (projection(3, (2, 3), 2), True),
    ],
    ids=["not finished", "his", "somebody's after him"],
)
def test_the_loser_adopts_what_the_winner_made(current: Projection, is_adopted: bool) -> None:
    run = start(TIMED_OUT, AHEAD, AHEAD, only_from=Epoch(1))
    run.answer(None, (current, 8))
    assert run.is_done == is_adopted
    if is_adopted:
        assert run.result == current
    else:
        # The winner gets the time that a seal may take, then he counts as dead.
        for _ in range(len(RIVAL_PAUSES_MS)):
            assert isinstance(run.last, p.Pause)
            run.answer(None, (current, 8))
        assert isinstance(run.last, p.AskAll)
        assert {ask.message.epoch for ask in run.last.asks} == {3}  # type: ignore[attr-defined]


def test_a_projection_below_the_seals_we_met_is_not_adopted() -> None:
    ahead = Refused(Refusal.EPOCH, Epoch(5))
    run = start(TIMED_OUT, ahead, ahead, only_from=Epoch(1))
    run.answer(None, (projection(3, (2, 3), 2), 8))
    assert not run.is_done


def test_a_node_that_learned_in_an_epoch_is_not_added_in_a_later_one() -> None:
    """It may hold what the chain has replaced since, so the seals that were met do not matter."""
    ahead = Refused(Refusal.EPOCH, Epoch(5))
    run = start(sealed(), ahead, ahead, BLANK, add=(NodeId(4),), only_from=Epoch(1))
    moved = projection(3, (2, 3), 2)
    assert run.answer(None, (moved, 8)).result == moved


@pytest.mark.parametrize("answer", [False, TIMED_OUT], ids=["conflict", "unknown"])
def test_after_a_lost_compare_and_set_the_projection_is_read_again(answer: Any) -> None:
    run = start(TIMED_OUT, sealed(), sealed(), only_from=Epoch(1)).answer(VIEW, boot(), answer)
    assert isinstance(run.last, p.Pause)
    winner = projection(2, (3,), 1)
    assert run.answer(None, (winner, 8)).result == winner


def test_a_change_without_a_condition_is_made_whatever_the_epoch() -> None:
    run = start(sealed(), sealed(), current=projection(5, (2, 3), 4))
    assert chain_of(run) == (2, 3)


def test_a_change_from_an_epoch_that_has_passed_is_done_already() -> None:
    change = Change(LOG, UNREACHABLE, only_from=Epoch(1))
    current = projection(2, (2, 3), 1)
    assert Run(reconfigure(change, MINE, junk)).answer((current, 8)).result == current


def test_the_new_projection_follows_the_old_one() -> None:
    old = projection(4, previous=2, changes=6, issuing_since=Epoch(3))
    run = start(TIMED_OUT, sealed(8), sealed(8), current=old, seal_for_good=True)
    run.answer(VIEW)
    assert run.last == p.Ask(SEQUENCER, m.Bootstrap(LOG, Epoch(5), Lsn(8)), 1_000)
    run.answer(boot(8, since=3))
    assert run.last == p.ReplaceProjection(
        Projection(
            LOG,
            Epoch(5),
            (NodeId(2), NodeId(3)),
            SEQUENCER,
            3,
            previous=Epoch(4),
            reason=UNREACHABLE,
            is_sealed=True,
            changes=7,
            issuing_since=Epoch(3),
        ),
        7,
    )
    assert run.answer(True).result == run.effects[-1].projection  # type: ignore[union-attr]
    assert run.notes == ["chain.sealed", "chain.changed"]


def test_a_single_node_left_is_a_warning() -> None:
    run = start(TIMED_OUT, TIMED_OUT, sealed()).answer(VIEW, boot(), True)
    assert run.notes[-1] == "chain.no_redundancy"


@pytest.mark.parametrize(
    ("since", "sequencer", "expected"),
    [(1, SEQUENCER, 1), (4, SEQUENCER, 4), (1, 10, 4)],
    ids=["goes on", "forgot its count", "another one"],
)
def test_since_when_positions_count(since: int, sequencer: int, expected: int) -> None:
    old = projection(3, issuing_since=Epoch(1))
    run = start(sealed(), sealed(), sealed(), current=old).answer(VIEW)
    if sequencer != SEQUENCER:
        run.answer(TIMED_OUT)
    run.answer(boot(5, since))
    assert isinstance(run.last, p.ReplaceProjection)
    assert run.last.projection.issuing_since == expected
    assert run.last.projection.sequencer == sequencer


def test_a_suspected_sequencer_is_asked_last() -> None:
    run = start(sealed(), sealed(), sealed(), suspects=frozenset({SEQUENCER}))
    run.answer(VIEW)
    assert run.asked()[-1] == (10, "Bootstrap")
    run.answer(TIMED_OUT)
    assert run.asked()[-1] == (SEQUENCER, "Bootstrap")
    run.answer(TIMED_OUT)
    assert isinstance(run.last, p.Pause)


def test_a_sequencer_that_is_ahead_sends_us_above_its_epoch() -> None:
    run = start(sealed(), sealed(), sealed()).answer(VIEW, Refused(Refusal.EPOCH, Epoch(6)))
    run.answer(None, (projection(), 7))
    assert isinstance(run.last, p.AskAll)
    assert run.last.asks[0].message == m.Seal(LOG, Epoch(7), MINE)


def test_strangers_are_admitted_before_the_projection_names_them() -> None:
    run = start(sealed(), sealed(), sealed(), BLANK, add=(NodeId(4),)).answer(VIEW, boot())
    assert run.last == p.AskAll([p.Ask(NodeId(4), m.Admit(LOG, Epoch(2)))])
    run.answer([TIMED_OUT])
    assert isinstance(run.last, p.Pause)


def test_after_a_loss_what_the_sequencer_remembers_is_marked_too() -> None:
    run = start(DIRTY, DIRTY, DIRTY).answer(VIEW, boot(8))
    assert isinstance(run.last, p.AskAll)
    blocks = [ask.message.block for ask in run.last.asks]  # type: ignore[attr-defined]
    assert [(one.first, one.last) for one in blocks] == [(5, 7)] * 3
    run.answer([m.Filled()] * 3)
    # Not before: an admitted node no longer tells that it may have lost data.
    assert isinstance(run.last, p.AskAll)
    assert run.last.asks[0].message == m.Admit(LOG, Epoch(2))
    run.answer([m.Admitted()] * 3)
    assert isinstance(run.last, p.ReplaceProjection)


def test_without_a_loss_issued_positions_are_left_to_their_writers() -> None:
    run = start(sealed(), sealed(), sealed()).answer(VIEW, boot(8))
    assert isinstance(run.last, p.ReplaceProjection)


def test_attempts_are_bounded_and_pause_between() -> None:
    run = Run(reconfigure(Change(LOG, UNREACHABLE), MINE, junk))
    pauses = []
    while not run.is_done:
        if isinstance(run.last, p.Pause):
            pauses.append(run.last.ms)
            run.answer(None)
        else:
            run.answer(TIMED_OUT)
    assert len(pauses) == RECONFIGURE_ATTEMPTS_MAX - 1
    assert pauses[0] < pauses[-1] == max(pauses) == 500
    assert isinstance(run.result, p.Failure)


def test_a_deadline_is_told_as_a_failure() -> None:
    assert isinstance(start(DIRTY, DIRTY, TIMED_OUT).answer(DEADLINE).result, p.Failure)


def test_a_log_without_projection_cannot_be_changed() -> None:
    run = Run(reconfigure(Change(LOG, UNREACHABLE), MINE, junk)).answer((None, 0))
    assert isinstance(run.result, p.Failure)


def test_a_view_that_cannot_be_had_is_asked_for_again() -> None:
    run = start(sealed(), sealed(), sealed()).answer(TIMED_OUT)
    assert isinstance(run.last, p.Pause)


# -- Creating ---------------------------------------------------------------------------------


def test_a_new_log_is_sealed_admitted_and_proposed() -> None:
    run = Run(create(LOG, CHAIN, 3, MINE)).answer([BLANK] * 3, [m.Admitted()] * 3, VIEW)
    assert run.asked()[-1][1] == "Bootstrap"
    run.answer(boot(1), True)
    assert isinstance(run.result, Projection)
    assert (run.result.epoch, run.result.chain, run.result.issuing_since) == (1, CHAIN, 1)


@pytest.mark.parametrize(
    "answers",
    [
        ([BLANK, BLANK, TIMED_OUT],),
        ([BLANK] * 3, [m.Admitted(), TIMED_OUT, m.Admitted()]),
        ([BLANK] * 3, [m.Admitted()] * 3, TIMED_OUT),
        ([BLANK] * 3, [m.Admitted()] * 3, VIEW, TIMED_OUT, TIMED_OUT),
        ([BLANK] * 3, [m.Admitted()] * 3, VIEW, boot(1), False),
    ],
    ids=["seal", "admit", "view", "sequencer", "exists"],
)
def test_a_log_is_created_whole_or_not(answers: tuple[Any, ...]) -> None:
    assert isinstance(Run(create(LOG, CHAIN, 3, MINE)).answer(*answers).result, p.Failure)


def test_proposers_are_named_in_seals() -> None:
    run = Run(reconfigure(Change(LOG, UNREACHABLE), Token(8, 8), junk)).answer((projection(), 7))
    assert isinstance(run.last, p.AskAll)
    assert {ask.message.proposer for ask in run.last.asks} == {Token(8, 8)}  # type: ignore[attr-defined]
