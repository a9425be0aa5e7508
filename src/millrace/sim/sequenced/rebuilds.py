"""Are there enough copies of everything again, when lost disks were replaced?

Asked of worlds where whoever lost its disk is rebuilt, when the faults are over.  Every block that
was acknowledged or delivered, is not trimmed and lies in a clean epoch must be held as the
replication of its epoch asks: what a lost node had, and what recoveries stored with fewer copies
because it was lost.  Copies of nodes that are AUTHORITATIVE_EMPTY do not count.  Excused is only

  - an epoch whose nodeset, without the empty ones, is too small;
  - a node that is not rebuilt yet, because it, or one that may hold something alone, stays away,
    or because a hole or a bridge has no sound copy left that could be given;
  - a copy that is there and damaged: whoever reads it finds out, not donors;
  - a copy that was lost before it was on a disk, by a node that still has its disk.
"""

from typing import TYPE_CHECKING

from millrace.core.epochs import EpochRecord
from millrace.core.replication import can_replicate
from millrace.lsn import epoch_of, show
from millrace.sim.sequenced.truth import BlockTruth, LogTruth
from millrace.sim.violation import Violation
from millrace.types import Ack, AuthoritativeStatus, LogId, Lsn

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

_EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY


def note_short(world: "World", log: LogId, epochs: range) -> None:
    """What recoveries have stored with fewer copies than are wanted, when its epoch is clean."""
    truth = world.sequenced.ledger.truth(log)
    for block in truth.blocks.values() if world.sequenced.shape.is_rebuilt else ():
        epoch = epoch_of(block.first)
        span = truth.span_of(epoch) if epoch in epochs else None
        if span is not None and _is_short(world, log, block, span):
            world.count("recovery.short_block")
            truth.short.add(block.first)


def _is_short(world: "World", log: LogId, block: BlockTruth, span: EpochRecord) -> bool:
    """By the newest word of those that hold it."""
    opened = [node.store.opened(log) for node in world.nodes if node.is_up]
    placements = [one.placements.get(block.first) for one in opened if one is not None]
    known = [one for one in placements if one is not None]
    newest = max(known, key=lambda one: one.precedence, default=None)
    return newest is not None and not can_replicate(
        span.replication, newest.copyset, world.locations
    )


def what_is_not_rebuilt(world: "World") -> str | None:
    """None when every node that lives counts again, or waits for one that is away for good, or for
    a block of which no sound copy is left."""
    sequenced = world.sequenced
    if not sequenced.shape.is_rebuilt or _has_unsound(world):
        return None
    for number, entry in sequenced.status_entries().items():
        if world.node(number).is_up and entry.rebuild:
            donors = sequenced.unrebuilt(number, entry)
            if all(world.node(donor).is_up for donor in donors):
                return f"node {number}, {entry.status.value}, waits for donors {sorted(donors)}"
    return None


def _has_unsound(world: "World") -> bool:
    """Faults spare a copy of each record, but not of holes and bridges."""
    return any(
        all(_is_unsound(node, log, first) for node in world.nodes)
        for log in world.sequenced.ledger.logs
        for damaged in world.nodes
        for first in damaged.disk.rotten.get(log, ())
    )


def _is_unsound(node: "Node", log: LogId, first: Lsn) -> bool:
    stored = node.disk.logs.get(log)
    is_there = stored is not None and first in stored.blocks
    return not is_there or first in node.disk.rotten.get(log, ())


def check_rebuilt(world: "World", log: LogId, truth: LogTruth, block: BlockTruth) -> None:
    span = truth.span_of(epoch_of(block.first))
    is_due = world.sequenced.shape.is_rebuilt and truth.matters(block)
    if not is_due or span is None or span.epoch > truth.record.clean:
        return
    statuses, locations = world.sequenced.statuses(), world.locations
    empty = {node for node, status in statuses.items() if status is _EMPTY}
    if not can_replicate(span.replication, set(span.nodeset) - empty, locations):
        return
    held = set(world.sequenced.ledger.survivors(log, block)) - empty
    rotten = {node.node for node in world.nodes if block.first in node.disk.rotten.get(log, ())}
    unkept = block.held - block.durable if block.ack is Ack.MEMORY else set()
    excused = rotten | unkept | block.lost_memory | world.sequenced.without_vote()
    if not can_replicate(span.replication, held | excused, locations):
        raise Violation(
            "G1",
            f"log {log}: {show(block.first)} is only on nodes {sorted(held)} of {span.nodeset}; "
            f"nodes {sorted(block.lost)} lost it, and excused are only {sorted(excused)}",
        )
    if block.first in truth.short and can_replicate(span.replication, held, locations):
        world.count("rebuild.short_mended")
