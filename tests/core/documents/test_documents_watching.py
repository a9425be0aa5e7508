"""What a look at a bucket decides: one difference, one answer."""

from collections.abc import Mapping

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.failing_over import CannotReason
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.rebalance import Move
from millrace.core.documents.settling import SeatReason
from millrace.core.documents.watching import BucketWatch, Plan, Surroundings
from millrace.core.messages.documents import (
    NO_FAILOVER_ID,
    HostedBucket,
    HostedPartition,
    PartitionOrder,
)
from millrace.types import NO_NODE, NodeId

A, B, C, D = (NodeId(number) for number in range(1, 5))
P0 = PartitionId(0)
ID, DRAWN = FailoverId(0xCAFEBABE), FailoverId(0xF00D)
TERM, HIGH = 4, 8
LOG = FailoverLog((FailoverEntry(ID, Seq(0)),))
NO_LOG = FailoverLog()
ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
PENDING, DEAD = PartitionState.PENDING, PartitionState.DEAD
SEAT = Seat(TERM, ID, A, (B,))
FENCED = Seat(TERM, ID, NO_NODE, (A, B))


def copy(
    state: PartitionState = REPLICA,
    *,
    term: int = TERM,
    log: FailoverLog = LOG,
    complete: int = HIGH,
    is_clean: bool = False,
    is_ordered: bool = True,
) -> HostedPartition:
    at = Seq(complete)
    return HostedPartition(P0, state, term, log, at, at, at, at, False, is_clean, is_ordered)


MASTER, FOLLOWER = copy(ACTIVE), copy()
WELL: Mapping[NodeId, HostedPartition | None] = {A: MASTER, B: FOLLOWER, C: None}


def record(seat: Seat, replicas: int = 1) -> BucketRecord:
    return BucketRecord(1, "orders", BucketAttributes(replicas=replicas), (seat,))


def hosted(copies: Mapping[NodeId, HostedPartition | None]) -> dict[NodeId, HostedBucket]:
    """Of nodes that answer; None: it has no copy."""
    return {
        node: HostedBucket(1, 77, True, True, () if each is None else (each,))
        for node, each in copies.items()
    }


def around(*live: NodeId) -> Surroundings:
    return Surroundings(frozenset(live), frozenset(live))


def look(
    seat: Seat,
    copies: Mapping[NodeId, HostedPartition | None],
    *live: NodeId,
    watch: BucketWatch | None = None,
    now_ms: int = 0,
    replicas: int = 1,
    moving: tuple[PartitionId, ...] = (),
    is_rebalancing: bool = False,
) -> Plan:
    watch = watch or BucketWatch(patience_ms=1_000, replace_after_ms=10_000)
    return watch.look(
        record(seat, replicas),
        around(*(live or (A, B, C))),
        hosted(copies),
        iter([DRAWN]),
        now_ms,
        moving,
        is_rebalancing=is_rebalancing,
    )


def test_nothing_to_do() -> None:
    assert look(SEAT, WELL) == Plan()


