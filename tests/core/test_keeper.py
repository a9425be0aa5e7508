"""What the keeper does about logs."""

from typing import Any

import pytest

from millrace.codec.blocks import junk
from millrace.core import messages as m
from millrace.core.keeper import (
    CLOSE_ENOUGH,
    LEARN_ROUNDS_MAX,
    Members,
    Step,
    StepKind,
    choose_learner,
    close_holes,
    find_incomplete,
    look_at_members,
    plan,
    teach,
)
from millrace.core.messages import Refusal, Refused, Standing
from millrace.core.procedure import ClusterView
from millrace.core.projection import Projection, ReconfigureReason
from millrace.types import Epoch, LogId, Lsn, NodeId, Role
from tests.core.core_samples import LOG, SEQUENCER, TIMED_OUT, Run, node_info, projection

ALL = (1, 2, 3, 4, 5, 9)


def view(live: tuple[int, ...] = ALL, nodes: tuple[int, ...] = ALL, **racks: str) -> ClusterView:
    infos = tuple(
        node_info(
            node,
            racks.get(f"n{node}", ""),
            (Role.SEQUENCER,) if node == SEQUENCER else (Role.STORAGE,),
        )
        for node in nodes
    )
    return ClusterView(infos, frozenset(map(NodeId, live)))


@pytest.mark.parametrize(
    ("chain", "live", "expected"),
    [
        ((1, 2, 3), ALL, None),
        ((1, 2, 3), (2, 3, 9), (StepKind.SHRINK, (1,), ReconfigureReason.UNREACHABLE)),
        ((1, 2, 3), (3, 9), (StepKind.SHRINK, (1, 2), ReconfigureReason.UNREACHABLE)),
        ((1, 2, 3), (4, 5, 9), None),
        ((1, 2, 3), (2, 3), (StepKind.SHRINK, (1,), ReconfigureReason.UNREACHABLE)),
        (
            (1, 2, 3),
            (1, 2, 3),
            (StepKind.REPLACE_SEQUENCER, (9,), ReconfigureReason.SEQUENCER_LOST),
        ),
        ((1, 2), (1, 2, 4, 9), (StepKind.GROW, (4,), ReconfigureReason.GROWN)),
        ((1, 2), (1, 2, 9), None),
        ((1, 2), (1, 4, 9), (StepKind.SHRINK, (2,), ReconfigureReason.UNREACHABLE)),
        ((1, 2), (1, 2, 4), (StepKind.REPLACE_SEQUENCER, (9,), ReconfigureReason.SEQUENCER_LOST)),
    ],
    ids=[
        "all well",
        "one dead",
        "two dead",
        "all dead",
        "a dead node before a dead sequencer",
        "sequencer dead",
        "degraded",
        "nobody to learn",
        "degraded and dead",
        "degraded and no sequencer",
    ],
)
def test_the_plan_for_one_log(chain: tuple[int, ...], live: tuple[int, ...], expected: Any) -> None:
    steps = plan([projection(6, chain)], view(live))
    if expected is None:
        assert steps == []
    else:
        kind, nodes, reason = expected
        assert steps == [Step(kind, LOG, Epoch(6), nodes, reason)]


def test_one_step_for_each_log_that_needs_one() -> None:
    well, ill = projection(1), projection(2, (1, 2))
    assert [step.epoch for step in plan([well, ill, well, ill], view())] == [2, 2]


@pytest.mark.parametrize(
    ("racks", "unusable", "expected"),
    [
        ({}, (), 4),
        ({"n1": "a", "n2": "b", "n3": "c", "n4": "a", "n5": "b"}, (), 3),
        ({"n1": "a", "n2": "b", "n3": "a", "n4": "a", "n5": "c"}, (), 5),
        ({}, (4,), 5),
        ({}, (3, 4, 5), None),
    ],
    ids=["spread by log", "the free rack", "another free rack", "not the full one", "none"],
)
def test_who_learns(racks: dict[str, str], unusable: tuple[int, ...], expected: int | None) -> None:
    chosen = choose_learner(projection(1, (1, 2)), view(**racks), [NodeId(n) for n in unusable])
    assert chosen == expected


