"""Asking nodes what they have of a bucket, changing its seats, telling the nodes.

I1  A seat is replaced only if it is still the one that was decided about; several are replaced by
    one compare-and-set.
I2  What a node is told is found from what it last said, never repeated blindly: after a mismatch
    of the state CAS, as after a lost answer, it is described again (U8).
I3  A master that has started, or whose lease is another one, is told that it serves only if its
    seat still stands after it was described: under its present lease nobody takes it for dead.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.seats import is_doubtful, is_idle, is_settled, order_for
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.messages.documents import (
    NO_STATE_CAS,
    BucketsDescribed,
    DescribeBuckets,
    HostedBucket,
    HostedPartition,
    PartitionOrder,
    PartitionsSet,
    SetPartitions,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    Failure,
    Pause,
    Procedure,
    ReadBucket,
    ReplaceBucket,
    ask_all,
    note,
)
from millrace.types import NodeId

DESCRIBE_TIMEOUT_MS: Final = 2_000
ORDER_TIMEOUT_MS: Final = 5_000  # It ends when the rows are on disk.
SETTLE_ATTEMPTS_MAX: Final = 8  # Orders about other partitions change a node's CAS, too.
SETTLE_PAUSE_MS: Final = 20
REPLACE_ATTEMPTS_MAX: Final = 8
OF_ONE: Final = (Refusal.CONFLICT, Refusal.EPOCH)  # What a node says of a single partition.

Hosted = Mapping[NodeId, HostedBucket]


class SeatReason(Enum):
    """Why a seat was changed."""

    MASTER_GONE = "master_gone"  # Its node's lease is over.
    MASTER_LOST = "master_lost"  # Its node lives, and has lost the partition.
    MASTER_UNCLEAN = "master_unclean"  # It restarted, and may have lost what others have.
    OPERATOR = "operator"
    PROMOTED = "promoted"
    ABANDONED = "abandoned"  # Nobody goes on with the move that was under way.
    SURPLUS = "surplus"  # It has more replicas than wanted.
    TERM_PASSED = "term_passed"  # A node has heard of a higher term.
    MOVING = "moving"


class SeatChange(msgspec.Struct, frozen=True):
    before: Seat
    after: Seat
    reason: SeatReason
    detail: str = ""


class NotChanged(msgspec.Struct, frozen=True):
    """`is_outdated`: somebody else changed the bucket, or a seat that was decided about."""

    detail: str
    is_outdated: bool = False


def describe(
    nodes: Iterable[NodeId], bucket: int, partitions: Sequence[PartitionId] = ()
) -> Procedure[dict[NodeId, HostedBucket]]:
    """What those have that answer; a node that does not know the bucket has nothing of it, and one
    that is not warm serves nothing yet."""
    asked = tuple(dict.fromkeys(nodes))
    request = DescribeBuckets(bucket, tuple(partitions))
    answers = yield from ask_all([Ask(node, request, DESCRIBE_TIMEOUT_MS) for node in asked])
    hosted: dict[NodeId, HostedBucket] = {}
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, BucketsDescribed):
            hosted[node] = of_bucket(answer, bucket)
        elif isinstance(answer, Refused) and answer.reason is Refusal.NOT_READY:
            hosted[node] = HostedBucket(bucket, NO_STATE_CAS, is_warm=False, is_serving=False)
    return hosted


def of_bucket(described: BucketsDescribed, bucket: int) -> HostedBucket:
    unknown = HostedBucket(bucket, NO_STATE_CAS, is_warm=True, is_serving=False)
    return next((each for each in described.buckets if each.id == bucket), unknown)


def find_partition(hosted: Hosted, node: NodeId, partition: PartitionId) -> HostedPartition | None:
    bucket = hosted.get(node)
    if bucket is None:
        return None
    return next((each for each in bucket.partitions if each.number == partition), None)


def is_current(record: BucketRecord, hosted: Hosted) -> Procedure[bool]:
    """Whether the seats of masters that wait to be told that they serve still stand.  Keeps I3."""
    idle = {
        copy.number: record.seat(copy.number)
        for node, bucket in hosted.items()
        for copy in bucket.partitions
        if copy.number < len(record.seats) and is_idle(record.seat(copy.number), node, copy)
    }
    if not idle:
        return True
    read: tuple[BucketRecord | None, int] | Failure = yield ReadBucket(record.name)
    found = None if isinstance(read, Failure) else read[0]
    if found is None or found.id != record.id:
        return False
    return all(found.seat(number) == seat for number, seat in idle.items())


def change_seats(
    name: str, changes: Mapping[PartitionId, SeatChange]
) -> Procedure[BucketRecord | NotChanged]:
    """The record that stands afterwards.  Keeps I1."""
    for _ in range(REPLACE_ATTEMPTS_MAX):
        read: tuple[BucketRecord | None, int] | Failure = yield ReadBucket(name)
        if isinstance(read, Failure):
            return NotChanged(f"the repository does not answer: {read.detail}")
        record, version = read
        if record is None:
            return NotChanged(f"there is no bucket {name!r} any more", is_outdated=True)
        for number, change in changes.items():
            if number >= len(record.seats) or record.seats[number] != change.before:
                detail = f"somebody else changed the seat of partition {number}"
                return NotChanged(detail, is_outdated=True)
        changed = with_seats(record, {number: each.after for number, each in changes.items()})
        replaced: int | Failure = yield ReplaceBucket(changed, version)
        if isinstance(replaced, Failure):
            return NotChanged(f"the repository does not answer: {replaced.detail}")
        if replaced:
            yield from _note_changes(name, changes)
            return changed
    return NotChanged(f"others change bucket {name!r} all the time", is_outdated=True)


def with_seats(record: BucketRecord, seats: Mapping[PartitionId, Seat]) -> BucketRecord:
    changed = tuple(seats.get(PartitionId(at), seat) for at, seat in enumerate(record.seats))
    return msgspec.structs.replace(record, seats=changed, revision=record.revision + 1)


def _note_changes(name: str, changes: Mapping[PartitionId, SeatChange]) -> Procedure[None]:
    by_reason: dict[SeatReason, list[PartitionId]] = {}
    for number, change in changes.items():
        by_reason.setdefault(change.reason, []).append(number)
    for reason, numbers in by_reason.items():
        fields = {"bucket": name, "reason": reason.value, "partitions": numbers}
        yield from note("partition.seat_changed", **fields)


def send_orders(
    record: BucketRecord, hosted: Hosted, orders: Mapping[NodeId, Sequence[PartitionOrder]]
) -> Procedure[dict[NodeId, Answer]]:
    """To nodes that were described; what they answer.  A node takes all orders or none: if it
    refuses them for the sake of one partition, each is sent alone, so that the others need not wait
    for it."""
    asks = [
        Ask(node, _order(record, hosted[node].cas, orders[node]), ORDER_TIMEOUT_MS)
        for node in sorted(orders)
        if orders[node]
    ]
    told = yield from ask_all(asks)
    answers = {each.node: answer for each, answer in zip(asks, told, strict=True)}
    for node, answer in list(answers.items()):
        if isinstance(answer, Refused) and answer.reason in OF_ONE and len(orders[node]) > 1:
            answers[node] = yield from _send_singly(record, node, hosted[node].cas, orders[node])
    return answers


def _send_singly(
    record: BucketRecord, node: NodeId, cas: int, orders: Sequence[PartitionOrder]
) -> Procedure[Answer]:
    """The last refusal, if there is one."""
    refused: Answer | None = None
    answer: Answer = PartitionsSet(cas)
    for order in orders:
        answer = yield Ask(node, _order(record, cas, (order,)), ORDER_TIMEOUT_MS)
        if isinstance(answer, PartitionsSet):
            cas = answer.cas
        elif isinstance(answer, Refused) and answer.reason in OF_ONE:
            refused = answer
        else:
            return answer  # Somebody else gives it orders, or it does not answer.
    return answer if refused is None else refused


def _order(record: BucketRecord, cas: int, orders: Sequence[PartitionOrder]) -> Message:
    return SetPartitions(record.id, record.name, record.attributes, cas, tuple(orders))


def settle(
    record: BucketRecord, partition: PartitionId, nodes: Sequence[NodeId]
) -> Procedure[bool]:
    """Bring these nodes to what the seat says; whether they are.  Keeps I2."""
    seat = record.seat(partition)
    for attempt in range(SETTLE_ATTEMPTS_MAX):
        if attempt:
            yield Pause(SETTLE_PAUSE_MS)
        hosted = yield from describe(nodes, record.id, (partition,))
        if not (yield from is_current(record, hosted)):
            return False
        settled: set[NodeId] = set()
        orders: dict[NodeId, list[PartitionOrder]] = {}
        for node, bucket in hosted.items():
            if not bucket.is_warm:
                continue
            found = find_partition(hosted, node, partition)
            if is_settled(seat, node, found):
                settled.add(node)
            elif not is_doubtful(seat, node, found):
                orders[node] = [order_for(record, partition, node, found)]
        answers = yield from send_orders(record, hosted, orders)
        settled |= {node for node, answer in answers.items() if isinstance(answer, PartitionsSet)}
        if settled.issuperset(nodes):
            return True
    return False
