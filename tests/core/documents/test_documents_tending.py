"""Rounds of the keeper on a cluster that is played."""

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.failing_over import CannotReason
from millrace.core.documents.moving import Moved, move
from millrace.core.documents.placement import Copies, place
from millrace.core.documents.settling import (
    NotChanged,
    SeatChange,
    SeatReason,
    change_seats,
    describe,
    send_orders,
    settle,
)
from millrace.core.documents.tending import drop_bucket, fail_over, find_held, tend
from millrace.core.documents.watching import REPLACE_AFTER_MS, BucketWatch
from millrace.core.messages import Refused
from millrace.core.messages.documents import PartitionOrder, SetPartitions
from millrace.core.procedure import Ask, ReplaceBucket
from millrace.types import NO_NODE, NodeId
from tests.core.documents.seat_cluster import ACTIVE, BUCKET, DEAD, NAME, SeatCluster, nodes

A, B, C, D = nodes(1, 2, 3, 4)
P0 = PartitionId(0)


def three_copies(changes: int = 10) -> SeatCluster:
    cluster = SeatCluster([Copies(A, (B, C))], node_count=4, replicas=2)
    cluster.tend()
    cluster.write(changes)
    cluster.replicate()
    cluster.flush()
    return cluster


def test_a_new_bucket_is_served_after_one_round() -> None:
    wanted = place(nodes(1, 2, 3), {}, 1, [Copies(NO_NODE)] * 16)
    cluster = SeatCluster(wanted)
    cluster.tend()
    for number, copies in enumerate(wanted):
        assert cluster.serving(number) == [copies.active]
        assert cluster.seat(number).replicas == copies.replicas
    ids = {seat.id for seat in cluster.record.seats}
    assert len(ids) == 16 and FailoverId(0) not in ids


def test_a_round_with_nothing_to_do_changes_nothing() -> None:
    cluster = three_copies()
    before = cluster.record
    states = [node.cas for node in cluster.nodes.values()]
    cluster.tend()
    assert cluster.record == before
    assert [node.cas for node in cluster.nodes.values()] == states


def test_a_master_that_came_to_life_after_the_round_began_stays_the_master() -> None:
    """It has a lease and serves: nobody else may become the master."""
    cluster = three_copies()
    before = cluster.record
    cluster.nodes[A].is_live = False
    round = cluster.tending()
    cluster.nodes[A].is_live = True
    cluster.play(tend(NAME, round))
    assert cluster.record == before


def test_and_after_an_operators_failover_in_the_same_round() -> None:
    """That reads the seats later than it was looked who lives, for the usual round, too."""
    cluster = three_copies()
    cluster.tend()
    cluster.nodes[A].is_live = False
    cluster.watch.seats = ()  # It was named the master after the round before.
    round = cluster.tending()
    cluster.nodes[A].is_live = True
    before = cluster.record
    cluster.play(fail_over(NAME, round, lambda record: ()))
    cluster.play(tend(NAME, round))
    assert cluster.record == before


def test_a_master_that_has_started_again_is_not_told_by_those_with_an_old_seat() -> None:
    """Another keeper has put one in its place, since a move of this one read the record."""
    cluster = three_copies()
    old = cluster.record
    cluster.nodes[A].stop()
    cluster.tend()
    (successor,) = cluster.serving()
    cluster.nodes[A].restart(is_clean=True)
    assert not cluster.play(settle(old, P0, (A,)))
    assert cluster.serving() == [successor]


def test_nor_if_the_bucket_was_made_again() -> None:
    cluster = SeatCluster([Copies(A, (B,))] * 2)
    cluster.tend()
    old = cluster.record
    cluster.nodes[A].restart(is_clean=True)
    cluster.record = msgspec.structs.replace(old, id=BUCKET + 1, seats=old.seats[:1])
    assert not cluster.play(settle(old, PartitionId(1), (A,)))


