"""Moving a partition: to another master (R-O), or one of its copies to another node.

```
pending ─▶ streams ─▶ near ─▶ a replica: it is one more ─▶ has what there was ─▶ another leaves
                           └▶ another master: the old one DEAD ─▶ all persisted at the new one
                              ─▶ the seat names it, same id ─▶ it is ACTIVE
```

  I1  The new master has everything the old one ever gave a seq, on disk, before the seat names it;
      the old one had confirmed before that it is DEAD.  So the id may stay (U3).
  I2  Until the seat names the new holders the old ones have all that counts, and whatever fails is
      undone: the old master goes on, in a term of its own.  If somebody else changed the seat, e.g.
      because the master's node died, it is theirs (failover).
  I3  Before a replica leaves, the newcomer is one more for a while, and has all that was
      acknowledged before that.  Meanwhile acknowledgements need one copy more than usual
      (`seats.copies_counted`), so that those that stay know of everything without the one that
      leaves.

Who gave up in the middle, or died, leaves a seat with somebody pending: the keeper undoes it.
"""

from enum import Enum
from typing import Final

import msgspec

from millrace.core.documents.document import NO_SEQ, PartitionState, Seq
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.rebalance import Move
from millrace.core.documents.seats import handing_over, moved, undone, with_pending
from millrace.core.documents.settling import (
    NotChanged,
    SeatChange,
    SeatReason,
    change_seats,
    describe,
    find_partition,
    settle,
)
from millrace.core.messages.documents import HostedPartition
from millrace.core.procedure import (
    DeadlinePassed,
    Failure,
    Pause,
    Procedure,
    ReadBucket,
    note,
)
from millrace.types import NO_NODE, NodeId

NEAR_CHANGES: Final = 1_000  # What is left to be sent while nobody writes: some milliseconds.
POLL_MS: Final = 100
STALLED_POLLS_MAX: Final = 200  # Without any progress.
HANDOVER_POLL_MS: Final = 10  # Nobody can write meanwhile.
HANDOVER_POLLS_MAX: Final = 500
UNHEARD_POLLS_MAX: Final = 10  # One after the other: a node may be busy for a moment.
_FOLLOWING: Final = (PartitionState.PENDING, PartitionState.REPLICA)


class NotMovedReason(Enum):
    OUTDATED = "outdated"  # The seat is not the one that the move was planned for.
    METADATA = "metadata"
    MASTER_FAILED = "master_failed"
    NEWCOMER_FAILED = "newcomer_failed"
    STALLED = "stalled"
    HANDOVER_LATE = "handover_late"
    TIMED_OUT = "timed_out"


class NotMoved(msgspec.Struct, frozen=True):
    reason: NotMovedReason
    detail: str


class Moved(msgspec.Struct, frozen=True):
    """`is_settled`: all nodes have heard of it; otherwise the keeper tells them later."""

    record: BucketRecord
    is_settled: bool


def move(name: str, plan: Move) -> Procedure[Moved | NotMoved]:
    try:
        return (yield from _move(name, plan))
    except DeadlinePassed:
        return NotMoved(NotMovedReason.TIMED_OUT, "it took too long; the keeper undoes it")


def _move(name: str, plan: Move) -> Procedure[Moved | NotMoved]:
    read: tuple[BucketRecord | None, int] | Failure = yield ReadBucket(name)
    if isinstance(read, Failure):
        return NotMoved(NotMovedReason.METADATA, read.detail)
    record = read[0]
    if record is None or plan.partition >= len(record.seats):
        return NotMoved(NotMovedReason.OUTDATED, f"bucket {name!r} has no such partition")
    seat = record.seat(plan.partition)
    wrong = _complaint(seat, plan)
    if wrong:
        return NotMoved(NotMovedReason.OUTDATED, wrong)
    target = plan.newcomer or (plan.active if plan.active != seat.active else NO_NODE)
    if target == NO_NODE:
        return (yield from _finish(name, plan, seat))
    pending = with_pending(seat, target)
    changed = yield from _change(name, plan, seat, pending)
    if isinstance(changed, NotMoved):
        return changed
    return (yield from _carry_out(changed, plan, pending))


def _complaint(seat: Seat, plan: Move) -> str:
    if seat.active == NO_NODE or seat.pending != NO_NODE or seat.is_handover:
        return "the partition has no master now, or is being moved"
    unknown = set(plan.holders) - set(seat.holders) - {plan.newcomer}
    if unknown or plan.newcomer in seat.holders:
        return f"it was planned for other holders than {seat.holders}"
    if plan.newcomer not in (NO_NODE, plan.active) and plan.active != seat.active:
        return "a new replica and another master are two moves: one can be pending"
    return ""


def _carry_out(record: BucketRecord, plan: Move, pending: Seat) -> Procedure[Moved | NotMoved]:
    """The seat names the one that is pending.  Keeps I2."""
    yield from settle(record, plan.partition, (pending.active, pending.pending))
    trouble = yield from _wait_until_near(record, plan, pending)
    current = pending
    if trouble is None:
        is_handover = plan.active != pending.active
        following = handing_over(pending) if is_handover else _grown(pending)
        changed = yield from _change(record.name, plan, pending, following)
        if isinstance(changed, NotMoved):
            trouble = changed
        else:
            current = following
            trouble = yield from _wait_until_equal(changed, plan, pending, current)
    if trouble is None:
        finished = yield from _finish(record.name, plan, current)
        if isinstance(finished, Moved):
            return finished
        trouble = finished
    yield from _undo(record.name, plan, current, pending.replicas, trouble)
    return trouble


def _grown(pending: Seat) -> Seat:
    return moved(pending, pending.active, (*pending.replicas, pending.pending))


