"""What becomes of an operator's wish for other masters, round by round of the keeper."""

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.failing_over import CannotFailOver, CannotReason
from millrace.core.documents.failover_request import (
    GIVE_UP_MS,
    FailoverRequest,
    FailoverState,
    ask_for,
    judge,
    leave_out,
    left_of,
)
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies
from millrace.core.documents.tending import Tended, fail_over
from millrace.core.documents.watching import PATIENCE_MS
from millrace.types import NO_NODE, NodeId
from tests.core.documents.seat_cluster import NAME, SeatCluster, nodes

A, B, C = nodes(1, 2, 3)
P0, P1 = PartitionId(0), PartitionId(1)
OLD, NEW = FailoverId(0xA1), FailoverId(0xB2)
BEFORE = Seat(2, OLD, A, (B,))
FENCED = Seat(3, OLD, NO_NODE, (B, A))
PROMOTED = Seat(4, NEW, B, (A,))
STILL_SERVES = CannotReason.STILL_SERVES
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
    left = left_of(request, cluster.record)
    usual = cluster.tending(forced=left if request.is_forced else ())
    round = msgspec.structs.replace(usual, around=leave_out(usual.around, request.without))
    tended = cluster.play(fail_over(NAME, round, left))
    assert isinstance(tended, Tended)
    return judge(request, tended.record, tended.plan.stuck, cluster.now_ms)


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
        assert cluster.tend(after_ms=PATIENCE_MS).plan.stuck[P0].reason is STILL_SERVES
    assert cluster.seat().active == NO_NODE
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
    carried_out(cluster, wish(cluster, deaf_master(cluster)))
    cluster.nodes[A].is_up = True
    cluster.tend()
    assert cluster.serving() == [B]


def test_force_does_without_the_master_before() -> None:
    cluster = three_copies()
    forced = wish(cluster, deaf_master(cluster), is_forced=True)
    assert carried_out(cluster, forced).state is FailoverState.DONE
    assert cluster.serving() == [B]


def test_a_master_before_that_lost_its_disk_serves_nothing() -> None:
    cluster = three_copies()
    carried_out(cluster, wish(cluster, deaf_master(cluster)))
    cluster.nodes[A].restart(is_clean=False, is_wiped=True)
    cluster.tend()
    assert cluster.serving() == [B]


def test_a_master_before_that_came_to_life_since_is_waited_for() -> None:
    """Its lease was over when the round began, and it serves again under another one."""
    cluster = three_copies()
    request = wish(cluster, NO_NODE)
    cluster.nodes[A].is_live = False
    round = cluster.tending()
    cluster.nodes[A].is_live = True
    deaf_master(cluster)
    tended = cluster.play(fail_over(NAME, round, left_of(request, cluster.record)))
    assert tended.plan.stuck[P0].reason is STILL_SERVES


def test_all_masters_of_a_node_that_is_left_out_are_deposed() -> None:
    cluster = SeatCluster([Copies(A, (B,)), Copies(A, (C,))])
    cluster.tend()
    cluster.replicate()
    carried_out(cluster, wish(cluster, A))  # Asks for partition 0 alone.
    assert cluster.serving(0) == [B] and cluster.serving(1) == [C]


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