@pytest.mark.parametrize(
    ("seat", "copies", "live", "reason", "after"),
    [
        pytest.param(
            SEAT,
            {B: FOLLOWER},
            (B, C),
            SeatReason.MASTER_GONE,
            Seat(TERM + 1, ID, NO_NODE, (A, B)),
            id="the master's node is gone",
        ),
        pytest.param(
            SEAT,
            {A: None, B: FOLLOWER},
            (A, B),
            SeatReason.MASTER_LOST,
            Seat(TERM + 1, ID, NO_NODE, (A, B)),
            id="the master lost its disk",
        ),
        pytest.param(
            SEAT,
            {A: copy(ACTIVE, is_ordered=False), B: FOLLOWER},
            (A, B),
            SeatReason.MASTER_UNCLEAN,
            Seat(TERM + 1, ID, NO_NODE, (A, B)),
            id="the master restarted, not cleanly",
        ),
        pytest.param(
            msgspec.structs.replace(SEAT, pending=C, is_handover=True),
            {A: copy(DEAD, is_ordered=False), B: FOLLOWER},
            (A, B),
            SeatReason.MASTER_UNCLEAN,
            Seat(TERM + 1, ID, NO_NODE, (A, B), C),
            id="the same in a handover",
        ),
        pytest.param(
            SEAT,
            {A: copy(log=NO_LOG, is_ordered=False), B: None},
            (A, B),
            SeatReason.MASTER_UNCLEAN,
            Seat(TERM + 1, NO_FAILOVER_ID, NO_NODE, (A, B)),
            id="the first master restarted before it heard of it",
        ),
        pytest.param(
            msgspec.structs.replace(SEAT, pending=C),
            {A: MASTER, B: FOLLOWER, C: copy(PENDING)},
            (A, B, C),
            SeatReason.ABANDONED,
            Seat(TERM + 1, ID, A, (B,)),
            id="nobody goes on with a move",
        ),
        pytest.param(
            msgspec.structs.replace(SEAT, pending=C, is_handover=True),
            {A: copy(DEAD), B: FOLLOWER, C: copy(PENDING)},
            (A, B, C),
            SeatReason.ABANDONED,
            Seat(TERM + 1, ID, A, (B,)),
            id="nobody goes on with a handover",
        ),
        pytest.param(
            SEAT,
            {A: MASTER, B: copy(term=9)},
            (A, B),
            SeatReason.TERM_PASSED,
            Seat(10, ID, A, (B,)),
            id="a node has heard of a higher term",
        ),
        pytest.param(
            FENCED,
            {A: copy(complete=5), B: copy(complete=7)},
            (A, B),
            SeatReason.PROMOTED,
            Seat(TERM + 1, DRAWN, B, (A,)),
            id="a fenced seat gets a master and a new id",
        ),
        pytest.param(
            Seat(1, NO_FAILOVER_ID, NO_NODE, (A, B)),
            {A: copy(term=1, log=NO_LOG), B: copy(term=1, log=NO_LOG)},
            (A, B),
            SeatReason.PROMOTED,
            Seat(2, DRAWN, A, (B,), founded=2),
            id="a new bucket's seat gets its first",
        ),
    ],
)
def test_a_seat_is_changed(
    seat: Seat,
    copies: Mapping[NodeId, HostedPartition | None],
    live: tuple[NodeId, ...],
    reason: SeatReason,
    after: Seat,
) -> None:
    change = look(seat, copies, *live).changes[P0]
    assert (change.before, change.after, change.reason) == (seat, after, reason)


@pytest.mark.parametrize(
    ("copies", "node", "order"),
    [
        pytest.param(
            {A: copy(ACTIVE, is_clean=True, is_ordered=False), B: FOLLOWER},
            A,
            PartitionOrder(P0, ACTIVE, TERM, ID, replicas=(B,), is_takeover=True, copies=2),
            id="a master after a clean shutdown goes on under its id",
        ),
        pytest.param(
            {A: copy(REPLICA, term=TERM - 1, log=NO_LOG), B: FOLLOWER},
            A,
            PartitionOrder(P0, ACTIVE, TERM, ID, replicas=(B,), copies=2),
            id="a master that has not heard of it gets state and id at once",
        ),
        pytest.param(
            {A: copy(PENDING, term=TERM - 1, is_ordered=False), B: FOLLOWER},
            A,
            PartitionOrder(P0, ACTIVE, TERM, ID, replicas=(B,), is_takeover=True, copies=2),
            id="one that takes over had everything on disk",
        ),
        pytest.param(
            {A: copy(DEAD, term=TERM - 1), B: FOLLOWER},
            A,
            PartitionOrder(P0, ACTIVE, TERM, ID, replicas=(B,), is_takeover=True, copies=2),
            id="the master of a handover that was undone",
        ),
        pytest.param(
            {A: MASTER, B: copy(term=TERM - 1)},
            B,
            PartitionOrder(P0, REPLICA, TERM, master=A),
            id="a replica that has not heard of the term",
        ),
        pytest.param(
            {A: MASTER, B: copy(ACTIVE, term=TERM - 1)},
            B,
            PartitionOrder(P0, REPLICA, TERM, master=A),
            id="a former master",
        ),
        pytest.param(
            {A: MASTER, B: copy(is_ordered=False)},
            B,
            PartitionOrder(P0, REPLICA, TERM, master=A),
            id="a replica that restarted",
        ),
        pytest.param(
            {A: MASTER, B: None},
            B,
            PartitionOrder(P0, REPLICA, TERM, master=A),
            id="a replica that lost its disk, or never had a copy",
        ),
        pytest.param(
            {A: MASTER, B: FOLLOWER, C: copy(term=2)},
            C,
            PartitionOrder(P0, DEAD, TERM, is_dropped=True),
            id="a copy that nobody names",
        ),
    ],
)
def test_a_node_is_told(
    copies: Mapping[NodeId, HostedPartition | None], node: NodeId, order: PartitionOrder
) -> None:
    plan = look(SEAT, copies)
    assert plan.orders == {node: [order]} and not plan.changes