def _finish(name: str, plan: Move, seat: Seat) -> Procedure[Moved | NotMoved]:
    """The seat names the new holders; the master hears of it before those that follow it."""
    after = moved(seat, plan.active, plan.replicas)
    changed = yield from _change(name, plan, seat, after)
    if isinstance(changed, NotMoved):
        return changed
    is_active = yield from settle(changed, plan.partition, (after.active,))
    is_followed = yield from settle(changed, plan.partition, after.replicas)
    yield from note("partition.moved", bucket=name, partition=plan.partition, to=after.holders)
    return Moved(changed, is_active and is_followed)


def _undo(
    name: str, plan: Move, seat: Seat, replicas: tuple[NodeId, ...], trouble: NotMoved
) -> Procedure[None]:
    fields = {"bucket": name, "partition": plan.partition, "reason": trouble.reason.value}
    yield from note("partition.move_undone", **fields, detail=trouble.detail)
    changed = yield from _change(name, plan, seat, undone(seat, replicas))
    if not isinstance(changed, NotMoved):
        yield from settle(changed, plan.partition, (seat.active,))


def _change(name: str, plan: Move, before: Seat, after: Seat) -> Procedure[BucketRecord | NotMoved]:
    change = SeatChange(before, after, SeatReason.MOVING)
    changed = yield from change_seats(name, {plan.partition: change})
    if isinstance(changed, NotChanged):
        is_outdated = changed.is_outdated
        reason = NotMovedReason.OUTDATED if is_outdated else NotMovedReason.METADATA
        return NotMoved(reason, changed.detail)
    return changed


# -- Waiting ----------------------------------------------------------------------------------


class _Heard(msgspec.Struct):
    """The two ends of a move, as they last said; None: it did not, or is not what it should be."""

    master: HostedPartition | None = None
    target: HostedPartition | None = None


def _ask_both(record: BucketRecord, plan: Move, seat: Seat, newcomer: NodeId) -> Procedure[_Heard]:
    hosted = yield from describe((seat.active, newcomer), record.id, (plan.partition,))

    def current(node: NodeId, state: PartitionState) -> HostedPartition | None:
        found = find_partition(hosted, node, plan.partition)
        if found is None or found.term != seat.term or found.state is not state:
            return None
        return found if found.is_ordered else None  # Else it restarted, and may have lost some.

    wanted = PartitionState.DEAD if seat.is_handover else PartitionState.ACTIVE
    # The newcomer may not have heard of a later term: it need not, as long as it follows.
    target = find_partition(hosted, newcomer, plan.partition)
    is_following = target is not None and target.state in _FOLLOWING
    return _Heard(current(seat.active, wanted), target if is_following else None)


def _wait_until_near(record: BucketRecord, plan: Move, seat: Seat) -> Procedure[NotMoved | None]:
    """Until the one that is pending has what the master had at the beginning, and nearly all since.
    As long as it makes progress, however slowly."""
    seen, first_high = NO_SEQ, None
    stalled, unheard = 0, 0
    while stalled <= STALLED_POLLS_MAX:
        heard = yield from _ask_both(record, plan, seat, seat.pending)
        if heard.master is None or heard.target is None:
            unheard += 1
            if unheard > UNHEARD_POLLS_MAX:
                return _silent(seat, heard)
            yield from settle(record, plan.partition, (seat.active, seat.pending))
        else:
            unheard = 0
            first_high = heard.master.high if first_high is None else first_high
            if _is_near(heard.master, heard.target, first_high):
                return None
            stalled = 0 if heard.target.seen > seen else stalled + 1
            seen = max(seen, heard.target.seen)
        yield Pause(POLL_MS)
    detail = f"node {seat.pending} has {seen} and gets no further"
    return NotMoved(NotMovedReason.STALLED, detail)


def _is_near(master: HostedPartition, target: HostedPartition, first_high: Seq) -> bool:
    is_same = target.log.newest == master.log.newest and not target.has_undo
    has_old = target.complete >= first_high
    return is_same and has_old and target.complete + NEAR_CHANGES >= master.high


def _silent(seat: Seat, heard: _Heard) -> NotMoved:
    if heard.master is None:
        detail = f"master {seat.active} does not answer, or is not what the seat says"
        return NotMoved(NotMovedReason.MASTER_FAILED, detail)
    detail = f"node {seat.pending} does not answer, or is not pending"
    return NotMoved(NotMovedReason.NEWCOMER_FAILED, detail)


def _wait_until_equal(
    record: BucketRecord, plan: Move, pending: Seat, seat: Seat
) -> Procedure[NotMoved | None]:
    """Until the newcomer has all that the master had when it heard of the seat, on disk.  In a
    handover that is everything: keeps I1, and otherwise I3."""
    if not (yield from settle(record, plan.partition, (seat.active,))):
        detail = f"master {seat.active} does not confirm what it is to be"
        return NotMoved(NotMovedReason.MASTER_FAILED, detail)
    first: HostedPartition | None = None
    for _ in range(HANDOVER_POLLS_MAX):
        heard = yield from _ask_both(record, plan, seat, pending.pending)
        first = first or heard.master
        if first is not None and heard.target is not None and _has_all(first, heard.target):
            return None
        yield Pause(HANDOVER_POLL_MS)
    detail = f"node {pending.pending} did not get the last changes in time"
    return NotMoved(NotMovedReason.HANDOVER_LATE, detail)


def _has_all(master: HostedPartition, target: HostedPartition) -> bool:
    is_same = target.log.newest == master.log.newest and not target.has_undo
    return is_same and min(target.complete, target.persisted) >= master.high
