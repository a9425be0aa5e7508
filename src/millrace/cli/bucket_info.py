"""How buckets and partitions look: rows of `bucket ls`, the pages of `bucket info`, `partition ls`
and `partition info`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from millrace.cli.output import Cell, Output, Tone, plain
from millrace.cli.quantities import show_duration, show_size
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.rebalance import RebalanceRecord
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.client.bucket_describing import (
        BucketDescription,
        CopyStanding,
        NodeShare,
        PartitionStanding,
    )

UNTOLD: Final = "–"  # Whoever knows does not answer.
Row = list[str | int | Cell]

HEADINGS: Final = ("bucket", "partitions", "replicas", "nodes", "memory", "state")
NODE_HEADINGS: Final = (
    "node",
    "state",
    "address",
    "masters",
    "replicas",
    "pending",
    "documents",
    "memory",
    "queued",
    "behind",
)
PARTITION_HEADINGS: Final = ("partition", "master", "replicas", "term", "id", "seq", "behind")
COPY_HEADINGS: Final = (
    "node",
    "wanted",
    "state",
    "term",
    "high",
    "complete",
    "persisted",
    "behind",
    "problem",
)


def show_id(id: int) -> str:
    return f"{id:016x}"


def show_nodes(nodes: Iterable[NodeId]) -> str:
    return ", ".join(map(str, nodes)) or "none"


# -- Rows of `bucket ls` ----------------------------------------------------------------------


def state_of(
    record: BucketRecord, rebalance: RebalanceRecord | None, live: frozenset[NodeId]
) -> Cell:
    """As far as it can be told without asking its nodes."""
    headless = sum(seat.active not in live for seat in record.seats)
    if headless:
        return Cell(f"{headless} partitions without a master", Tone.BAD)
    if rebalance is not None and rebalance.is_open:
        return Cell(f"rebalance {rebalance.done} of {rebalance.moves}", Tone.WARNING)
    wanted = record.attributes.replicas
    short = sum(sum(node in live for node in seat.replicas) < wanted for seat in record.seats)
    if short:
        return Cell(f"{short} partitions lack replicas", Tone.WARNING)
    return Cell("well", Tone.GOOD)


def row(record: BucketRecord, rebalance: RebalanceRecord | None, live: frozenset[NodeId]) -> Row:
    attributes = record.attributes
    nodes = sorted({node for seat in record.seats for node in seat.holders})
    memory = show_size(attributes.memory_bytes)
    state = state_of(record, rebalance, live)
    return [record.name, len(record.seats), attributes.replicas, show_nodes(nodes), memory, state]


def listed_json(
    record: BucketRecord, rebalance: RebalanceRecord | None, live: frozenset[NodeId]
) -> dict[str, Any]:
    """With the word that the table has for its state."""
    state = state_of(record, rebalance, live).text
    return {"bucket": record_json(record), "rebalance": rebalance, "state": state}


def record_json(record: BucketRecord) -> dict[str, Any]:
    shown: dict[str, Any] = plain(record)
    for seat in shown["seats"]:
        seat["id"] = show_id(seat["id"])
    return shown


# -- The page of `bucket info` ----------------------------------------------------------------


def described_json(description: "BucketDescription") -> dict[str, Any]:
    shown: dict[str, Any] = plain(description)
    shown["record"] = record_json(description.record)
    partitions = description.partitions
    shown["partitions"] = [partition_json(each) for each in partitions]
    shown["is_served"] = all(each.is_served for each in partitions)
    return shown


def show_bucket(output: Output, description: "BucketDescription") -> None:
    record = description.record
    attributes = record.attributes
    output.line(
        f"bucket {record.name}: {len(record.seats)} partitions, {attributes.replicas} replicas, "
        f"{show_size(attributes.memory_bytes)} of memory on each node, values up to "
        f"{show_size(attributes.value_bytes_max)}, deletions remembered for "
        f"{show_duration(attributes.purge_after_s * 1000)}"
    )
    if description.rebalance is not None:
        output.line(show_rebalance(description.rebalance), tone_of(description.rebalance))
    output.line("")
    output.table(NODE_HEADINGS, [_node_row(node) for node in description.nodes])
    output.line("")
    troubled = description.troubled
    if not troubled:
        output.line("every partition is served, and has all its replicas", Tone.GOOD)
    for each in troubled:
        tone = Tone.WARNING if each.is_served else Tone.BAD
        output.line(f"partition {each.number}: {each.problem}", tone)


def _node_row(node: "NodeShare") -> Row:
    counts: Row = [node.masters, node.replicas, node.pending]
    memory_bytes, queued_bytes = node.memory_bytes, node.queued_bytes
    held: Row = [
        _or_untold(node.documents),
        UNTOLD if memory_bytes is None else show_size(memory_bytes),
        UNTOLD if queued_bytes is None else show_size(queued_bytes),
        _or_untold(node.behind),
    ]
    return [node.node, _node_state(node), node.address, *counts, *held]


def _node_state(node: "NodeShare") -> Cell:
    if not node.is_live:
        return Cell("dead", Tone.BAD)
    if node.documents is None:
        return Cell("does not answer", Tone.BAD)
    return Cell("live", Tone.GOOD) if node.is_warm else Cell("loading", Tone.WARNING)


def _or_untold(number: int | None) -> str:
    return UNTOLD if number is None else str(number)


# -- Rebalances -------------------------------------------------------------------------------


def show_rebalance(record: RebalanceRecord) -> str:
    shown = f"rebalance over nodes {show_nodes(record.nodes)}: {record.state.value}"
    if record.moves:
        shown += f", {record.done} of {record.moves} moves done"
    if record.failures:
        shown += f", {record.failures} undone"
    return f"{shown}: {record.detail}" if record.detail else shown


def tone_of(record: RebalanceRecord) -> Tone:
    if record.is_open:
        return Tone.WARNING
    return Tone.BAD if record.state.value == "failed" else Tone.PLAIN


# -- Partitions -------------------------------------------------------------------------------


def partition_json(standing: "PartitionStanding") -> dict[str, Any]:
    shown: dict[str, Any] = plain(standing)
    shown["seat"]["id"] = show_id(shown["seat"]["id"])
    for copy, told in zip(standing.copies, shown["copies"], strict=True):
        if copy.hosted is not None:
            told["hosted"]["log"] = log_json(copy.hosted.log)
    return shown


def log_json(log: FailoverLog) -> list[dict[str, Any]]:
    """Newest first."""
    return [{"id": show_id(entry.id), "seq": entry.seq} for entry in log.entries]


def partition_row(standing: "PartitionStanding") -> Row:
    seat = standing.seat
    return [
        standing.number,
        _master(seat, standing.is_served),
        _replicas(standing),
        seat.term,
        show_id(seat.id),
        _or_untold(standing.high),
        _lag(standing),
    ]


def _master(seat: Seat, is_served: bool) -> Cell:
    if seat.active == NO_NODE:
        return Cell("none", Tone.BAD)
    return Cell(str(seat.active), Tone.PLAIN if is_served else Tone.BAD)


def _replicas(standing: "PartitionStanding") -> Cell:
    shown = show_nodes(standing.seat.replicas)
    if standing.seat.pending != NO_NODE:
        shown += f" (pending {standing.seat.pending})"
    return Cell(shown, Tone.WARNING if standing.problem else Tone.PLAIN)


def _lag(standing: "PartitionStanding") -> str:
    """Of the replica that is furthest behind."""
    behind = [copy.behind for copy in standing.copies if copy.wanted in ("replica", "pending")]
    if any(each is None for each in behind):
        return UNTOLD
    return str(max((each for each in behind if each is not None), default=0))


def show_partition(output: Output, name: str, standing: "PartitionStanding") -> None:
    seat = standing.seat
    master = "no master" if seat.active == NO_NODE else f"master {seat.active}"
    output.line(
        f"partition {standing.number} of bucket {name}: {master}, replicas "
        f"{show_nodes(seat.replicas)}, term {seat.term}, failover id {show_id(seat.id)}"
    )
    output.line("")
    output.table(COPY_HEADINGS, [_copy_row(copy) for copy in standing.copies])
    if standing.problem:
        output.line("")
        output.line(standing.problem, Tone.WARNING if standing.is_served else Tone.BAD)


def _copy_row(copy: "CopyStanding") -> Row:
    problem = Cell(copy.problem, Tone.WARNING)
    hosted = copy.hosted
    if hosted is None:
        return [copy.node, copy.wanted, *[UNTOLD] * 6, problem]
    seqs: Row = [hosted.high, hosted.complete, hosted.persisted, _or_untold(copy.behind)]
    return [copy.node, copy.wanted, hosted.state.value, hosted.term, *seqs, problem]