def test_all_that_have_a_copy_of_a_fenced_seat_stand_still() -> None:
    copies = {A: None, B: copy(term=3), C: copy(term=2)}
    still = [PartitionOrder(P0, REPLICA, TERM, master=NO_NODE)]
    assert look(FENCED, copies).orders == {A: still, B: still, C: still}


def test_in_a_handover_the_master_is_told_to_be_dead() -> None:
    seat = msgspec.structs.replace(SEAT, pending=C, is_handover=True)
    watch = BucketWatch()
    copies = hosted({A: copy(ACTIVE, term=3), B: FOLLOWER, C: copy(PENDING)})
    orders = watch.orders(record(seat), copies)
    assert orders == {
        A: [PartitionOrder(P0, DEAD, TERM, ID, replicas=(B,), is_takeover=True, copies=2)]
    }


@pytest.mark.parametrize(
    "copies",
    [
        pytest.param({A: MASTER, C: copy()}, id="a replica does not answer"),
        pytest.param({A: MASTER, B: copy(complete=7), C: copy()}, id="a replica lags"),
        pytest.param({A: MASTER, B: copy(log=NO_LOG), C: copy()}, id="it has another history"),
        pytest.param({B: FOLLOWER, C: copy()}, id="the master does not answer"),
        pytest.param({A: copy(ACTIVE, term=3), B: FOLLOWER, C: copy()}, id="nor has heard of it"),
    ],
)
def test_a_copy_is_kept_as_long_as_it_may_be_needed(
    copies: Mapping[NodeId, HostedPartition | None],
) -> None:
    assert C not in look(SEAT, copies).orders


def test_a_copy_is_dropped_though_the_master_goes_on() -> None:
    """Those that stay need what it had then, not what it has by now."""
    watch = BucketWatch()
    before = {A: copy(ACTIVE, complete=8), B: copy(complete=6), C: copy()}
    assert C not in look(SEAT, before, watch=watch).orders
    after = {A: copy(ACTIVE, complete=20), B: copy(complete=12), C: copy()}
    assert C in look(SEAT, after, watch=watch).orders


@pytest.mark.parametrize(
    ("bucket", "told"),
    [
        pytest.param(HostedBucket(1, 77, False, False), False, id="it is not warm"),
        pytest.param(HostedBucket(1, 0, True, False), True, id="it does not know the bucket"),
    ],
)
def test_a_node_that_warms_up_is_left_in_peace(bucket: HostedBucket, told: bool) -> None:
    nodes = {**hosted({B: FOLLOWER}), A: bucket}
    plan = BucketWatch().look(record(SEAT), around(A, B), nodes, iter([DRAWN]), 0)
    assert bool(plan.changes) is told and not plan.orders


# -- Time -------------------------------------------------------------------------------------


def test_a_holder_that_lives_is_waited_for_and_not_for_ever() -> None:
    watch = BucketWatch(patience_ms=1_000)
    answers = {A: copy(complete=5)}
    first = look(FENCED, answers, A, B, watch=watch, now_ms=100)
    assert first.stuck[P0].reason is CannotReason.WAITING
    assert not look(FENCED, answers, A, B, watch=watch, now_ms=1_099).changes
    assert look(FENCED, answers, A, B, watch=watch, now_ms=1_100).changes[P0].after.active == A


def test_who_was_seen_with_a_copy_is_waited_for_too() -> None:
    """A move has just taken it out of the seat: it may have what the newcomer lacks."""
    watch = BucketWatch(patience_ms=1_000)
    look(SEAT, {A: MASTER, B: copy(complete=6), C: copy(complete=8)}, watch=watch)
    answers = {B: copy(complete=6)}
    assert not look(FENCED, answers, B, C, watch=watch).changes
    both = {B: copy(complete=6), C: copy(complete=8)}
    assert look(FENCED, both, B, C, watch=watch).changes[P0].after.active == C


def test_who_has_told_that_its_copy_is_gone_is_not_waited_for() -> None:
    watch = BucketWatch(patience_ms=1_000)
    look(SEAT, {A: MASTER, B: FOLLOWER, C: FOLLOWER}, watch=watch)
    look(SEAT, {A: MASTER, B: FOLLOWER, C: None}, watch=watch)
    assert look(FENCED, {B: FOLLOWER}, B, C, watch=watch).changes[P0].after.active == B