def test_logs_begin_at_different_nodes() -> None:
    degraded = [Projection(LogId(log), Epoch(1), (NodeId(1),), SEQUENCER, 2) for log in range(1, 5)]
    assert {choose_learner(one, view(), ()) for one in degraded} == {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("ends", "rounds"),
    [((CLOSE_ENOUGH,), 1), ((5_000, 5_000 + CLOSE_ENOUGH), 2), ((5_000, 9_000, 9_001), 3)],
)
def test_learning_is_repeated_while_much_is_left(ends: tuple[int, ...], rounds: int) -> None:
    run = Run(teach(projection(3, (1, 2)), NodeId(4)))
    for end in ends:
        run.answer(m.Learned(Lsn(end), 1, 0))
    assert run.is_done
    assert run.result == m.Learned(Lsn(ends[-1]), 1, 0)
    assert run.asked() == [(4, "Learn")] * rounds


def test_a_log_that_grows_faster_than_it_is_learned_is_given_a_bound() -> None:
    run = Run(teach(projection(3, (1, 2)), NodeId(4)))
    for number in range(1, LEARN_ROUNDS_MAX + 1):
        run.answer(m.Learned(Lsn(number * 10_000), 1, 0))
    assert isinstance(run.result, m.Learned)


@pytest.mark.parametrize("answer", [TIMED_OUT, Refused(Refusal.DISK_FULL)])
def test_what_stopped_a_learner_is_told(answer: Any) -> None:
    assert Run(teach(projection(), NodeId(4))).answer(answer).result == answer


def described(epoch: int, standing: Standing = Standing.MEMBER) -> m.Described:
    one = Lsn(1)
    return m.Described(Epoch(epoch), standing, one, one, one, one, 0, 0)


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        ((described(3), described(3), described(3)), ()),
        ((described(3), described(3, Standing.DIRTY), described(3, Standing.BLANK)), (2, 3)),
        ((described(0, Standing.BLANK), described(3), described(3)), (1,)),
        ((described(2), described(3), described(3)), (1,)),
        ((described(4, Standing.BLANK), described(4), described(3)), ()),
        ((described(4), described(3), described(3)), ()),
        ((TIMED_OUT, Refused(Refusal.BUSY), described(3)), ()),
    ],
    ids=["whole", "dirty and blank", "wiped", "fence lost", "being changed", "changed", "silent"],
)
def test_members_that_lost_something_are_found(
    told: tuple[Any, ...], lost: tuple[int, ...]
) -> None:
    step = Run(find_incomplete(projection(3))).answer(list(told)).result
    assert (() if step is None else step.nodes) == lost
    if step is not None:
        assert (step.kind, step.reason) == (StepKind.SHRINK, ReconfigureReason.INCOMPLETE)
    found = Run(look_at_members(projection(3))).answer(list(told)).result
    assert found == Members(step, are_whole=told == (described(3),) * 3)


def held(readable_end: int, end: int) -> m.Described:
    ends = (Lsn(1), Lsn(readable_end), Lsn(readable_end), Lsn(end))
    return m.Described(Epoch(3), Standing.MEMBER, *ends, 0, 0)


FILL = (
    m.Peeked(Lsn(9_999)),
    Refused(Refusal.UNWRITTEN, Epoch(3)),
    m.IndexPage((), Lsn(70_000), Lsn(1), Lsn(5)),
    m.Filled(),
)


def test_old_holes_are_closed_before_a_node_learns() -> None:
    run = Run(close_holes(projection(3, (1,)), junk))
    run.answer(held(5, 5 + 2 * CLOSE_ENOUGH), *FILL)
    run.answer(held(6, 6 + 2 * CLOSE_ENOUGH), *FILL)
    assert not run.is_done
    assert run.answer(held(9_000, 9_000 + CLOSE_ENOUGH)).is_done
    assert [kind for _, kind in run.asked()].count("Fill") == 2


@pytest.mark.parametrize(
    "answers",
    [
        (held(5, 5 + CLOSE_ENOUGH),),
        (TIMED_OUT,),
        (held(5, 9_999), TIMED_OUT),
        (held(5, 9_999), *FILL, held(5, 9_999)),
    ],
    ids=["little is left", "a silent tail", "a silent sequencer", "no progress"],
)
def test_closing_holes_ends(answers: tuple[Any, ...]) -> None:
    assert Run(close_holes(projection(3, (1,)), junk)).answer(*answers).is_done
