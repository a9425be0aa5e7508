"""May this stream begin, and where: what a producer checks of a request (R-J.5).

A consumer that compares failover logs itself says so (NEWEST_ID): then its id must be the newest
here, which closes the race with another failover.  For others the protocol's own rule says how far
they must roll back; it knows the newest id of the consumer alone, so it goes back further than the
comparison of two logs would.

  I1  A copy streams nothing but complete snapshots (U4).
  I2  Who stopped in the middle of a snapshot gets one that ends no earlier: what was left out of
      the first part for a later version lies in the rest.
  I3  Nobody goes on from below the purge seq, except from 0: deletions are forgotten there (U9).
  I4  Who compares logs and begins at 0 knows the purge seq: below that it will not know, of its own
      history, what was deleted, and cannot roll back to there.
"""

import msgspec

from millrace.core.documents.document import NO_SEQ, PartitionState, Seq
from millrace.core.documents.messages import (
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.partition import Partition


class Accepted(msgspec.Struct, frozen=True):
    start: Seq
    end: Seq


def viewable(partition: Partition) -> Seq | None:
    """Up to where it may be streamed now; None: a snapshot is arriving.  Keeps I1."""
    if partition.state is PartitionState.ACTIVE:
        return partition.high
    return partition.complete if partition.is_whole else None


def high_of(partition: Partition) -> Seq:
    """The highest seq that a consumer can count on here."""
    is_active = partition.state is PartitionState.ACTIVE
    return partition.high if is_active else partition.complete


def must_restart(partition: Partition, sent: Seq) -> bool:
    """Whether deletions above `sent` may be forgotten.  Keeps I3."""
    return NO_SEQ < sent < partition.purged


def judge(
    request: StreamRequest, partition: Partition, purged_told: Seq | None
) -> Accepted | StreamAnswered:
    """The partition is here, in a state that is wanted, and not streamed on this connection, on
    which `purged_told` was told with its failover log, if that was asked for."""
    high = high_of(partition)
    if partition.has_undo:
        return _refused(request, StreamStatus.TEMPORARY_FAILURE, "it is rolling back itself")
    if request.flags & StreamFlag.FROM_LATEST:
        # The consumer claims to have nothing, so there is nothing to roll back.
        return _within(request, high, partition)
    refused = _check_range(request)
    if refused is not None:
        return refused
    if request.flags & StreamFlag.NEWEST_ID:
        refused = _check_newest(request, partition, high, purged_told)
    else:
        refused = _check_rollback(request, partition, high)
    return refused or _within(request, request.start, partition)


def _check_range(request: StreamRequest) -> StreamAnswered | None:
    start, first, last = request.start, request.snapshot_first, request.snapshot_last
    if start > request.end:
        return _refused(request, StreamStatus.RANGE, f"start {start} is above end {request.end}")
    if not first <= start <= last:
        detail = f"start {start} does not lie in its snapshot ({first}, {last}]"
        return _refused(request, StreamStatus.RANGE, detail)
    return None


def _check_newest(
    request: StreamRequest, partition: Partition, high: Seq, purged_told: Seq | None
) -> StreamAnswered | None:
    start, newest = request.start, partition.log.newest
    if request.id != newest or not newest:
        detail = f"the newest failover id is {newest:016x}, not {request.id:016x}"
        return _refused(request, StreamStatus.WRONG_FAILOVER_ID, detail)
    is_news = start < partition.purged and purged_told != partition.purged  # Keeps I4.
    if is_news or must_restart(partition, start):
        return _roll_back(request, NO_SEQ, f"deletions up to {partition.purged} are forgotten")
    if start > high:
        return _refused(request, StreamStatus.RANGE, f"start {start} is above {high}, the highest")
    is_in_snapshot = request.snapshot_first < start < request.snapshot_last
    if is_in_snapshot and request.snapshot_last > high:  # Keeps I2.
        detail = f"the snapshot ends at {request.snapshot_last}, and there is only {high} here"
        return _refused(request, StreamStatus.RANGE, detail)
    return None


def _check_rollback(
    request: StreamRequest, partition: Partition, high: Seq
) -> StreamAnswered | None:
    rollback = find_rollback(request, partition, high)
    if rollback is not None:
        seq, why = rollback
        return _roll_back(request, seq, why)
    if request.start > high:
        detail = f"start {request.start} is above {high}, the highest"
        return _refused(request, StreamStatus.RANGE, detail)
    return None


def find_rollback(
    request: StreamRequest, partition: Partition, high: Seq
) -> tuple[Seq, str] | None:
    """The protocol's own rule, in its order; None: the consumer may go on from where it is."""
    start, first, last = request.start, request.snapshot_first, request.snapshot_last
    is_strict = bool(request.flags & StreamFlag.STRICT_ID)
    if not start and not (is_strict and request.id):
        return None
    if must_restart(partition, start):
        return NO_SEQ, f"deletions up to {partition.purged} are forgotten"
    at = partition.log.position_of(request.id)
    if at is None:
        return NO_SEQ, f"failover id {request.id:016x} is unknown here"
    upper = partition.log.entries[at - 1].seq if at else high
    if start == first:
        last = start
    if last <= upper:
        return None
    if start == last:
        first = start
    return Seq(min(upper, first)), f"the history of {request.id:016x} ends at {upper} here"


def _within(request: StreamRequest, start: Seq, partition: Partition) -> Accepted | StreamAnswered:
    """A finite stream ends with the snapshot that reaches its end: of one that were cut there, the
    documents that changed since would be missing."""
    if start > request.end:
        detail = f"start {start} is above end {request.end}"
        return _refused(request, StreamStatus.RANGE, detail)
    end = request.end
    if request.flags & StreamFlag.DISK_ONLY:
        end = min(end, partition.persisted)
    elif request.flags & StreamFlag.TO_LATEST:
        end = min(end, high_of(partition))
    return Accepted(start, max(start, end))


def _roll_back(request: StreamRequest, seq: Seq, why: str) -> StreamAnswered:
    return StreamAnswered(request.partition, StreamStatus.ROLLBACK, rollback=seq, detail=why)


def _refused(request: StreamRequest, status: StreamStatus, detail: str) -> StreamAnswered:
    return StreamAnswered(request.partition, status, detail=detail)