def test_a_master_that_dies_is_replaced_by_the_one_that_has_most() -> None:
    cluster = three_copies()
    cluster.write(4)
    cluster.stream(C, P0, 100)
    before = cluster.seat()
    cluster.nodes[A].stop()
    cluster.tend()
    assert cluster.serving() == [C]
    seat = cluster.seat()
    assert seat.id != before.id and seat.term > before.term
    assert [(entry.id, entry.seq) for entry in cluster.copy(C).log.entries] == [
        (seat.id, 14),
        (before.id, 0),
    ]
    assert cluster.copy(B).master == C


def test_all_partitions_of_a_dead_node_fail_over_with_two_changes_of_the_record() -> None:
    cluster = SeatCluster([Copies(A, (B,))] * 32)
    cluster.tend()
    cluster.replicate()
    cluster.nodes[A].stop()
    before = len(cluster.history)
    cluster.tend()
    assert all(cluster.serving(number) == [B] for number in range(32))
    assert len(cluster.history) == before + 2


def test_a_former_master_that_comes_back_follows() -> None:
    cluster = three_copies()
    cluster.nodes[A].stop()
    cluster.tend()
    cluster.write(3)
    cluster.nodes[A].restart(is_clean=False)
    cluster.tend()
    cluster.replicate()
    assert len(cluster.serving()) == 1
    assert cluster.copy(A).changes == cluster.copy(cluster.serving()[0]).changes


def test_a_master_that_is_cut_off_streams_to_nobody_any_more() -> None:
    """It lost its lease, but its streams go on: what its replicas took after they were asked would
    be acknowledged, and lost."""
    cluster = three_copies()
    cluster.write(5)
    cluster.nodes[A].is_live = False
    cluster.tend()
    cluster.replicate()
    assert len(cluster.serving()) == 1
    assert cluster.acknowledged <= set(cluster.copy(cluster.serving()[0]).changes)


def test_a_clean_restart_keeps_the_id() -> None:
    cluster = three_copies()
    before = cluster.seat()
    cluster.nodes[A].restart(is_clean=True)
    assert cluster.serving() == []
    cluster.tend()
    assert cluster.serving() == [A] and cluster.seat() == before
    assert len(cluster.copy(A).log.entries) == 1


def test_an_unclean_restart_without_a_loss_makes_a_new_id_on_the_same_node() -> None:
    cluster = three_copies()
    before = cluster.seat()
    cluster.nodes[A].restart(is_clean=False)
    cluster.tend()
    assert cluster.serving() == [A] and cluster.seat().id != before.id
    assert [entry.seq for entry in cluster.copy(A).log.entries] == [10, 0]


def test_after_an_unclean_restart_a_replica_that_has_more_becomes_the_master() -> None:
    cluster = three_copies()
    cluster.write(3)
    cluster.stream(B, P0, 100)
    cluster.nodes[A].restart(is_clean=False)
    cluster.tend()
    assert cluster.serving() == [B] and len(cluster.copy(B).changes) == 13


def test_a_master_that_lost_its_disk_becomes_a_replica() -> None:
    cluster = three_copies()
    cluster.nodes[A].restart(is_clean=False, is_wiped=True)
    cluster.tend()
    cluster.replicate()
    assert cluster.serving() == [B]
    assert cluster.copy(A).changes == cluster.copy(B).changes


def test_a_replica_that_lost_its_disk_gets_its_copy_again() -> None:
    cluster = three_copies()
    before = cluster.seat()
    cluster.nodes[C].restart(is_clean=False, is_wiped=True)
    cluster.tend()
    cluster.replicate()
    assert cluster.seat() == before and len(cluster.copy(C).changes) == 10


