"""Which logs keep a node from being rebuilt or drained: those whose copies no other node can take.

Donors only say that they wait, and for how many blocks.  Why they wait follows from what the
repository knows: the nodes of a log's epochs that may take copies are too few for its replication.
A node that is alive says itself whether it holds anything of the log.

  I1  Asked only while a donor waits: of a cluster that is well nothing more is read.
  I2  The older nodesets of at most HISTORIES_MAX logs are looked up; of the others, and of those
      whose history cannot be read now, the newest one counts.
  I3  At most BLOCKED_MAX logs are told of a node.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.client.epoch_history import EpochHistory
from millrace.core.epochs import EpochRange, EpochRecord, is_metadata_log, log_of, ranges
from millrace.core.messages import DescribeSequenced, SequencedDescribed
from millrace.core.procedure import ClusterView, DeadlinePassed
from millrace.core.replication import cannot_replicate
from millrace.core.statuses import Entries
from millrace.errors import MillraceError, Unavailable
from millrace.types import Epoch, LogId, LogInfo, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

HISTORIES_MAX: Final = 64
BLOCKED_MAX: Final = 100
ASK_TIMEOUT_MS: Final = 1_000


class BlockedLog(msgspec.Struct, frozen=True):
    """A log whose copies on some node nobody else can take, and what is lacking."""

    log: str
    lack: str
    is_metadata: bool = False  # It is the log's metadata log that is blocked.


async def blocked_logs(
    client: "Client", entries: Entries, waiting: Collection[NodeId]
) -> dict[NodeId, tuple[BlockedLog, ...]]:
    """Of the nodes that donors wait for: what they wait because of."""
    if not waiting:  # Keeps I1.
        return {}
    view = await client.directory.view()
    infos = {info.id: info for info in await client.directory.logs()}
    found: dict[NodeId, list[BlockedLog]] = {node: [] for node in waiting}
    histories_left = HISTORIES_MAX
    for record in await client.directory.epochs():
        info = infos.get(log_of(record.log))
        if info is None:
            continue  # Being made or being deleted.
        spans = ranges((), record)
        if record.since > 1 and not is_metadata_log(record.log) and histories_left:
            histories_left -= 1
            spans = await _all_spans(client, info, record)
        for node in waiting:
            lack = lack_of(node, spans, view, entries) if len(found[node]) < BLOCKED_MAX else ""
            if lack and (node not in view.live or await _may_hold(client, node, record.log)):
                found[node].append(BlockedLog(info.name, lack, is_metadata_log(record.log)))
    return {node: tuple(logs) for node, logs in found.items()}


async def _may_hold(client: "Client", node: NodeId, log: LogId) -> bool:
    try:
        answer = await client.ask_node(node, DescribeSequenced(log), ASK_TIMEOUT_MS)
    except Unavailable:
        return True
    return not isinstance(answer, SequencedDescribed) or answer.blocks > 0


async def _all_spans(
    client: "Client", info: LogInfo, record: EpochRecord
) -> tuple[EpochRange, ...]:
    """Keeps I2."""
    try:
        return (await EpochHistory(client, info, record).known(Epoch(1))).ranges
    except (MillraceError, DeadlinePassed):
        return ranges((), record)


def lack_of(
    node: NodeId, spans: Collection[EpochRange], view: ClusterView, entries: Entries
) -> str:
    """Why the node's copies cannot all be elsewhere; empty if they can."""
    locations = {info.id: info.location for info in view.nodes}
    for span in spans:
        if node in span.nodeset:
            takers = [each for each in span.nodeset if _takes_copies(each, view, entries)]
            if lack := cannot_replicate(span.replication, takers, locations):
                return lack
    return ""


def _takes_copies(node: NodeId, view: ClusterView, entries: Entries) -> bool:
    """One that came back with an empty disk gets its own copies back, if there is no other way."""
    entry = entries.get(node)
    return node in view.live and (entry is None or not entry.is_disabled or entry.is_refillable)
