"""One round of the keeper for a bucket, and an operator's failover: look, change, tell, look again.

I1  The record is read before the nodes are asked, and before a master is taken for dead
    (`watching.py`, I1): it may have come to life since the round began, and serve.
I2  At most PASSES_MAX looks: what then is left waits for the next round.
I3  A master that lives and does not answer is not deposed unless forced: it would serve on, and
    nobody could be promoted in its place.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from millrace.core.documents.calmness import is_calm
from millrace.core.documents.document import FailoverId, PartitionId, PartitionState
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.seats import deposed
from millrace.core.documents.settling import (
    ORDER_TIMEOUT_MS,
    NotChanged,
    SeatChange,
    SeatReason,
    change_seats,
    describe,
    is_current,
    send_orders,
)
from millrace.core.documents.watching import BucketWatch, Plan, Surroundings, still_serves
from millrace.core.messages.documents import (
    BucketsDescribed,
    DescribeBuckets,
    PartitionOrder,
    SetPartitions,
)
from millrace.core.procedure import (
    Ask,
    ClusterView,
    Failure,
    ListNodes,
    Procedure,
    ReadBucket,
    ask_all,
    note,
)
from millrace.types import NO_NODE, NodeId

PASSES_MAX: Final = 6  # Fenced, chosen, told; and the same once more if somebody interferes.


class Tended(msgspec.Struct, frozen=True):
    """The record as it stands, and what the last look found; whether it needs no look for a
    while (`calmness.py`)."""

    record: BucketRecord
    plan: Plan
    is_calm: bool = False


class Tending(msgspec.Struct, frozen=True):
    """What does not change during a round; see BucketWatch.look.  `known` are the seats as they
    stood before it was looked who lives: `watch.seats` when the round begins."""

    watch: BucketWatch
    around: Surroundings
    ids: Iterator[FailoverId]
    now_ms: int
    known: Sequence[Seat]
    moving: Callable[[], Collection[PartitionId]] = tuple
    forced: Collection[PartitionId] = ()
    is_rebalancing: bool = False


def tend(name: str, round: Tending) -> Procedure[Tended | NotChanged]:
    tended: Tended | NotChanged = NotChanged(f"nothing was done about bucket {name!r}")
    for number in range(PASSES_MAX):
        read: tuple[BucketRecord | None, int] | Failure = yield ReadBucket(name)
        if isinstance(read, Failure):
            return NotChanged(f"the repository does not answer: {read.detail}")
        if read[0] is None:
            return NotChanged(f"there is no bucket {name!r} any more", is_outdated=True)
        if not number:
            round.watch.seats = read[0].seats  # The next round looks who lives after this.
        tended = yield from _pass(read[0], round)
        if isinstance(tended, Tended) and not tended.plan.changes and not tended.plan.orders:
            break
    return tended


def _around_now(
    record: BucketRecord, around: Surroundings, known: Sequence[Seat]
) -> Procedure[Surroundings | Failure]:
    """Keeps I1."""
    stood = dict(enumerate(known))
    changed = [seat for at, seat in enumerate(record.seats) if stood.get(at) != seat]
    masters = {node for seat in changed for node in (seat.active, seat.deposed)}
    missing = masters - around.live - {NO_NODE}
    if not missing:
        return around
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view
    return msgspec.structs.replace(around, live=around.live | (missing & view.live))


def _pass(record: BucketRecord, round: Tending) -> Procedure[Tended | NotChanged]:
    around = yield from _around_now(record, round.around, round.known)
    if isinstance(around, Failure):
        return NotChanged(f"the repository does not answer: {around.detail}")
    hosted = yield from describe(sorted(around.live), record.id)
    if not (yield from is_current(record, hosted)):
        detail = "masters wait to be told that they serve, and their seats have changed"
        return NotChanged(detail, is_outdated=True)
    moving = round.moving()
    watch = round.watch
    plan = watch.look(
        record,
        around,
        hosted,
        round.ids,
        round.now_ms,
        moving,
        round.forced,
        round.is_rebalancing,
    )
    orders = plan.orders
    if plan.changes:
        changed = yield from change_seats(record.name, plan.changes)
        if isinstance(changed, NotChanged):
            return changed
        record = changed
        orders = watch.orders(record, hosted, moving)
    yield from send_orders(record, hosted, orders)
    # Whoever came to life since the round began may be gone again when the next one begins.
    is_usual = around is round.around and not round.is_rebalancing
    return Tended(record, plan, is_usual and is_calm(record, around, hosted, plan, moving))


def fail_over(
    name: str, round: Tending, choose: Callable[[BucketRecord], Collection[PartitionId]]
) -> Procedure[Tended | NotChanged]:
    """An operator wants other masters of the partitions that are chosen by the record as it stands;
    those that have none get one.  With the partitions in `round.forced` at any price.  Keeps I3."""
    read: tuple[BucketRecord | None, int] | Failure = yield ReadBucket(name)
    if isinstance(read, Failure):
        return NotChanged(f"the repository does not answer: {read.detail}")
    record = read[0]
    if record is None:
        return NotChanged(f"there is no bucket {name!r}", is_outdated=True)
    seats = {number: record.seat(number) for number in choose(record)}
    deaf = yield from _deaf(record, {seat.active for seat in seats.values()})
    if isinstance(deaf, Failure):
        return NotChanged(f"the repository does not answer: {deaf.detail}")
    stay = {n for n, seat in seats.items() if seat.active in deaf and n not in round.forced}
    changes = {
        number: SeatChange(seat, deposed(seat), SeatReason.OPERATOR)
        for number, seat in seats.items()
        if seat.active != NO_NODE and number not in stay
    }
    if changes:
        changed = yield from change_seats(name, changes)
        if isinstance(changed, NotChanged):
            return changed
    tended = yield from tend(name, round)
    if isinstance(tended, Tended):
        tended.plan.stuck.update({number: still_serves(seats[number].active) for number in stay})
    return tended


def _deaf(record: BucketRecord, masters: set[NodeId]) -> Procedure[frozenset[NodeId] | Failure]:
    """Those that live, and do not answer."""
    asked = masters - {NO_NODE}
    described = yield from describe(sorted(asked), record.id)
    silent = asked - described.keys()
    if not silent:
        return frozenset()
    view: ClusterView | Failure = yield ListNodes()
    return view if isinstance(view, Failure) else frozenset(silent & view.live)


def find_held(nodes: Iterable[NodeId]) -> Procedure[dict[NodeId, frozenset[int]]]:
    """The ids of the buckets of which those nodes have anything that answer."""
    asked = list(nodes)
    answers = yield from ask_all([Ask(node, DescribeBuckets()) for node in asked])
    return {
        node: frozenset(bucket.id for bucket in answer.buckets)
        for node, answer in zip(asked, answers, strict=True)
        if isinstance(answer, BucketsDescribed)
    }


def drop_bucket(node: NodeId, id: int) -> Procedure[None]:
    """Whatever the node has of a bucket that is no more, also what it cannot tell of."""
    hosted = (yield from describe((node,), id)).get(node)
    if hosted is None or not hosted.is_warm:
        return
    orders = tuple(
        PartitionOrder(each.number, PartitionState.DEAD, each.term, is_dropped=True)
        for each in hosted.partitions
    )
    request = SetPartitions(id, "", BucketAttributes(), hosted.cas, orders)
    yield from ask_all([Ask(node, request, ORDER_TIMEOUT_MS)])
    yield from note("bucket.dropped", bucket=id, node=node, partitions=len(orders))