def test_without_enough_answers_nobody_becomes_the_master() -> None:
    cluster = three_copies()
    cluster.nodes[A].stop()
    cluster.nodes[B].stop()
    cluster.tend()
    tended = cluster.tend(after_ms=60_000)
    assert tended.plan.stuck[P0].reason is CannotReason.TOO_FEW_ANSWERS
    assert cluster.serving() == []
    cluster.nodes[B].restart(is_clean=True)
    cluster.tend()
    assert len(cluster.serving()) == 1


def test_a_replica_that_never_heard_of_its_master_is_not_promoted_by_itself() -> None:
    """It could as well have lost its disk."""
    cluster = SeatCluster([Copies(A, (B,))])
    cluster.tend()
    cluster.nodes[A].stop()
    assert cluster.tend().plan.stuck[P0].reason is CannotReason.ALL_LOST
    cluster.nodes[A].restart(is_clean=False)
    cluster.tend()
    assert cluster.serving() == [A]


def test_an_operator_can_force_it() -> None:
    cluster = three_copies()
    cluster.nodes[A].stop()
    cluster.nodes[B].stop()
    cluster.tend()
    cluster.play(fail_over(NAME, cluster.tending(forced=(P0,)), lambda record: (P0,)))
    assert cluster.serving() == [C]


def test_an_operator_can_have_another_master_though_the_first_one_lives() -> None:
    cluster = three_copies()
    cluster.write(2)
    cluster.stream(B, P0, 100)
    cluster.copy(A).has_undo = True  # It cannot be chosen itself.
    before = cluster.seat().id
    cluster.play(fail_over(NAME, cluster.tending(), lambda record: (P0,)))
    assert cluster.serving() == [B] and cluster.seat().id != before


def test_of_equals_an_operator_gets_another_master() -> None:
    cluster = three_copies()
    cluster.play(fail_over(NAME, cluster.tending(), lambda record: (P0,)))
    assert cluster.serving() == [B]


def test_a_master_that_has_more_than_the_others_stays_what_an_operator_names_no_node_for() -> None:
    cluster = three_copies()
    before = cluster.seat().id
    cluster.write(2)
    cluster.play(fail_over(NAME, cluster.tending(), lambda record: (P0,)))
    assert cluster.serving() == [A] and cluster.seat().id != before


def test_nobody_is_promoted_in_the_middle_of_an_undo() -> None:
    cluster = SeatCluster([Copies(A, (B,))])
    cluster.tend()
    cluster.replicate()
    cluster.copy(B).has_undo = True
    cluster.nodes[A].stop()
    assert cluster.tend().plan.stuck[P0].reason is CannotReason.UNDO_PENDING
    cluster.copy(B).has_undo = False
    cluster.tend()
    assert cluster.serving() == [B]


def test_a_lost_replica_is_made_elsewhere() -> None:
    cluster = three_copies()
    cluster.nodes[C].stop()
    assert not cluster.tend().plan.moves
    (wanted,) = cluster.tend(after_ms=REPLACE_AFTER_MS).plan.moves
    assert isinstance(cluster.play(move(NAME, wanted)), Moved)
    assert set(cluster.seat().holders) == {A, B, D}
    cluster.nodes[C].restart(is_clean=True)
    cluster.replicate()
    cluster.tend()
    assert {node for node, _ in cluster.copies()} == {A, B, D}


def test_another_keeper_finds_the_same() -> None:
    """In the middle of a failover: fenced, nobody chosen yet."""
    cluster = three_copies()
    cluster.nodes[A].stop()
    fenced = cluster.watch.look(cluster.record, cluster.around(), {}, cluster.ids, 0).changes
    cluster.play(change_seats(NAME, fenced))
    cluster.watch = BucketWatch()
    cluster.tend()
    assert len(cluster.serving()) == 1 and cluster.seat().active in (B, C)


def test_a_node_that_is_loading_its_documents_has_not_dropped_its_copy() -> None:
    cluster = three_copies()
    assert D not in cluster.seat().holders
    assert cluster.play(settle(cluster.record, P0, (D,)))
    cluster.nodes[D].is_warm = False
    assert not cluster.play(settle(cluster.record, P0, (D,)))


