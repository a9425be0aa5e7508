"""Moving a partition, step by step, with failures between the steps."""

from collections.abc import Callable
from typing import Any

import pytest

from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.moving import (
    STALLED_POLLS_MAX,
    Moved,
    NotMoved,
    NotMovedReason,
    move,
)
from millrace.core.documents.placement import Copies
from millrace.core.documents.rebalance import Move
from millrace.core.messages.documents import SetPartitions
from millrace.core.procedure import Ask, DeadlinePassed, Pause, ReadBucket, ReplaceBucket
from millrace.types import NO_NODE, NodeId
from tests.core.documents.seat_cluster import (
    ACTIVE,
    DEAD,
    NAME,
    PENDING,
    REPLICA,
    SeatCluster,
    nodes,
)

A, B, C = nodes(1, 2, 3)
P0 = PartitionId(0)
TO_C = Move(P0, C, (B,), C)  # Another master.
TO_B = Move(P0, B, (A,))  # The replica takes over.
COPY_AT_C = Move(P0, A, (C,), C)  # Another replica.
SWAP = Move(P0, C, (A,), C)
MOVES = [TO_C, TO_B, COPY_AT_C, SWAP]
NAMES = [
    "another master",
    "a replica takes over",
    "another replica",
    "the master becomes a replica",
]


def settled_cluster(changes: int = 20) -> SeatCluster:
    cluster = SeatCluster([Copies(A, (B,))])
    cluster.tend()
    cluster.write(changes)
    cluster.replicate()
    cluster.flush()
    return cluster


@pytest.mark.parametrize("plan", MOVES, ids=NAMES)
def test_a_move_ends_as_planned(plan: Move) -> None:
    cluster = settled_cluster()
    before, written = cluster.seat(), list(cluster.copy(A).changes)
    result = cluster.play(move(NAME, plan))
    assert isinstance(result, Moved) and result.is_settled
    seat = cluster.seat()
    assert (seat.active, seat.replicas, seat.pending) == (plan.active, plan.replicas, NO_NODE)
    assert not seat.is_handover and seat.term > before.term
    assert seat.id == before.id  # Nothing was lost: the same history goes on.
    assert cluster.serving() == [plan.active]
    assert cluster.copy(plan.active).changes == written
    assert len(cluster.copy(plan.active).log.entries) == 1


@pytest.mark.parametrize("plan", MOVES, ids=NAMES)
def test_what_is_left_over_is_dropped_by_the_next_round(plan: Move) -> None:
    cluster = settled_cluster()
    cluster.play(move(NAME, plan))
    cluster.replicate()
    cluster.tend()
    assert {node for node, _ in cluster.copies()} == set(plan.holders)


@pytest.mark.parametrize("plan", MOVES, ids=NAMES)
def test_writes_during_a_move_are_not_lost(plan: Move) -> None:
    cluster = settled_cluster()
    cluster.on_effect = lambda effect: cluster.write() if isinstance(effect, Pause) else None
    assert isinstance(cluster.play(move(NAME, plan)), Moved)
    written = next(cluster.written) - 1
    assert cluster.copy(plan.active).changes == list(range(1, written + 1))


@pytest.mark.parametrize("plan", [TO_C, TO_B], ids=["newcomer", "replica"])
def test_there_are_never_two_that_serve(plan: Move) -> None:
    cluster = settled_cluster()
    serving: list[list[NodeId]] = []
    cluster.on_effect = lambda effect: serving.append(cluster.serving())
    cluster.play(move(NAME, plan))
    assert [A] in serving and [] in serving
    assert all(len(each) <= 1 for each in serving)


