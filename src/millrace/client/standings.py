"""The statuses of nodes, as operators see and change them."""

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.client.blocked_rebuilds import BlockedLog, blocked_logs
from millrace.client.blocked_streams import blocked_streams, lack_of_takers, takers_of
from millrace.config import ClusterSettings
from millrace.core.epochs import is_metadata_log, log_of
from millrace.core.messages import DescribeNode
from millrace.core.replication import cannot_replicate
from millrace.core.statuses import (
    NodeStatusEntry,
    StatusChange,
    cancel_drain,
    drain,
    mark_unrecoverable,
)
from millrace.errors import Unavailable, UsageError
from millrace.meta import keys
from millrace.meta.directory import ChangeStatus
from millrace.types import NodeId, NodeInfo, Role

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS = 1_000


class NodeStanding(msgspec.Struct, frozen=True):
    """`donors` tell how far they are with what is wanted of them now; `blocked` are the logs that
    they cannot finish with as things are."""

    entry: NodeStatusEntry
    donors: dict[int, keys.RebuildReport] = {}
    blocked: tuple[BlockedLog, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Somebody has blocks left to give."""
        return any(not each.is_finished and each.blocks_left for each in self.donors.values())


class StatusEvent(msgspec.Struct, frozen=True):
    """What became of a node, and when."""

    node: NodeId
    change: StatusChange


async def statuses(client: "Client") -> dict[NodeId, NodeStanding]:
    """Of all nodes that ever had another status than FULLY_AUTHORITATIVE."""
    entries = await client.directory.status_entries()
    reports = await client.directory.rebuild_reports()
    standings = {
        node: NodeStanding(
            entry,
            {
                int(id.donor): report
                for id, report in reports.items()
                if id.node == node and entry.rebuild and report.version == entry.rebuild
            },
        )
        for node, entry in entries.items()
    }
    waiting = [node for node, standing in standings.items() if standing.is_waiting]
    blocked = await blocked_logs(client, entries, waiting)
    streams = await blocked_streams(client, entries)
    return {
        node: msgspec.structs.replace(
            standing, blocked=(*blocked.get(node, ()), *streams.get(node, ()))
        )
        for node, standing in standings.items()
    }


async def events(client: "Client") -> list[StatusEvent]:
    """All changes that are remembered, newest last."""
    found: list[StatusEvent] = []
    for node, entry in (await client.directory.status_entries()).items():
        now = StatusChange(entry.status, entry.since_ms, entry.reason)
        found += [StatusEvent(node, change) for change in (*entry.history, now)]
    return sorted(found, key=lambda event: event.change.since_ms)


async def begin_drain(client: "Client", node: NodeId) -> NodeStatusEntry | None:
    """Raises UsageError if a log could not be written without the node."""
    info, _ = await _storage_node(client, node)
    await _check_others(client, node)
    return await _change(client, node, partial(drain, instance=info.instance, now_ms=_now_ms()))


async def end_drain(client: "Client", node: NodeId) -> NodeStatusEntry | None:
    await _storage_node(client, node)
    return await _change(client, node, partial(cancel_drain, now_ms=_now_ms()))


async def give_up(client: "Client", node: NodeId) -> NodeStatusEntry | None:
    """Raises UsageError if the node is alive, Unavailable while nobody can know that it is not."""
    info, is_live = await _storage_node(client, node)
    if is_live:
        raise await _not_dead(client, node)
    change = partial(mark_unrecoverable, instance=info.instance, now_ms=_now_ms())
    return await _change(client, node, change)


async def _not_dead(client: "Client", node: NodeId) -> UsageError | Unavailable:
    """A node that died a moment ago counts as alive until its lease has run out."""
    try:
        await client.ask_node(node, DescribeNode(), ASK_TIMEOUT_MS)
    except Unavailable:
        ttl_s = ClusterSettings().lease_ttl_ms / 1000
        return Unavailable(
            f"node {node} does not answer, but its lease still runs: it may be alive. A lease ends "
            f"{ttl_s:g} s after its node's death, unless `cluster.lease_ttl_ms` says otherwise: "
            "try again then"
        )
    return UsageError(f"node {node} is alive: what it holds is not lost. Drain it instead")


async def _change(client: "Client", node: NodeId, change: ChangeStatus) -> NodeStatusEntry | None:
    return await client.directory.change_status(node, change)


async def _storage_node(client: "Client", node: NodeId) -> tuple[NodeInfo, bool]:
    view = await client.directory.view()
    for info in view.nodes:
        if info.id == node and Role.STORAGE in info.roles:
            return info, node in view.live
    known = ", ".join(str(info.id) for info in view.nodes if Role.STORAGE in info.roles)
    raise UsageError(f"there is no storage node {node}: the cluster has {known}")


async def _check_others(client: "Client", node: NodeId) -> None:
    """Drained nodes take no copies: whoever is left must be able to, of the log's nodeset or not,
    since the log moves there."""
    view = await client.directory.view()
    entries = await client.directory.status_entries()
    away = {node, *(other for other, entry in entries.items() if entry.is_disabled)}
    locations = {info.id: info.location for info in view.nodes}
    names = {info.id: info.name for info in await client.directory.logs()}
    left = takers_of(view, away)
    for record in await client.directory.epochs():
        lack = cannot_replicate(record.replication, left, locations)
        if lack:
            name = names.get(log_of(record.log), str(log_of(record.log)))
            what = "the metadata of " if is_metadata_log(record.log) else ""
            raise _cannot_drain(node, f"{what}log {name!r} could not be written any more ({lack})")
    for commits in await client.directory.commits():
        lack = lack_of_takers(commits, left, view) if node in commits.nodes else ""
        if lack:
            name = names.get(commits.log, str(commits.log))
            why = f"log {name!r} could not have all its replicas any more ({lack})"
            raise _cannot_drain(node, why)


def _cannot_drain(node: NodeId, why: str) -> UsageError:
    return UsageError(f"node {node} cannot be drained: {why}; add nodes, or bring others back")


def _now_ms() -> int:
    return int(time.time() * 1000)
