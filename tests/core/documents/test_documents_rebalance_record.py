"""The moves of a rebalance, and how its record goes on."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies, place
from millrace.core.documents.rebalance import (
    FAILURES_MAX,
    MOVES_PER_NODE,
    Move,
    RebalanceRecord,
    RebalanceState,
    choose_moves,
    copies_of_seat,
    go_on,
    moves_of,
    plan_moves,
    undone_once,
)
from millrace.types import NO_NODE, NodeId

A, B, C, D, E = (NodeId(number) for number in range(1, 6))
ALL = frozenset((A, B, C, D))
P0 = PartitionId(0)


def seat(active: NodeId, *replicas: NodeId) -> Seat:
    return Seat(3, FailoverId(1), active, replicas)


def wanted(active: NodeId, *replicas: NodeId) -> Copies:
    return Copies(active, replicas)


def bucket(*seats: Seat, replicas: int = 1) -> BucketRecord:
    return BucketRecord(1, "orders", BucketAttributes(replicas=replicas), seats)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        pytest.param(seat(A, B), wanted(A, B), [], id="nothing to do"),
        pytest.param(seat(A, B), wanted(A, C), [Move(P0, A, (C,), C)], id="another replica"),
        pytest.param(seat(A, B), wanted(B, A), [Move(P0, B, (A,))], id="a replica takes over"),
        pytest.param(seat(A, B), wanted(C, B), [Move(P0, C, (B,), C)], id="another master"),
        pytest.param(seat(A, B), wanted(A), [Move(P0, A, ())], id="fewer replicas"),
        pytest.param(seat(A), wanted(A, B), [Move(P0, A, (B,), B)], id="one more replica"),
        pytest.param(
            seat(A, B),
            wanted(C, D),
            [Move(P0, A, (D,), D), Move(P0, C, (D,), C)],
            id="all others: the replica first",
        ),
        pytest.param(
            seat(A, B),
            wanted(B, C),
            [Move(P0, A, (B, C), C), Move(P0, B, (C,))],
            id="a copy more in between, never one fewer",
        ),
    ],
)
def test_moves_of_a_partition(before: Seat, after: Copies, moves: list[Move]) -> None:
    assert moves_of(P0, before, after) == moves


holders = st.permutations([A, B, C, D, E])


@given(holders, st.integers(1, 3), holders, st.integers(1, 3))
def test_moves_lead_to_what_is_wanted_one_new_copy_at_a_time(
    old: list[NodeId], old_count: int, new: list[NodeId], new_count: int
) -> None:
    before, after = seat(*old[:old_count]), wanted(*new[:new_count])
    held, fewest = set(before.holders), min(old_count, new_count)
    for move in moves_of(P0, before, after):
        assert set(move.holders) - held == {move.newcomer} - {NO_NODE}
        held = set(move.holders)
        assert len(held) >= fewest
    last = moves_of(P0, before, after)[-1:]
    assert not last or (last[0].active, set(last[0].replicas)) == (
        after.active,
        set(after.replicas),
    )
    assert last or copies_of_seat(before).holders[0] == after.active


def test_partitions_that_lack_copies_come_first() -> None:
    seats = [seat(A, B), seat(A, B), seat(A)]
    moves = plan_moves(seats, [wanted(A, C), wanted(C, B), wanted(A, B)])
    assert [move.partition for move in moves] == [2, 0, 1]


def test_neighbours_in_the_plan_burden_different_nodes() -> None:
    seats = [seat(A, B)] * 4
    targets = [wanted(C, B), wanted(C, B), wanted(D, B), wanted(D, B)]
    assert [move.newcomer for move in plan_moves(seats, targets)] == [C, D, C, D]


def test_a_node_takes_part_in_few_moves_at_once() -> None:
    seats = [seat(A, B)] * 8
    moves = plan_moves(seats, [wanted(C, B)] * 8)
    first = choose_moves(moves, [], seats)
    assert len(first) == MOVES_PER_NODE
    assert choose_moves(moves, first, seats) == []


def test_moves_of_a_partition_are_made_one_after_the_other() -> None:
    seats = [seat(A, B)]
    moves = plan_moves(seats, [wanted(C, D)])
    assert choose_moves(moves, [], seats) == moves[:1]
    assert choose_moves(moves[1:], moves[:1], seats) == []


# -- The record -------------------------------------------------------------------------------

ASKED = RebalanceRecord((A, B, C))
THREE = frozenset((A, B, C))


def test_what_is_asked_for_becomes_a_plan() -> None:
    before = bucket(*[seat(A, B)] * 6)
    record, moves = go_on(ASKED, before, THREE, {}, (), 5)
    assert record.state is RebalanceState.RUNNING and record.changed_ms == 5
    assert sorted(Counter(copies.active for copies in record.wanted).values()) == [2, 2, 2]
    assert record.moves == len(plan_moves(before.seats, record.wanted)) > 0
    assert moves and record.done == 0


def test_nobody_named_means_all() -> None:
    record, _ = go_on(RebalanceRecord(()), bucket(seat(A, B)), THREE, {}, (), 0)
    assert record.nodes == (A, B, C)


def test_progress_is_what_the_map_shows() -> None:
    before = bucket(*[seat(A, B)] * 6)
    record, moves = go_on(ASKED, before, THREE, {}, (), 0)
    seats = list(before.seats)
    for move in moves:
        seats[move.partition] = seat(move.active, *move.replicas)
    after, _ = go_on(record, bucket(*seats), THREE, {}, (), 9)
    assert after.done == len(moves)


def test_another_keeper_goes_on_where_the_map_is() -> None:
    """To the end: nothing but the two records is needed."""
    current, record = bucket(*[seat(A, B)] * 6), ASKED
    for _ in range(50):
        record, moves = go_on(record, current, THREE, {}, (), 0)
        seats = list(current.seats)
        for move in moves:
            seats[move.partition] = seat(move.active, *move.replicas)
        current = bucket(*seats)
    assert record.state is RebalanceState.DONE and record.done == record.moves
    assert tuple(map(copies_of_seat, current.seats)) == record.wanted


def test_it_is_not_done_while_a_move_runs() -> None:
    finished = RebalanceRecord((A, B), RebalanceState.RUNNING, (wanted(A, B),), 1, 0)
    running = [Move(P0, A, (B,), B)]
    record, _ = go_on(finished, bucket(seat(A, B)), ALL, {}, running, 0)
    assert record.state is RebalanceState.RUNNING
    record, _ = go_on(finished, bucket(seat(A, B)), ALL, {}, (), 0)
    assert record.state is RebalanceState.DONE


def test_a_partition_without_a_master_is_left_alone() -> None:
    targets = (wanted(C, B), wanted(C, B))
    record = RebalanceRecord((A, B, C), RebalanceState.RUNNING, targets, 2)
    orphan = Seat(4, FailoverId(1), NO_NODE, (A, B))
    _, moves = go_on(record, bucket(orphan, seat(A, B)), THREE, {}, (), 0)
    assert [move.partition for move in moves] == [1]


RUNNING = RebalanceRecord((A, B, C), RebalanceState.RUNNING, (wanted(C, B),), 1)


@pytest.mark.parametrize(
    ("record", "usable", "why"),
    [
        pytest.param(RUNNING, {A, B}, "nodes 3 do not live", id="a node died"),
        pytest.param(ASKED, {A}, "nodes 2, 3 do not live", id="asked with nodes that do not live"),
        pytest.param(ASKED, (), "do not live", id="asked with nobody"),
        pytest.param(
            msgspec.structs.replace(RUNNING, failures=FAILURES_MAX + 1, detail="it stalls"),
            THREE,
            "the last one because it stalls",
            id="too many moves were undone",
        ),
        pytest.param(
            msgspec.structs.replace(RUNNING, wanted=()),
            THREE,
            "another bucket",
            id="another bucket",
        ),
        pytest.param(
            msgspec.structs.replace(RUNNING, bucket=2),
            THREE,
            "another bucket",
            id="another bucket of as many partitions",
        ),
    ],
)
def test_a_rebalance_fails_and_says_why(
    record: RebalanceRecord, usable: set[NodeId], why: str
) -> None:
    after, moves = go_on(record, bucket(seat(A, B)), usable, {}, (), 0)
    assert after.state is RebalanceState.FAILED and not moves
    assert why in after.detail


@pytest.mark.parametrize(
    "state", [RebalanceState.DONE, RebalanceState.FAILED, RebalanceState.STOPPED]
)
def test_one_that_is_over_stays_as_it_is(state: RebalanceState) -> None:
    record = msgspec.structs.replace(RUNNING, state=state)
    assert go_on(record, bucket(seat(A, B)), THREE, {}, (), 7) == (record, [])


def test_a_move_that_was_undone_is_counted() -> None:
    counted = undone_once(RUNNING, "node 3 stalls", 4)
    assert (counted.failures, counted.detail, counted.changed_ms) == (1, "node 3 stalls", 4)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2))
def test_a_plan_is_never_longer_than_two_moves_for_each_copy(
    partitions: int, old: int, new: int, replicas: int
) -> None:
    nodes = (A, B, C, D, E)
    before = place(nodes[:old], {}, replicas, [Copies(NO_NODE)] * partitions)
    after = place(nodes[:new], {}, replicas, before)
    seats = [seat(*copies.holders) for copies in before]
    assert len(plan_moves(seats, after)) <= partitions * (1 + replicas)