def test_the_new_master_has_everything_on_disk_before_the_seat_names_it() -> None:
    cluster = settled_cluster()
    at_naming: list[int] = []

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].active == C:
            at_naming.append(cluster.copy(C).persisted)

    cluster.on_effect = look
    cluster.play(move(NAME, TO_C))
    assert at_naming == [20]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param("stalls", NotMovedReason.STALLED, id="it gets no further"),
        pytest.param("newcomer dies", NotMovedReason.NEWCOMER_FAILED, id="the newcomer dies"),
        pytest.param(
            "handover stalls", NotMovedReason.HANDOVER_LATE, id="the last changes do not come"
        ),
        pytest.param("undo", NotMovedReason.STALLED, id="it does not finish an undo"),
    ],
)
def test_whatever_fails_is_undone(spoil: str, reason: NotMovedReason) -> None:
    cluster = settled_cluster()
    before = cluster.seat()
    SPOILERS[spoil](cluster)
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, NotMoved) and result.reason is reason, result
    seat = cluster.seat()
    assert (seat.active, seat.replicas, seat.id) == (A, (B,), before.id)
    assert (seat.pending, seat.is_handover) == (NO_NODE, False)
    assert seat.term > before.term
    assert cluster.serving() == [A]
    assert len(cluster.copy(A).log.entries) == 1


def _stall(cluster: SeatCluster) -> None:
    cluster.replicate = lambda changes_max=0: None  # type: ignore[method-assign]


def _newcomer_dies(cluster: SeatCluster) -> None:
    def look(effect: Any) -> None:
        if isinstance(effect, Pause):
            cluster.nodes[C].stop()

    cluster.write(10_000)
    cluster.on_effect = look


def _handover_stalls(cluster: SeatCluster) -> None:
    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].is_handover:
            cluster.write()  # The last one before the master hears of it.
            _stall(cluster)

    cluster.on_effect = look


def _undo(cluster: SeatCluster) -> None:
    def look(effect: Any) -> None:
        if isinstance(effect, Pause):
            cluster.copy(C).has_undo = True

    cluster.on_effect = look


SPOILERS: dict[str, Callable[[SeatCluster], None]] = {
    "stalls": _stall,
    "newcomer dies": _newcomer_dies,
    "handover stalls": _handover_stalls,
    "undo": _undo,
}


def test_a_slow_newcomer_is_waited_for() -> None:
    """As long as it makes progress, however many polls that takes."""
    cluster = settled_cluster(changes=1_000 + 2 * STALLED_POLLS_MAX)
    whole = cluster.replicate
    cluster.replicate = lambda changes_max=1: whole(changes_max)  # type: ignore[method-assign]
    assert isinstance(cluster.play(move(NAME, COPY_AT_C)), Moved)


def test_the_master_dies_before_the_handover() -> None:
    """The move gives up; the keeper fails over."""
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].pending == C:
            cluster.nodes[A].stop()

    cluster.on_effect = look
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, NotMoved) and result.reason is NotMovedReason.MASTER_FAILED
    cluster.tend()
    assert cluster.serving() == [B]
    assert cluster.copy(B).changes == list(range(1, 21))


def test_the_master_dies_in_the_handover_with_what_the_newcomer_lacks() -> None:
    """It never confirmed that it is dead: the newcomer must not take over with the same id."""
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].is_handover:
            cluster.write(5)
            cluster.nodes[A].stop()

    cluster.on_effect = look
    before = cluster.seat().id
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, NotMoved) and result.reason is NotMovedReason.MASTER_FAILED
    cluster.tend()
    assert len(cluster.serving()) == 1 and cluster.seat().id != before


def test_a_master_that_restarts_in_the_handover_is_not_believed() -> None:
    """What it lost may be on a replica: what it has now is not all that there was."""
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        is_handover = cluster.seat().is_handover
        if is_handover and isinstance(effect, Pause | Ask) and cluster.copy(A).is_ordered:
            cluster.nodes[A].restart(is_clean=False)

    def begin(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].is_handover:
            cluster.write(3)
            cluster.stream(B, P0, 100)
            cluster.nodes[A].restart(is_clean=False)
            cluster.on_effect = look

    cluster.on_effect = begin
    assert isinstance(cluster.play(move(NAME, TO_C)), NotMoved)
    cluster.on_effect = lambda effect: None
    cluster.tend()
    assert cluster.serving() == [B]
    assert cluster.copy(B).changes == list(range(1, 24))


def test_a_master_that_restarts_after_it_was_dead_is_not_believed() -> None:
    """It confirmed that it is dead, and forgot some of what it had before it was asked for it."""
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].is_handover:
            cluster.write(3)
            cluster.stream(B, P0, 100)
        if cluster.copy(A).state is DEAD and cluster.copy(A).is_ordered:
            cluster.nodes[A].restart(is_clean=False)

    cluster.on_effect = look
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, NotMoved) and result.reason is NotMovedReason.HANDOVER_LATE
    cluster.tend()
    assert cluster.serving() == [B] and len(cluster.copy(B).changes) == 23


