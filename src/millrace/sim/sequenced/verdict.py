"""What is looked at when the faults are over: is everything done, and is everything there?"""

from typing import TYPE_CHECKING

from millrace.codec.blocks import records
from millrace.core.replication import can_replicate
from millrace.lsn import show
from millrace.sim.sequenced.reader import SequencedReader
from millrace.sim.sequenced.rebuilds import check_rebuilt, what_is_not_rebuilt
from millrace.sim.sequenced.truth import BlockTruth, LogTruth
from millrace.sim.stream_reader import reader_behind
from millrace.sim.violation import Violation
from millrace.sim.writer import append_under_way
from millrace.types import Block, EntryKind, LogId, NodeId

if TYPE_CHECKING:
    from millrace.sim.world import World

REWINDS_PER_CAUSE = 12
RECEIVED_PER_DELIVERED_MAX = 1.02
RECEIVED_AGAIN_MAX = 20  # Blocks that were sent ahead, for one rewind.


def what_is_missing_of_sequenced(world: "World") -> str | None:
    """None when all is well; otherwise who waits for what (G9)."""
    sequenced = world.sequenced
    stuck = append_under_way(sequenced.writers)
    if stuck is not None:
        seats = [node.sequencing.explain() for node in world.nodes if node.is_up]
        return f"{stuck}; sequencers {seats}"
    return reader_behind(sequenced.readers, sequenced.end_of) or what_is_not_rebuilt(world)


# -- At the end -------------------------------------------------------------------------------


def check_sequenced(world: "World") -> None:
    for log, truth in world.sequenced.ledger.logs.items():
        _check_log(world, log, truth)
    for reader in world.sequenced.readers:
        reader.tally_all()
        _check_costs(world, reader)


def _check_log(world: "World", log: LogId, truth: LogTruth) -> None:
    for block in truth.blocks.values():
        if block.is_acked and block.last >= truth.trim_end:
            _check_kept(world, log, truth, block)
        check_rebuilt(world, log, truth, block)
    for node in world.nodes:
        stored = node.disk.logs.get(log)
        for held in () if stored is None else stored.blocks.values():
            _check_copy(world, truth, node.node, held)


def _check_kept(world: "World", log: LogId, truth: LogTruth, block: BlockTruth) -> None:
    """It lies where it should, but for what faults took."""
    left = world.sequenced.ledger.survivors(log, block)
    if not left:
        world.count("ledger.copies_lost")
    # A recovery does with less where nodes have lost their votes.
    lost = block.lost | block.lost_memory | truth.lossy
    if not can_replicate(truth.record.replication, lost.union(left), world.locations):
        raise Violation(
            "G1",
            f"log {log}: of {show(block.first)} only the copies of {left} are left, though only "
            f"{sorted(lost)} of {block.copysets} lost theirs",
        )


def _check_copy(world: "World", truth: LogTruth, node: NodeId, block: Block) -> None:
    if block.kind is not EntryKind.DATA:
        return  # Checked when it was stored.
    known = truth.blocks.get(block.first)
    if known is None or known.key[1] != block.checksum:
        raise Violation("G4", f"node {node} holds {block!r}, which no sequencer sent")
    append = world.sequenced.ledger.appends.get(block.token)
    if append is None:
        return  # Of a metadata log.
    written = append.written
    held = [(one.value, one.key, one.timestamp) for one in records(block)]
    if held != list(zip(written.values, written.keys, written.timestamps, strict=True)):
        raise Violation("G4", f"node {node} holds {block!r} with other records")


def _check_costs(world: "World", reader: SequencedReader) -> None:
    """Rewinds in proportion to faults, epochs and losses, for all nodes are asked once more before
    one is told; without faults each block is received once."""
    logs = world.sequenced.ledger.logs.values()
    epochs = sum(truth.record.epoch for truth in logs if truth.records)
    causes = world.faults + epochs + reader.losses_told + 4
    streams = reader.streams_opened
    if reader.rewinds > REWINDS_PER_CAUSE * (causes + streams):
        raise Violation("cost", f"{reader.name} rewound {reader.rewinds} times for {causes} causes")
    shape = world.sequenced.shape
    # A surplus copy that was dropped is still named in the copyset, and may be asked to send.
    is_exact = shape.is_single_copy and not shape.settings.extras and not reader.is_sampler
    if not world.is_calm or not is_exact:
        return
    again = RECEIVED_AGAIN_MAX * reader.rewinds  # A node may be slow without anybody's doing.
    if reader.data_received > RECEIVED_PER_DELIVERED_MAX * reader.data_delivered + again:
        received, delivered = reader.data_received, reader.data_delivered
        raise Violation("cost", f"{reader.name} received {received} blocks for {delivered}")
