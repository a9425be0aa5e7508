"""What is looked at when the faults are over: is everything done, and is everything there?"""

from typing import TYPE_CHECKING

from millrace.codec.blocks import records
from millrace.sim.atlas import Atlas
from millrace.sim.ledger import value_of
from millrace.sim.violation import Violation
from millrace.types import Block, EntryKind, LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.world import World

CHANGES_PER_FAULT = 6
REWINDS_PER_CAUSE = 3


def what_is_missing(world: "World") -> str | None:
    """None when all is well; otherwise who waits for what (G9)."""
    for log in world.log_ids:
        missing = None if is_rotten(world, log) else _chain_missing(world, log)
        if missing is not None:
            return missing
    for writer in world.writers:
        for token, operation in writer.under_way.items():
            log = operation.log
            if not world.projection(log).is_sealed and not is_rotten(world, log):
                waits_for = operation.run.waits_for if operation.run is not None else "nothing"
                outcome = operation.outcome
                return f"{writer.name} still appends {token}: waits for {waits_for}, {outcome}"
    for reader in world.readers:
        for log in world.log_ids:
            acked_last = world.ledger.truth(log).acked_last
            if reader.positions[log] <= acked_last and not is_rotten(world, log):
                return f"{reader.name} does not reach {acked_last}: {_explain(world, reader.name)}"
    return None


def is_rotten(world: "World", log: LogId) -> bool:
    """The chain holds no good copy of some block: it shrank to the damaged one before anybody
    read it.  Nothing can be copied past it, and no reader can pass it."""
    members = [world.node(number) for number in world.projection(log).chain]
    return any(
        all(
            first in node.disk.rotten.get(log, ()) or first not in node.store.opened_blocks(log)
            for node in members
        )
        for member in members
        for first in member.disk.rotten.get(log, ())
    )


def _chain_missing(world: "World", log: LogId) -> str | None:
    projection = world.projection(log)
    live = [node.node for node in world.nodes if node.is_up]
    want = min(world.shape.replication, len(live))
    if len(projection.chain) < want:
        return f"the chain of log {log} is {projection.chain}, live are {live}: {world.keeper_said}"
    dead = [node for node in projection.chain if node not in live]
    if dead:
        return f"the chain of log {log} holds the dead {dead}"
    whole = [node.node for node in Atlas(world).whole(log, is_rot_forgiven=True)]
    if len(whole) < len(projection.chain):
        return f"the chain of log {log} is {projection.chain}, whole are only {whole}"
    if projection.sequencer not in live:
        return f"the sequencer of log {log}, node {projection.sequencer}, is dead"
    return None


def _explain(world: "World", name: str) -> str:
    reader = next(reader for reader in world.readers if reader.name == name)
    explained = [reading.stream.explain() for reading in reader.readings.values()]
    for one in explained:
        if not one["waits_for"]:
            raise Violation("G9", f"{name} cannot say what it waits for")
    return f"{explained}, newest projections {[world.projection(log) for log in world.log_ids]}"


# -- At the end -------------------------------------------------------------------------------


def check_end(world: "World") -> None:
    for log in world.log_ids:
        if is_rotten(world, log):
            world.count("verdict.rotten")  # Its repair cannot end, so it cannot be judged.
        else:
            check_log(world, log)
    check_costs(world)


def check_costs(world: "World") -> None:
    """What the guarantees may cost: rewinds and reconfigurations in proportion to faults, and
    without faults none, one copy of each record to a reader, R+1 round trips an append."""
    changes = sum(world.projection(log).changes for log in world.log_ids)
    epochs = sum(world.projection(log).epoch for log in world.log_ids)
    faults = world.faults
    if changes > CHANGES_PER_FAULT * (faults + 2) * len(world.log_ids):
        raise Violation("cost", f"{changes} chains were made for {faults} faults")
    for reader in world.readers:
        rewinds = reader.count_rewinds()
        if rewinds > REWINDS_PER_CAUSE * (faults + epochs + 4) * len(world.log_ids):
            raise Violation(
                "cost",
                f"{reader.name} rewound {rewinds} times for {faults} faults, {epochs} epochs",
            )
    if world.is_calm and not world.shape.seals_for_good:
        _check_calm(world, changes)


def _check_calm(world: "World", changes: int) -> None:
    if changes:
        raise Violation("cost", f"{changes} chains were made without a fault")
    for reader in world.readers:
        received, delivered = reader.count_received(), reader.blocks_delivered
        junk = world.counters["repair.filled"]  # Received as a block, delivered as a gap.
        if not delivered <= received <= delivered + junk and not reader.reads_ranges:
            raise Violation("cost", f"{reader.name} received {received} blocks for {delivered}")
        if reader.count_rewinds():
            raise Violation("cost", f"{reader.name} rewound without a fault")
    for writer in world.writers:
        trips = writer.acknowledged * (world.shape.replication + 1)
        lookups = world.shape.appends_in_flight * len(world.log_ids)
        # A reader that looks for holes may complete an append under way, which then asks again.
        helped = world.counters["repair.completed"] + world.counters["repair.filled"]
        extra = lookups + helped * (world.shape.replication + 1)
        if not trips <= writer.asks_made <= trips + extra:
            raise Violation(
                "cost",
                f"{writer.name} made {writer.asks_made} round trips for {writer.acknowledged} "
                f"appends to {world.shape.replication} nodes",
            )


def check_log(world: "World", log: LogId) -> None:
    """Every member of the chain holds the same, and all that was acknowledged or read (G1, G4)."""
    truth = world.ledger.truth(log)
    copies: dict[NodeId, dict[Lsn, Block]] = {}
    for number in world.projection(log).chain:
        opened = world.node(number).store.opened(log)
        if opened is None:
            raise Violation("G1", f"node {number} is in the chain of log {log} and has none of it")
        copies[number] = opened.blocks
        _check_copy(world, log, number, opened.blocks, opened.picture.trim_end)
    (head, mine), *others = copies.items()
    for number, theirs in others:
        for first in sorted(mine.keys() | theirs.keys()):
            one, other = mine.get(first), theirs.get(first)
            block = one or other
            assert block is not None
            if block.end <= truth.trim_end or block.first not in truth.values:
                continue  # Forgotten, or still on its way down.
            if one is None or other is None or bytes(one.data) != bytes(other.data):
                raise Violation("G4", f"log {log} at {first}: {head} has {one}, {number} {other}")


def _check_copy(
    world: "World", log: LogId, number: int, blocks: dict[Lsn, Block], trim_end: Lsn
) -> None:
    truth = world.ledger.truth(log)
    held: dict[int, int] = {}
    for block in blocks.values():
        value = value_of(block)
        held.update(dict.fromkeys(range(block.first, block.end), value))
        if block.kind is EntryKind.DATA:
            _check_block(world, number, block)
    if trim_end > truth.trim_end:
        raise Violation("G3", f"node {number} trimmed log {log} to {trim_end}; nobody asked it to")
    for lsn, value in truth.values.items():
        if lsn >= trim_end and held.get(lsn) != value:
            raise Violation(
                "G1", f"log {log}: {lsn} was acknowledged or read; node {number} lacks it"
            )


def _check_block(world: "World", number: int, block: Block) -> None:
    record = world.ledger.appends.get(block.token)
    if record is None or record.placed.get(block.first) != block.checksum:
        raise Violation("G4", f"node {number} holds {block!r}, which nobody wrote")
    written = record.written
    held = [(one.value, one.key, one.timestamp) for one in records(block)]
    if held != list(zip(written.values, written.keys, written.timestamps, strict=True)):
        raise Violation("G4", f"node {number} holds {block!r} with other records")