def test_a_seat_is_replaced_only_if_it_is_the_one_that_was_decided_about() -> None:
    cluster = three_copies()
    seat = cluster.seat()
    change = SeatChange(seat, seat, SeatReason.MOVING)
    stale = SeatChange(cluster.history[0].seats[0], seat, SeatReason.MOVING)
    assert not isinstance(cluster.play(change_seats(NAME, {P0: change})), NotChanged)
    refused = cluster.play(change_seats(NAME, {P0: stale}))
    assert isinstance(refused, NotChanged) and refused.is_outdated


def test_an_order_that_is_refused_holds_up_no_other() -> None:
    """A node takes all orders or none, and cannot promote what it has not finished undoing."""
    cluster = SeatCluster([Copies(A, (B,))] * 3)
    cluster.tend()
    cluster.copy(B, P0).has_undo = True
    hosted = cluster.play(describe((B,), BUCKET))
    promote = PartitionOrder(P0, ACTIVE, 9, FailoverId(0xBEEF))
    others = [PartitionOrder(PartitionId(number), DEAD, 9) for number in (1, 2)]
    answers = cluster.play(send_orders(cluster.record, hosted, {B: [promote, *others]}))
    assert isinstance(answers[B], Refused)
    assert cluster.copy(B, P0).term < 9
    assert [cluster.copy(B, PartitionId(number)).term for number in (1, 2)] == [9, 9]


def test_changes_of_others_in_between_are_kept() -> None:
    cluster = SeatCluster([Copies(A, (B,))] * 2)
    cluster.tend()
    first, second = cluster.record.seats
    other = SeatChange(second, second, SeatReason.MOVING)
    raced: list[object] = []

    def race(effect: object) -> None:
        if isinstance(effect, ReplaceBucket) and not raced:
            raced.append(effect)
            cluster.play(change_seats(NAME, {PartitionId(1): other}))

    cluster.on_effect = race
    before = cluster.record.revision
    cluster.play(change_seats(NAME, {P0: SeatChange(first, first, SeatReason.MOVING)}))
    assert cluster.record.revision == before + 2


@pytest.mark.parametrize("lost", range(6))
def test_lost_answers_do_no_harm(lost: int) -> None:
    """Whichever answer to an order is lost, the state shows what came of it (U8)."""
    cluster = SeatCluster([Copies(A, (B, C))], replicas=2)
    seen = 0

    def lose(ask: Ask) -> bool:
        nonlocal seen
        seen += isinstance(ask.message, SetPartitions)
        return isinstance(ask.message, SetPartitions) and seen == lost + 1

    cluster.is_lost = lose
    cluster.tend()
    cluster.tend()
    assert cluster.serving() == [A]
    assert len(cluster.copy(A).log.entries) == 1


def test_what_is_left_of_a_deleted_bucket_is_dropped() -> None:
    cluster = three_copies()
    held = cluster.play(find_held((A, B, C, D)))
    assert held == {A: {BUCKET}, B: {BUCKET}, C: {BUCKET}, D: frozenset()}
    cluster.play(drop_bucket(A, BUCKET))
    assert {node for node, _ in cluster.copies()} == {B, C}


def test_the_front_end_hears_of_it_in_one_order_for_each_node() -> None:
    cluster = SeatCluster([Copies(A, (B,)), Copies(B, (A,))] * 8)
    orders: list[NodeId] = []
    is_lost = cluster.is_lost

    def note_order(ask: Ask) -> bool:
        if isinstance(ask.message, SetPartitions):
            orders.append(ask.node)
        return is_lost(ask)

    cluster.is_lost = note_order
    cluster.tend()
    assert sorted(orders) == [A, A, B, B]  # To stand still, and then who is what.
    assert all(cluster.copy(cluster.seat(n).active, n).state is ACTIVE for n in range(16))
