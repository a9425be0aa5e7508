"""How a bucket is: what its record says, what its nodes have of it, and what is wrong.

It only looks.  The nodes are asked what the keeper asks them, and a partition without a master is
judged by the rule that the keeper uses, so that what is told here is what holds it up.

I1  The record is read before the nodes are asked: what a node says is at least as new.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.failing_over import CannotFailOver, decide
from millrace.core.documents.failover_request import FailoverRequest
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.rebalance import RebalanceRecord
from millrace.core.documents.seats import copies_counted, is_settled
from millrace.core.documents.settling import Hosted, describe
from millrace.core.documents.watching import by_partition
from millrace.core.messages.documents import HostedBucket, HostedPartition
from millrace.core.procedure import ClusterView
from millrace.errors import UnknownBucket, UsageError
from millrace.types import NO_NODE, NodeId, Role

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TIMEOUT_MS: Final = 10_000


class CopyStanding(msgspec.Struct, frozen=True):
    """A partition on one node.  `hosted` is None if the node does not answer, or has none."""

    node: NodeId
    wanted: str  # What the seat says: master, replica, pending; or stray.
    is_live: bool
    is_answering: bool
    hosted: HostedPartition | None = None
    behind: int | None = None  # Changes that the master has and it lacks; None: not known.
    problem: str = ""


class PartitionStanding(msgspec.Struct, frozen=True):
    number: PartitionId
    seat: Seat
    copies: tuple[CopyStanding, ...]
    problem: str = ""  # Why it is not well; what is wrong with its copies comes after its own.
    is_served: bool = True  # Somebody takes reads and changes.
    high: int | None = None  # The master's highest seq; None: it does not answer.


class NodeShare(msgspec.Struct, frozen=True):
    """What a node has of the bucket; None: it does not answer."""

    node: NodeId
    address: str  # Of the documents' protocol.
    is_live: bool
    masters: int
    replicas: int
    pending: int
    behind: int | None = None  # Changes that its replicas lack.
    documents: int | None = None
    memory_bytes: int | None = None
    queued_bytes: int | None = None
    is_warm: bool = False


class BucketDescription(msgspec.Struct, frozen=True):
    record: BucketRecord
    nodes: tuple[NodeShare, ...]
    partitions: tuple[PartitionStanding, ...]
    rebalance: RebalanceRecord | None = None
    failover: FailoverRequest | None = None

    @property
    def troubled(self) -> list[PartitionStanding]:
        return [each for each in self.partitions if each.problem]


async def read_record(client: "Client", name: str) -> BucketRecord:
    """Raises UnknownBucket."""
    record, _ = await client.directory.read_bucket(name)
    if record is None:
        raise UnknownBucket(f"there is no bucket {name!r}; `millrace bucket ls` lists the buckets")
    return record


def check_partitions(record: BucketRecord, numbers: tuple[int, ...]) -> tuple[PartitionId, ...]:
    for number in numbers:
        if not 0 <= number < len(record.seats):
            raise UsageError(
                f"bucket {record.name!r} has no partition {number}: "
                f"it has 0 to {len(record.seats) - 1}"
            )
    return tuple(PartitionId(number) for number in numbers)


async def describe_bucket(
    client: "Client", name: str, partitions: tuple[int, ...] = (), timeout_ms: int = TIMEOUT_MS
) -> BucketDescription:
    """Only these partitions, all if none are given.  Raises UnknownBucket, UsageError."""
    record = await read_record(client, name)
    chosen = check_partitions(record, partitions)
    view = await client.directory.view()
    hosts = [node.id for node in view.nodes if Role.DOCUMENTS in node.roles]
    asked = [node for node in hosts if node in view.live]
    hosted, rebalance, failover = await asyncio.gather(
        client.runner.run(describe(asked, record.id, chosen), timeout_ms),
        client.directory.last_rebalance(record),
        client.directory.last_failover(record),
    )
    seen = by_partition(hosted)
    standings = tuple(
        _partition(number, record, seen.get(number, {}), view, hosted)
        for number in (chosen or map(PartitionId, range(len(record.seats))))
    )
    shares = tuple(_shares(record, view, hosted, standings))
    return BucketDescription(record, shares, standings, rebalance, failover)


# -- A partition ------------------------------------------------------------------------------


def _partition(
    number: PartitionId,
    record: BucketRecord,
    seen: dict[NodeId, HostedPartition],
    view: ClusterView,
    hosted: Hosted,
) -> PartitionStanding:
    seat = record.seat(number)
    master = seen.get(seat.active)
    copies = tuple(
        _copy(seat, node, seen.get(node), master, view, hosted)
        for node in dict.fromkeys((*seat.holders, *seen))
    )
    own = _problem(seat, record, seen, view)
    problems = [own, *(f"node {each.node} {each.problem}" for each in copies if each.problem)]
    is_served = any(_is_master(each) and not each.problem for each in copies)
    problem = "; ".join(filter(None, problems))
    high = None if master is None else master.high
    return PartitionStanding(number, seat, copies, problem, is_served, high)


def _copy(
    seat: Seat,
    node: NodeId,
    copy: HostedPartition | None,
    master: HostedPartition | None,
    view: ClusterView,
    hosted: Hosted,
) -> CopyStanding:
    behind: int | None = None
    if copy is not None and master is not None:
        has_same = copy.log.newest == master.log.newest
        behind = max(0, master.high - copy.complete) if has_same else None
    is_live, is_answering = node in view.live, node in hosted
    problem = _copy_problem(seat, node, copy, is_live, hosted.get(node))
    return CopyStanding(node, _wanted(seat, node), is_live, is_answering, copy, behind, problem)


def _wanted(seat: Seat, node: NodeId) -> str:
    if node == seat.active:
        return "master"
    if node == seat.pending:
        return "pending"
    return "replica" if node in seat.replicas else "stray"


def _copy_problem(
    seat: Seat, node: NodeId, copy: HostedPartition | None, is_live: bool, host: HostedBucket | None
) -> str:
    if not is_live:
        return "is dead"
    if host is None:
        return "does not answer"
    if not host.is_warm:
        return "is loading its documents"
    if copy is None:
        return "has no copy yet"
    if copy.has_undo:
        return "is in the middle of an undo"
    if node in seat.holders and not is_settled(seat, node, copy):
        return "has not heard what it is to be"
    return ""


def _problem(
    seat: Seat, record: BucketRecord, seen: dict[NodeId, HostedPartition], view: ClusterView
) -> str:
    """What keeps it from having a master, and enough replicas."""
    if seat.active == NO_NODE:
        live = {node: copy for node, copy in seen.items() if node in view.live}
        answered = {node for node, copy in live.items() if copy.term == seat.term}
        silent = {node for node in seat.holders if node in view.live} - answered
        answer = decide(seat, copies_counted(seat, record.attributes), live, silent)
        why = answer.detail if isinstance(answer, CannotFailOver) else "one is being chosen"
        return f"no master: {why}"
    if seat.is_handover:
        return f"it is being handed to node {seat.pending}"
    lacking = record.attributes.replicas - len(seat.replicas)
    return f"{lacking} of {record.attributes.replicas} replicas are missing" if lacking > 0 else ""


def _is_master(copy: CopyStanding) -> bool:
    hosted = copy.hosted
    is_active = hosted is not None and hosted.state is PartitionState.ACTIVE
    return copy.wanted == "master" and is_active


# -- A node -----------------------------------------------------------------------------------


def _shares(
    record: BucketRecord,
    view: ClusterView,
    hosted: Hosted,
    standings: tuple[PartitionStanding, ...],
) -> Iterator[NodeShare]:
    masters = Counter(seat.active for seat in record.seats)
    replicas = Counter(node for seat in record.seats for node in seat.replicas)
    pending = Counter(seat.pending for seat in record.seats)
    behind = _behind(standings)
    for node in view.nodes:
        held = hosted.get(node.id)
        counts = masters[node.id], replicas[node.id], pending[node.id]
        if Role.DOCUMENTS not in node.roles or not (any(counts) or (held and held.partitions)):
            continue
        share = NodeShare(node.id, node.documents, node.id in view.live, *counts)
        if held is not None:
            share = msgspec.structs.replace(
                share,
                behind=behind.get(node.id),
                documents=held.documents,
                memory_bytes=held.memory_bytes,
                queued_bytes=held.queued_bytes,
                is_warm=held.is_warm,
            )
        yield share


def _behind(standings: tuple[PartitionStanding, ...]) -> dict[NodeId, int | None]:
    """Of the replicas of each node; None: of one it is not known."""
    total: dict[NodeId, int | None] = {}
    for each in standings:
        for copy in each.copies:
            if copy.wanted in ("master", "stray"):
                continue
            so_far = total.get(copy.node, 0)
            if so_far is None or copy.behind is None:
                total[copy.node] = None
            else:
                total[copy.node] = so_far + copy.behind
    return total