def test_a_replica_is_replaced_when_its_node_was_away_for_long() -> None:
    watch = BucketWatch(replace_after_ms=10_000)
    copies = {A: MASTER, C: None, D: None}
    assert not look(SEAT, copies, A, C, D, watch=watch).moves
    assert not look(SEAT, copies, A, C, D, watch=watch, now_ms=9_999).moves
    moves = look(SEAT, copies, A, C, D, watch=watch, now_ms=10_000).moves
    assert moves == [Move(P0, A, (C,), C)]


def test_a_node_that_came_back_is_missed_anew() -> None:
    watch = BucketWatch(replace_after_ms=10_000)
    look(SEAT, {A: MASTER, C: None}, A, C, watch=watch)
    look(SEAT, WELL, watch=watch, now_ms=5_000)
    assert not look(SEAT, {A: MASTER, C: None}, A, C, watch=watch, now_ms=12_000).moves


# -- Copies -----------------------------------------------------------------------------------


def test_a_copy_that_was_never_made_is_made() -> None:
    assert look(Seat(TERM, ID, A), {A: MASTER, B: None}, A, B).moves == [Move(P0, A, (B,), B)]


def test_without_another_node_nothing_is_made() -> None:
    assert look(Seat(TERM, ID, A), {A: MASTER}, A) == Plan()


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([(C, B), (C, B)], C, id="a node that the bucket is on, in another rack"),
        pytest.param([(C, B), (C, B), (D, B)], D, id="of two the one that has fewer"),
    ],
)
def test_where_a_copy_is_made(others: list[tuple[NodeId, NodeId]], expected: NodeId) -> None:
    racks = {A: "r.d.c.w.1", B: "r.d.c.w.1", C: "r.d.c.w.2", D: "r.d.c.w.2"}
    live = frozenset(racks)
    seats = (Seat(TERM, ID, A), *(Seat(TERM, ID, active, (other,)) for active, other in others))
    bucket = BucketRecord(1, "orders", BucketAttributes(), seats)
    watch, nodes = BucketWatch(), hosted({A: MASTER})
    plan = watch.look(bucket, Surroundings(live, live, racks), nodes, iter([DRAWN]), 0)
    assert plan.moves == [Move(P0, A, (expected,), expected)]


@pytest.mark.parametrize(
    ("copies", "live", "staying"),
    [
        pytest.param(
            {A: MASTER, B: copy(complete=9), C: copy(complete=8)},
            (A, B, C),
            (B,),
            id="who has less",
        ),
        pytest.param({A: MASTER, C: FOLLOWER}, (A, C), (C,), id="who is gone"),
        pytest.param(
            {A: MASTER, B: copy(complete=7), C: None}, (A, B, C), None, id="not too early"
        ),
    ],
)
def test_one_replica_too_many_leaves(
    copies: Mapping[NodeId, HostedPartition | None],
    live: tuple[NodeId, ...],
    staying: tuple[NodeId, ...] | None,
) -> None:
    watch = BucketWatch(replace_after_ms=0)
    change = look(Seat(TERM, ID, A, (B, C)), copies, *live, watch=watch).changes.get(P0)
    if staying is None:
        assert change is None
    else:
        assert change is not None and change.reason is SeatReason.SURPLUS
        assert change.after == Seat(TERM + 1, ID, A, staying)


@pytest.mark.parametrize("quiet", ["moving", "rebalancing"])
def test_while_it_is_moved_copies_are_somebody_elses_business(quiet: str) -> None:
    moving = (P0,) if quiet == "moving" else ()
    is_rebalancing = quiet == "rebalancing"
    for seat in (Seat(TERM, ID, A), Seat(TERM, ID, A, (B, C))):
        copies = {A: MASTER, B: FOLLOWER, C: FOLLOWER}
        plan = look(seat, copies, moving=moving, is_rebalancing=is_rebalancing)
        assert not plan.moves and not plan.changes


def test_while_it_is_moved_the_mover_tells_the_nodes() -> None:
    seat = msgspec.structs.replace(SEAT, pending=C)
    copies = {A: copy(ACTIVE, term=3), B: FOLLOWER, C: None}
    assert look(seat, copies, moving=(P0,)) == Plan()


def test_a_master_that_dies_is_noticed_though_it_is_being_moved() -> None:
    seat = msgspec.structs.replace(SEAT, pending=C)
    change = look(seat, {B: FOLLOWER, C: copy(PENDING)}, B, C, moving=(P0,)).changes[P0]
    assert change.after == Seat(TERM + 1, ID, NO_NODE, (A, B), C)
