"""After which looks a bucket needs none for a while, and what ends that."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace.core.documents.calmness import CALM_MS, Calm
from millrace.core.documents.document import PartitionId
from millrace.core.documents.placement import Copies
from millrace.core.documents.seats import deposed, fenced, moved
from millrace.core.documents.tending import Tended, tend
from millrace.core.documents.watching import Surroundings
from millrace.core.procedure import Ask
from tests.core.documents.seat_cluster import NAME, REPLICA, Copy, SeatCluster, nodes

A, B, C = nodes(1, 2, 3)
P0 = PartitionId(0)


def settled() -> SeatCluster:
    """A is the master, B has a replica, C nothing."""
    cluster = SeatCluster([Copies(A, (B,))])
    cluster.tend()
    cluster.write(3)
    cluster.replicate()
    assert cluster.tend().is_calm
    return cluster


def a_node_is_silent(cluster: SeatCluster) -> None:
    def is_lost(ask: Ask) -> bool:
        return ask.node == C

    cluster.is_lost = is_lost


def a_node_loads(cluster: SeatCluster) -> None:
    cluster.nodes[C].is_warm = False


def a_replica_is_missed(cluster: SeatCluster) -> None:
    cluster.nodes[B].stop()


def a_copy_is_left_over(cluster: SeatCluster) -> None:
    """It stays until the replica has all that the master had."""
    stray = cluster.nodes[C].copies[P0] = Copy()
    stray.state, stray.term, stray.is_ordered = REPLICA, 1, True
    cluster.nodes[C].cas = 1
    cluster.copy(B).changes.clear()
    cluster.copy(B).log = cluster.copy(C).log


def a_replica_too_many(cluster: SeatCluster) -> None:
    """It leaves when the other has all that the master had."""
    seat = moved(cluster.seat(), A, (B, C))
    cluster.record = msgspec.structs.replace(cluster.record, seats=(seat,))
    cluster.tend(is_rebalancing=True)
    cluster.copy(B).log = cluster.copy(C).log = Copy().log


def no_master_can_be_chosen(cluster: SeatCluster) -> None:
    cluster.nodes[A].stop()
    cluster.nodes[B].stop()


def a_master_is_waited_for(cluster: SeatCluster) -> None:
    seat = deposed(cluster.seat())
    cluster.record = msgspec.structs.replace(cluster.record, seats=(seat,))
    cluster.is_undelivered = lambda ask: ask.node == A


@pytest.mark.parametrize(
    "trouble",
    [
        a_node_is_silent,
        a_node_loads,
        a_replica_is_missed,
        a_copy_is_left_over,
        a_replica_too_many,
        no_master_can_be_chosen,
        a_master_is_waited_for,
    ],
)
def test_a_bucket_that_waits_for_something_is_not_calm(
    trouble: Callable[[SeatCluster], None],
) -> None:
    cluster = settled()
    trouble(cluster)
    assert not cluster.tend().is_calm


@pytest.mark.parametrize("fields", [{"moving": lambda: (P0,)}, {"is_rebalancing": True}])
def test_a_bucket_that_is_moved_is_not_calm(fields: dict[str, Any]) -> None:
    assert not settled().tend(**fields).is_calm


def test_a_bucket_that_lacks_copies_is_not_calm_if_there_is_a_node_for_them() -> None:
    cluster = SeatCluster([Copies(A)])
    cluster.tend()
    assert not cluster.tend().is_calm
    for node in (B, C):
        cluster.nodes[node].stop()
    assert cluster.tend().is_calm  # Which node would take one?


def test_a_partition_of_which_everything_is_lost_is_not_calm() -> None:
    """The node is as it was told to be; it may not be the master."""
    cluster = SeatCluster([Copies(A)], node_count=1)
    cluster.tend()
    assert cluster.tend().is_calm
    cluster.nodes[A].restart(is_clean=False, is_wiped=True)
    assert cluster.tend().plan.stuck
    assert not cluster.tend().is_calm


def test_who_came_to_life_in_the_middle_of_a_round_may_be_gone_when_it_ends() -> None:
    """The next view may be the one that this round began with, and the master gone for good."""
    cluster = settled()
    before = msgspec.structs.replace(cluster.around(), live=frozenset((B, C)))
    round = msgspec.structs.replace(cluster.tending(), around=before, known=())
    tended = cluster.play(tend(NAME, round))
    assert isinstance(tended, Tended) and not tended.plan.changes
    assert not tended.is_calm


AROUND = Surroundings(frozenset((A, B)), frozenset((A, B)), {A: "r.d"}, lives={A: 10, B: 20})


@pytest.mark.parametrize(
    ("around", "after_ms", "lasts"),
    [
        (msgspec.structs.replace(AROUND), CALM_MS - 1, True),
        (msgspec.structs.replace(AROUND, live=frozenset((A,))), 0, False),
        (msgspec.structs.replace(AROUND, usable=frozenset((A,))), 0, False),
        (msgspec.structs.replace(AROUND, locations={A: "r.e"}), 0, False),
        (msgspec.structs.replace(AROUND, lives={A: 10, B: 21}), 0, False),
        (AROUND, CALM_MS, False),
    ],
    ids=["as it was", "a node is gone", "drained", "elsewhere", "another life", "after a while"],
)
def test_calm_lasts_until_something_happens(
    around: Surroundings, after_ms: int, lasts: bool
) -> None:
    record = settled().record
    calm = Calm(record, AROUND, 100 + CALM_MS)
    assert calm.lasts(record, around, 100 + after_ms) is lasts
    changed = msgspec.structs.replace(record, seats=(fenced(record.seats[0]),))
    assert not calm.lasts(changed, around, 100)
