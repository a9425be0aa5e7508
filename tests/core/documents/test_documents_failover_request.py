"""What becomes of an operator's wish for other masters, round by round of the keeper."""

from functools import partial

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState
from millrace.core.documents.failing_over import CannotFailOver, CannotReason
from millrace.core.documents.failover_request import (
    GIVE_UP_MS,
    FailoverRequest,
    FailoverState,
    around_usual,
    ask_for,
    judge,
    leave_out,
    left_of,
)
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies
from millrace.core.documents.seats import handing_over, moved, with_pending
from millrace.core.documents.settling import with_seats
from millrace.core.documents.tending import Tended, Tending, fail_over, tend
from millrace.core.documents.watching import PATIENCE_MS
from millrace.core.messages.documents import SetPartitions
from millrace.core.procedure import Ask, ReadBucket
from millrace.types import NO_NODE, NodeId
from tests.core.documents.seat_cluster import NAME, SeatCluster, nodes

A, B, C = nodes(1, 2, 3)
P0, P1 = PartitionId(0), PartitionId(1)
OLD, NEW = FailoverId(0xA1), FailoverId(0xB2)
BEFORE = Seat(2, OLD, A, (B,))
FENCED = Seat(3, OLD, NO_NODE, (B, A))
PROMOTED = Seat(4, NEW, B, (A,))
STUCK = {P0: CannotFailOver(CannotReason.TOO_FEW_ANSWERS, "only nodes 2 are")}


def bucket(*seats: Seat) -> BucketRecord:
    return BucketRecord(1, NAME, BucketAttributes(), seats)


def asked(without: NodeId = NO_NODE, is_forced: bool = False) -> FailoverRequest:
    return ask_for(bucket(BEFORE), (P0,), without, is_forced, now_ms=10)


@pytest.mark.parametrize(
    ("seat", "without", "is_left"),
    [
        pytest.param(BEFORE, NO_NODE, True, id="nothing happened"),
        pytest.param(FENCED, NO_NODE, True, id="nobody is the master yet"),
        pytest.param(PROMOTED, NO_NODE, False, id="it has another master"),
        pytest.param(Seat(4, NEW, A, (B,)), NO_NODE, False, id="the best was the one before"),
        pytest.param(Seat(4, NEW, NO_NODE, (A, B)), A, True, id="the next one is gone as well"),
        pytest.param(Seat(5, OLD, B, (C,)), A, False, id="a rebalance took it from the node"),
    ],
)
def test_what_is_left_to_do(seat: Seat, without: NodeId, is_left: bool) -> None:
    assert left_of(asked(without), bucket(seat)) == ([P0] if is_left else [])


def test_a_bucket_made_anew_with_fewer_partitions_is_left_alone() -> None:
    request = ask_for(bucket(BEFORE, BEFORE), (P1,), NO_NODE, False, 0)
    assert left_of(request, bucket(BEFORE)) == []
    assert judge(request, bucket(BEFORE), {}, 1).state is FailoverState.DONE


def test_the_next_bucket_of_the_name_is_left_alone() -> None:
    """Until the keeper has looked at it no seat of it has a master."""
    next = msgspec.structs.replace(bucket(FENCED), id=2)
    assert left_of(asked(is_forced=True), next) == []
    of_any = msgspec.structs.replace(asked(), bucket=0)
    assert left_of(of_any, next) == [P0]


@pytest.mark.parametrize(
    ("seat", "without", "state", "words"),
    [
        pytest.param(PROMOTED, A, FailoverState.DONE, "", id="done"),
        pytest.param(FENCED, A, FailoverState.ASKED, "partition 0: only nodes 2", id="waits"),
        pytest.param(
            Seat(5, NEW, A, (B,)), A, FailoverState.FAILED, "master of 0 again", id="nobody else"
        ),
        pytest.param(Seat(5, NEW, A, (B,)), NO_NODE, FailoverState.DONE, "", id="any will do"),
    ],
)
def test_how_it_ends(seat: Seat, without: NodeId, state: FailoverState, words: str) -> None:
    judged = judge(asked(without), bucket(seat), STUCK, now_ms=20)
    assert judged.state is state
    assert words in judged.detail


def test_it_is_given_up_after_a_while_by_the_keeper_s_clock() -> None:
    first = judge(asked(), bucket(FENCED), STUCK, now_ms=5_000)
    assert first.is_open and first.begun_ms == 5_000
    late = judge(first, bucket(FENCED), STUCK, now_ms=5_000 + GIVE_UP_MS)
    assert late.state is FailoverState.FAILED
    assert "only nodes 2" in late.detail


def test_a_round_that_changes_nothing_is_not_written_down() -> None:
    first = judge(asked(), bucket(FENCED), STUCK, now_ms=5_000)
    assert judge(first, bucket(FENCED), STUCK, now_ms=5_500) is first


def test_only_some_of_many_troubles_are_told() -> None:
    seats = (FENCED,) * 9
    request = ask_for(bucket(*seats), [PartitionId(at) for at in range(9)], NO_NODE, False, 0)
    assert judge(request, bucket(*seats), {}, 1).detail.endswith("and 6 more")


