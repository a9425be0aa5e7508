"""A world of documents told so that a person can follow it."""

from typing import TYPE_CHECKING

from millrace.core.documents.document import PartitionId
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.partition_row import PartitionRow

if TYPE_CHECKING:
    from millrace.sim.documents.node import DocumentsNode
    from millrace.sim.documents.world import DocumentsWorld


def describe_shape(world: "DocumentsWorld") -> str:
    shape = world.shape
    troubles = ", ".join(sorted({trouble.value for trouble in shape.troubles})) or "none"
    return (
        f"{shape.nodes} nodes, {shape.partitions} partitions, {shape.replicas} replicas, "
        f"{shape.keepers} keepers, {shape.writers} writers, {shape.followers} followers with "
        f"{shape.ring_entries} ring entries, tombstones are kept for {shape.purge_after_s} s; "
        f"troubles: {troubles}"
    )


def describe_state(world: "DocumentsWorld") -> list[str]:
    lines: list[str] = []
    for number, seat in enumerate(world.record.seats):
        lines.append(f"partition {number}: {seat}")
        for node in world.nodes:
            lines += _copy(node, PartitionId(number))
    for keeper in world.keepers:
        lines.append(keeper.explain())
    for writer in world.writers:
        lines.append(f"{writer.name}: {writer.said}")
    for follower in world.followers:
        lines += follower.explain()
    return lines


def _copy(node: "DocumentsNode", number: PartitionId) -> list[str]:
    state = "paused" if node.is_paused else "up" if node.is_up else "down"
    bucket = node.bucket if node.is_up else None
    lines: list[str] = []
    partition = None if bucket is None else bucket.copy(number)
    if bucket is not None and partition is not None:
        said = bucket.explain_following(number)
        lines.append(f"  {node.name} ({state}): {_row(partition.row())}; {said}")
    for (_, at), stored in node.disk.partitions.items():
        if at == number:
            lines.append(f"  {node.name} ({state}), on disk: {_row(stored.row)}")
    return lines


def _row(row: PartitionRow) -> str:
    undo = "" if row.undo is None else f", undoing to {row.undo}"
    return (
        f"{row.state.value} in term {row.term}, high {row.high}, seen {row.seen}, whole up to "
        f"{row.complete} of {row.running}, purged {row.purged}{undo}, log {_log(row.log)}"
    )


def _log(log: FailoverLog) -> str:
    return " ".join(f"{entry.id:x}@{entry.seq}" for entry in log.entries) or "(empty)"
