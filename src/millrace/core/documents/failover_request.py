"""An operator's wish for other masters, as the repository holds it.

The keeper carries it out, and writes down what became of it, so that nobody but the keeper chooses
masters, and whoever asked may go away meanwhile.  A seat that was asked about is named with the
failover id that it had then: once it has a master with another id the wish is fulfilled, and
nothing is done twice, also by a keeper that takes over in between.

  I1  A seat is fenced for a wish only while it has the id that was asked about, and only of the
      bucket that was asked about: the next of its name is another one.
  I2  A wish ends: when every seat has a master of another id, or after GIVE_UP_MS.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.failing_over import CannotFailOver, CannotReason
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.watching import Surroundings
from millrace.types import NO_NODE, NodeId

GIVE_UP_MS: Final = 30_000
NAMED_MAX: Final = 3  # Partitions whose trouble is told.


class FailoverState(StrEnum):
    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"


class AskedSeat(msgspec.Struct, frozen=True, array_like=True):
    partition: PartitionId
    id: FailoverId


class FailoverRequest(msgspec.Struct, frozen=True):
    """`without`: a node that shall be no master, whatever it has; NO_NODE: the best of all shall.
    `is_forced`: those who do not answer are given up, and what they alone have."""

    asked: tuple[AskedSeat, ...]
    without: NodeId = NO_NODE
    is_forced: bool = False
    state: FailoverState = FailoverState.ASKED
    detail: str = ""  # Why it failed, or what it waits for, for people.
    asked_ms: int = 0
    begun_ms: int = 0  # By the keeper's clock.
    changed_ms: int = 0
    bucket: int = 0  # Its id; 0: whichever has the name.

    @property
    def is_open(self) -> bool:
        return self.state is FailoverState.ASKED

    def is_of(self, bucket: int) -> bool:
        """As that of a `RebalanceRecord`.  Seats do not tell it: one without a master has the id
        of nobody."""
        return self.bucket in (0, bucket)

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        return tuple(each.partition for each in self.asked)


def ask_for(
    bucket: BucketRecord,
    partitions: Collection[PartitionId],
    without: NodeId,
    is_forced: bool,
    now_ms: int,
) -> FailoverRequest:
    asked = tuple(AskedSeat(number, bucket.seat(number).id) for number in sorted(partitions))
    return FailoverRequest(
        asked, without, is_forced, asked_ms=now_ms, changed_ms=now_ms, bucket=bucket.id
    )


def left_of(request: FailoverRequest, bucket: BucketRecord) -> list[PartitionId]:
    """Those without a master, or whose master is the one that was asked about.  Keeps I1."""
    if not request.is_of(bucket.id):
        return []
    return [
        each.partition
        for each in request.asked
        if each.partition < len(bucket.seats)
        and _is_left(bucket.seat(each.partition), each.id, request.without)
    ]


def _is_left(seat: Seat, id: FailoverId, without: NodeId) -> bool:
    if seat.active == NO_NODE:
        return True
    # A rebalance hands a partition to another node without a new id.
    return seat.id == id and without in (NO_NODE, seat.active)


def leave_out(around: Surroundings, node: NodeId) -> Surroundings:
    """It gets no more, and what it has does not count."""
    usable, left_out = around.usable - {node}, around.left_out | {node}
    return msgspec.structs.replace(around, usable=usable, left_out=left_out)


def around_usual(
    around: Surroundings, request: FailoverRequest, stuck: Mapping[PartitionId, CannotFailOver]
) -> Surroundings:
    """For the usual round, after one for the wish: while a deposed master is waited for, it shall
    not be chosen again because it answers now."""
    is_awaited = any(why.reason is CannotReason.STILL_SERVES for why in stuck.values())
    return leave_out(around, request.without) if is_awaited else around


def judge(
    request: FailoverRequest,
    bucket: BucketRecord,
    stuck: Mapping[PartitionId, CannotFailOver],
    now_ms: int,
) -> FailoverRequest:
    """The request after a round in which `stuck` got no master.  Keeps I2."""
    if not request.begun_ms:
        request = msgspec.structs.replace(request, begun_ms=now_ms)
    left = left_of(request, bucket)
    if left:
        detail = _waits_for(left, stuck)
        is_late = now_ms - request.begun_ms >= GIVE_UP_MS
        state = FailoverState.FAILED if is_late else FailoverState.ASKED
        return _changed(request, now_ms, state, detail)
    stays = [number for number in request.partitions if _is_master(request, bucket, number)]
    if stays:
        named = ", ".join(map(str, stays))
        detail = f"node {request.without} is the master of {named} again: nobody else could be"
        return _changed(request, now_ms, FailoverState.FAILED, detail)
    return _changed(request, now_ms, FailoverState.DONE, "")


def _is_master(request: FailoverRequest, bucket: BucketRecord, number: PartitionId) -> bool:
    if request.without == NO_NODE or number >= len(bucket.seats):
        return False
    return bucket.seat(number).active == request.without


def _waits_for(left: list[PartitionId], stuck: Mapping[PartitionId, CannotFailOver]) -> str:
    told = [
        f"partition {number}: {stuck[number].detail}" if number in stuck else f"partition {number}"
        for number in left[:NAMED_MAX]
    ]
    more = len(left) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _changed(
    request: FailoverRequest, now_ms: int, state: FailoverState, detail: str
) -> FailoverRequest:
    if (state, detail) == (request.state, request.detail):
        return request
    return msgspec.structs.replace(request, state=state, detail=detail, changed_ms=now_ms)