# -- Carried out --------------------------------------------------------------------------------


def carried_out(cluster: SeatCluster, request: FailoverRequest) -> FailoverRequest:
    """As the keeper does it, once."""
    return half_round(cluster, cluster.tending(), request)[0]


def half_round(
    cluster: SeatCluster, usual: Tending, request: FailoverRequest
) -> tuple[FailoverRequest, Tending]:
    """The wish, and the usual round as it is to be after that."""
    left = left_of(request, cluster.record)
    around = leave_out(usual.around, request.without)
    round = msgspec.structs.replace(usual, around=around, forced=left if request.is_forced else ())
    tended = cluster.play(fail_over(NAME, round, partial(left_of, request)))
    assert isinstance(tended, Tended)
    stuck = tended.plan.stuck
    after = msgspec.structs.replace(usual, around=around_usual(usual.around, request, stuck))
    return judge(request, tended.record, stuck, cluster.now_ms), after


def three_copies() -> SeatCluster:
    cluster = SeatCluster([Copies(A, (B, C))], replicas=2)
    cluster.tend()
    cluster.write(10)
    cluster.replicate()
    return cluster


def wish(cluster: SeatCluster, without: NodeId, is_forced: bool = False) -> FailoverRequest:
    return ask_for(cluster.record, (P0,), without, is_forced, cluster.now_ms)


def test_a_node_that_lives_is_no_master_any_more_though_it_has_the_most() -> None:
    cluster = three_copies()
    cluster.write(3)
    done = carried_out(cluster, wish(cluster, A))
    assert done.state is FailoverState.DONE
    assert cluster.serving() == [B]
    assert len(cluster.copy(B).changes) == 10


def deaf_master(cluster: SeatCluster) -> NodeId:
    """It answers its clients and keeps its lease, and the keeper does not reach it."""
    master = cluster.seat().active
    cluster.nodes[master].is_up = False
    return master


@pytest.mark.parametrize("is_named", [False, True])
def test_nobody_else_is_promoted_while_the_master_before_may_serve(is_named: bool) -> None:
    cluster = three_copies()
    request = wish(cluster, deaf_master(cluster) if is_named else NO_NODE)
    deaf_master(cluster)
    for _ in range(3):
        waits = carried_out(cluster, request)
        assert waits.is_open and "has not said that it stopped" in waits.detail
        cluster.tend(after_ms=PATIENCE_MS)
        assert cluster.seat().active == A, "nobody could take its place"
    cluster.nodes[A].is_live = False
    assert carried_out(cluster, request).state is FailoverState.DONE
    assert cluster.serving() == [B]


def test_the_wish_fails_when_the_master_before_stays_deaf() -> None:
    cluster = three_copies()
    request = wish(cluster, deaf_master(cluster))
    first = carried_out(cluster, request)
    cluster.now_ms += GIVE_UP_MS + 1
    late = carried_out(cluster, msgspec.structs.replace(first, begun_ms=1))
    assert late.state is FailoverState.FAILED and "node 1, its master before" in late.detail


def test_the_master_before_is_told_when_it_listens_again() -> None:
    cluster = three_copies()
    request = carried_out(cluster, wish(cluster, deaf_master(cluster)))
    cluster.nodes[A].is_up = True
    assert carried_out(cluster, request).state is FailoverState.DONE
    assert cluster.serving() == [B]


def lose_orders(cluster: SeatCluster, node: NodeId, count: int = 1_000_000) -> None:
    """The next so many that are sent to it."""
    left = iter(range(count))

    def is_undelivered(ask: Ask) -> bool:
        is_order = ask.node == node and isinstance(ask.message, SetPartitions)
        return is_order and next(left, None) is not None

    cluster.is_undelivered = is_undelivered


@pytest.mark.parametrize("without", [NO_NODE, A])
@pytest.mark.parametrize("state", [PartitionState.ACTIVE, PartitionState.REPLICA])
def test_a_deposed_master_that_answers_has_to_answer_in_the_term(
    without: NodeId, state: PartitionState
) -> None:
    """Whatever it was: an order to be the master may be on its way to it."""
    cluster = three_copies()
    cluster.copy(A).state = state
    lose_orders(cluster, A)
    for _ in range(3):
        carried_out(cluster, wish(cluster, without))
        cluster.tend(after_ms=PATIENCE_MS)
    assert cluster.seat().active == NO_NODE and cluster.seat().deposed == A


def test_a_deposed_master_is_waited_for_in_a_raised_term_too() -> None:
    cluster = three_copies()
    lose_orders(cluster, A)
    carried_out(cluster, wish(cluster, A))
    cluster.copy(B).term += 5
    for _ in range(2):
        cluster.tend(after_ms=PATIENCE_MS)
    assert cluster.seat().active == NO_NODE


