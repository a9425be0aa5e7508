"""What operators ask of a bucket: rebalances and failovers.

Both are wishes in the repository that the keeper carries out (`core/documents/rebalance.py`,
`failover_request.py`): whoever asked may wait for the end, or look later.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.client.bucket_describing import check_partitions, read_record
from millrace.core.documents.document import PartitionId
from millrace.core.documents.failover_request import FailoverRequest, ask_for
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.placement import Copies, place
from millrace.core.documents.rebalance import (
    Move,
    RebalanceRecord,
    RebalanceState,
    copies_of_seat,
    plan_moves,
)
from millrace.errors import OperationRuns, UsageError
from millrace.types import NO_NODE, NodeId, NodeInfo, Role

if TYPE_CHECKING:
    from millrace.client.cluster import Client

LOOK_S: Final = 0.1
LOOK_S_MAX: Final = 1.0


class RebalancePlan(msgspec.Struct, frozen=True):
    """What a rebalance over these nodes would do now."""

    nodes: tuple[NodeId, ...]
    moves: tuple[Move, ...]
    record: BucketRecord
    wanted: tuple[Copies, ...]


# -- Rebalances -------------------------------------------------------------------------------


async def plan_rebalance(client: "Client", name: str, nodes: Iterable[int] = ()) -> RebalancePlan:
    """Over `nodes`, all that can take copies if none are given.  Changes nothing.  Raises
    UnknownBucket, UsageError."""
    record = await read_record(client, name)
    usable = await _usable(client)
    chosen = _chosen(nodes, usable)
    locations = {node.id: node.location for node in usable}
    current = [copies_of_seat(seat) for seat in record.seats]
    wanted = place(chosen, locations, record.attributes.replicas, current)
    moves = tuple(plan_moves(record.seats, wanted))
    return RebalancePlan(chosen, moves, record, wanted)


async def begin_rebalance(client: "Client", name: str, nodes: Iterable[int] = ()) -> RebalancePlan:
    """What the keeper will do, unless nodes come or go before it begins.  Raises OperationRuns if
    one does already."""
    plan = await plan_rebalance(client, name, nodes)
    now_ms = _now_ms()
    id = plan.record.id
    record = RebalanceRecord(plan.nodes, asked_ms=now_ms, changed_ms=now_ms, bucket=id)
    current, version = await client.directory.read_rebalance(name)
    if current is not None and current.is_open and current.is_of(id):
        raise _runs(name)
    if not await client.directory.replace_rebalance(name, record, version):
        raise _runs(name)
    return plan


async def stop_rebalance(client: "Client", name: str) -> RebalanceRecord:
    """Moves that are under way are finished, or undone; others do not begin.  Raises UnknownBucket,
    UsageError if there is nothing to stop."""
    id = (await read_record(client, name)).id
    while True:
        current, version = await client.directory.read_rebalance(name)
        if current is None or not current.is_open or not current.is_of(id):
            raise UsageError(f"no rebalance of bucket {name!r} runs")
        state = RebalanceState.STOPPED
        stopped = msgspec.structs.replace(current, state=state, changed_ms=_now_ms())
        if await client.directory.replace_rebalance(name, stopped, version):
            return stopped


async def watch_rebalance(
    client: "Client", name: str, on_change: Callable[[RebalanceRecord], None]
) -> RebalanceRecord:
    """The record when it is over; until then `on_change` hears of every step."""
    told: RebalanceRecord | None = None
    pause_s = LOOK_S
    while True:
        record, _ = await client.directory.read_rebalance(name)
        if record is None:
            raise UsageError(f"there was no rebalance of bucket {name!r}")
        if record != told:
            told, pause_s = record, LOOK_S
            on_change(record)
        if not record.is_open:
            return record
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S_MAX)


def _runs(name: str) -> OperationRuns:
    return OperationRuns(
        f"a rebalance of bucket {name!r} runs already: `millrace rebalance status {name}` shows "
        f"it, `millrace rebalance stop {name}` ends it"
    )


async def _usable(client: "Client") -> list[NodeInfo]:
    """Those to which the keeper gives copies."""
    view = await client.directory.view()
    entries = await client.directory.status_entries()
    disabled = {node for node, entry in entries.items() if entry.is_disabled}
    return [
        node
        for node in view.nodes
        if Role.DOCUMENTS in node.roles and node.id in view.live and node.id not in disabled
    ]


def _chosen(nodes: Iterable[int], usable: Sequence[NodeInfo]) -> tuple[NodeId, ...]:
    able = {node.id for node in usable}
    known = ", ".join(map(str, sorted(able))) or "none"
    chosen = tuple(sorted({NodeId(node) for node in nodes})) or tuple(sorted(able))
    missing = ", ".join(str(node) for node in chosen if node not in able)
    if missing or not chosen:
        raise UsageError(
            f"nodes {missing or '(none)'} are no live nodes that take documents: those are {known}"
        )
    return chosen


# -- Failovers --------------------------------------------------------------------------------


async def plan_failover(
    client: "Client", name: str, *, node: int | None = None, partitions: Collection[int] = ()
) -> FailoverRequest:
    """The partitions of which `node` is the master, those in `partitions`, or both conditions.
    Changes nothing.  Raises UnknownBucket, UsageError."""
    record = await read_record(client, name)
    chosen = check_partitions(record, tuple(sorted(set(partitions))))
    if node is None and not chosen:
        raise UsageError("which partitions?  Give a node, partitions, or both")
    if node is not None:
        view = await client.directory.view()
        if node not in {each.id for each in view.nodes}:
            raise UsageError(f"there is no node {node}")
        numbers = chosen or tuple(PartitionId(at) for at in range(len(record.seats)))
        chosen = tuple(each for each in numbers if record.seat(each).active == node)
    without = NO_NODE if node is None else NodeId(node)
    return ask_for(record, chosen, without, is_forced=False, now_ms=_now_ms())


async def fail_over(
    client: "Client", name: str, request: FailoverRequest, *, is_forced: bool, timeout_ms: int
) -> FailoverRequest:
    """Have it carried out; how it ended, or stands when the time is up.  Raises OperationRuns if
    another one is being carried out."""
    until_s = asyncio.get_running_loop().time() + timeout_ms / 1000
    asked = msgspec.structs.replace(request, is_forced=is_forced)
    current, version = await client.directory.read_failover(name)
    is_busy = current is not None and current.is_open and current.is_of(request.bucket)
    if is_busy or not await client.directory.replace_failover(name, asked, version):
        raise OperationRuns(
            f"another failover of bucket {name!r} is being carried out: wait for it"
        )
    while asyncio.get_running_loop().time() < until_s:
        await asyncio.sleep(LOOK_S)
        current, _ = await client.directory.read_failover(name)
        if current is None or current.asked_ms != asked.asked_ms:
            raise OperationRuns(f"somebody asked for another failover of bucket {name!r} meanwhile")
        asked = current
        if not asked.is_open:
            break
    return asked


def _now_ms() -> int:
    return int(time.time() * 1000)