def test_a_replica_leaves_when_the_others_have_what_was_acknowledged() -> None:
    """Also of what is written while it leaves: meanwhile it takes one more to acknowledge."""
    cluster = settled_cluster()
    missing: list[set[int]] = []

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].replicas == (C,):
            cluster.write(2)
            cluster.flush()
            cluster.stream(B, P0, 100)
            missing.append(cluster.acknowledged - set(cluster.copy(C).changes))

    cluster.on_effect = look
    assert isinstance(cluster.play(move(NAME, COPY_AT_C)), Moved)
    assert missing == [set()] and cluster.acknowledged


def test_after_the_seat_names_it_the_move_is_done_though_nobody_answers() -> None:
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        if isinstance(effect, ReplaceBucket) and effect.record.seats[0].active == C:
            cluster.is_lost = lambda ask: True

    cluster.on_effect = look
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, Moved) and not result.is_settled
    cluster.is_lost = lambda ask: False
    cluster.tend()
    assert cluster.serving() == [C] and cluster.copy(B).master == C


def test_an_order_whose_answer_was_lost_is_not_repeated_blindly() -> None:
    """It was carried out, which the state tells (U8)."""
    cluster = settled_cluster()
    lost: list[Ask] = []

    def lose(ask: Ask) -> bool:
        is_first = isinstance(ask.message, SetPartitions) and ask.node not in {
            each.node for each in lost
        }
        if is_first:
            lost.append(ask)
        return is_first

    cluster.is_lost = lose
    assert isinstance(cluster.play(move(NAME, TO_C)), Moved)
    assert {ask.node for ask in lost} >= {A, C}
    assert len(cluster.copy(C).log.entries) == 1


@pytest.mark.parametrize(
    "plan",
    [
        Move(P0, A, (B, C), NO_NODE),
        Move(P0, B, (A,), B),
        Move(P0, B, (C,), C),
        Move(PartitionId(9), A, (B,)),
    ],
    ids=[
        "a copy that is not there",
        "a newcomer that has one",
        "a new replica and another master at once",
        "no such partition",
    ],
)
def test_a_plan_for_another_seat_is_not_carried_out(plan: Move) -> None:
    cluster = settled_cluster()
    before = cluster.record
    result = cluster.play(move(NAME, plan))
    assert isinstance(result, NotMoved) and result.reason is NotMovedReason.OUTDATED
    assert cluster.record == before


def test_somebody_else_changes_the_seat_meanwhile() -> None:
    """It is theirs, then: nothing is undone over it."""
    cluster = settled_cluster()

    def look(effect: Any) -> None:
        if isinstance(effect, Pause):
            cluster.on_effect = lambda effect: None
            cluster.nodes[A].stop()
            cluster.tend()

    cluster.write(5_000)
    cluster.on_effect = look
    result = cluster.play(move(NAME, TO_C))
    assert isinstance(result, NotMoved)
    assert len(cluster.serving()) == 1 and cluster.seat().active in (B, C)


def test_who_runs_out_of_time_leaves_it_to_the_keeper() -> None:
    cluster = settled_cluster()
    procedure = move(NAME, TO_C)
    effect = procedure.send(None)
    while not isinstance(effect, Pause):
        if cluster.seat().pending:
            break
        effect = procedure.send(cluster.perform(effect))
    with pytest.raises(StopIteration) as stopped:
        procedure.throw(DeadlinePassed())
    assert stopped.value.value.reason is NotMovedReason.TIMED_OUT
    assert cluster.seat().pending == C
    cluster.tend()
    assert cluster.seat().pending == NO_NODE and cluster.serving() == [A]


def test_states_while_a_newcomer_streams() -> None:
    cluster = settled_cluster(changes=5_000)
    states: list[dict[NodeId, PartitionState]] = []

    def look(effect: Any) -> None:
        if isinstance(effect, ReadBucket | Pause):
            states.append({node: copy.state for node, copy in cluster.copies()})

    cluster.on_effect = look
    cluster.play(move(NAME, TO_C))
    assert {A: ACTIVE, B: REPLICA, C: PENDING} in states