def test_a_node_that_was_to_be_left_out_is_not_chosen_because_it_answers_late() -> None:
    cluster = three_copies()
    cluster.write(3)  # It has the most.
    lose_orders(cluster, A)
    request, usual = half_round(cluster, cluster.tending(), wish(cluster, A))
    assert request.is_open
    lose_orders(cluster, A, 0)
    cluster.play(tend(NAME, usual))
    assert cluster.serving() == [B]
    assert carried_out(cluster, request).state is FailoverState.DONE


def test_a_master_that_is_loading_its_documents_serves_nothing() -> None:
    cluster = three_copies()
    request = wish(cluster, A)
    cluster.nodes[A].restart(is_clean=False)
    cluster.nodes[A].is_warm = False
    assert carried_out(cluster, request).state is FailoverState.DONE
    assert cluster.serving() == [B]


def test_force_waits_for_whoever_lives_and_may_have_what_a_majority_acknowledged() -> None:
    cluster = three_copies()
    cluster.write(3)
    cluster.flush()
    cluster.stream(C, P0, 100)
    request = wish(cluster, deaf_master(cluster), is_forced=True)
    lose_orders(cluster, C, 1)
    assert carried_out(cluster, request).state is FailoverState.DONE
    assert cluster.serving() == [C]
    assert cluster.acknowledged <= set(cluster.copy(C).changes)


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_wish_ends_also_while_the_partition_is_moved(is_forced: bool) -> None:
    """The one who moves it tells nobody of the fence."""
    cluster = three_copies()
    usual = cluster.tending(moving=lambda: frozenset({P0}))
    assert half_round(cluster, usual, wish(cluster, A, is_forced))[0].state is FailoverState.DONE
    assert cluster.seat().active == B


def test_a_master_that_a_move_has_made_meanwhile_stays() -> None:
    cluster = three_copies()
    request = wish(cluster, A)

    def moved_now(effect: object) -> None:
        if isinstance(effect, ReadBucket) and cluster.seat().active == A:
            handed = handing_over(with_pending(cluster.seat(), B))
            after = moved(handed, B, (C, A))
            cluster.record = with_seats(cluster.record, {P0: after})
            cluster.version += 1

    id = cluster.seat().id
    cluster.on_effect = moved_now
    carried_out(cluster, request)
    assert (cluster.seat().active, cluster.seat().id) == (B, id)


def test_force_does_without_the_master_before() -> None:
    cluster = three_copies()
    forced = wish(cluster, deaf_master(cluster), is_forced=True)
    assert carried_out(cluster, forced).state is FailoverState.DONE
    assert cluster.serving() == [B]


def test_a_master_before_that_lost_its_disk_serves_nothing() -> None:
    cluster = three_copies()
    lose_orders(cluster, A)
    request = carried_out(cluster, wish(cluster, A))
    assert cluster.seat().active == NO_NODE
    cluster.nodes[A].restart(is_clean=False, is_wiped=True)
    assert carried_out(cluster, request).state is FailoverState.DONE
    assert cluster.serving() == [B]


@pytest.mark.parametrize("without", [NO_NODE, A])
def test_a_master_before_that_came_to_life_since_is_waited_for(without: NodeId) -> None:
    """Its lease was over when the round began, and it serves again under another one."""
    cluster = three_copies()
    request = wish(cluster, without)
    cluster.nodes[A].is_live = False
    round = cluster.tending()
    cluster.nodes[A].is_live = True
    lose_orders(cluster, A)
    half_round(cluster, round, request)
    assert cluster.seat().active == NO_NODE
    cluster.nodes[A].is_up = False
    half_round(cluster, round, request)
    assert cluster.seat().active == NO_NODE


def test_masters_that_nobody_asked_about_stay() -> None:
    cluster = SeatCluster([Copies(A, (B,)), Copies(A, (C,))])
    cluster.tend()
    cluster.replicate()
    carried_out(cluster, wish(cluster, A))  # Asks for partition 0 alone.
    assert cluster.serving(0) == [B] and cluster.serving(1) == [A]


def test_without_enough_copies_it_waits_and_with_force_it_does_not() -> None:
    cluster = three_copies()
    cluster.nodes[B].stop()
    waits = carried_out(cluster, wish(cluster, A))
    assert waits.is_open and "2 of 3 copies" in waits.detail
    forced = msgspec.structs.replace(waits, is_forced=True)
    assert carried_out(cluster, forced).state is FailoverState.DONE
    assert C in cluster.serving()


def test_a_keeper_that_takes_over_does_not_do_it_twice() -> None:
    cluster = three_copies()
    request = wish(cluster, A)
    carried_out(cluster, request)
    seat = cluster.seat()
    again = carried_out(cluster, request)
    assert again.state is FailoverState.DONE
    assert cluster.seat() == seat


def test_a_dead_master_is_not_said_to_serve() -> None:
    cluster = three_copies()
    request = wish(cluster, A)
    cluster.nodes[A].stop()
    tended = cluster.play(fail_over(NAME, cluster.tending(), partial(left_of, request)))
    assert isinstance(tended, Tended) and not tended.plan.stuck
    assert cluster.serving() == [B]
