"""What has to be true after the faults: nobody is stuck (G9), and all have the same (G10)."""

from typing import TYPE_CHECKING

from millrace.core.documents.document import Document, PartitionId, PartitionState
from millrace.core.documents.map import Seat
from millrace.core.documents.partition import Partition
from millrace.sim.documents.histories import compare
from millrace.sim.violation import Violation
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.follower import Follower
    from millrace.sim.documents.node import DocumentsNode
    from millrace.sim.documents.world import DocumentsWorld

Documents = dict[bytes, Document]


def what_is_missing(world: "DocumentsWorld") -> str | None:
    """None when all is well; otherwise who waits for what."""
    for number, seat in enumerate(world.record.seats):
        why = _seat_missing(world, PartitionId(number), seat)
        if why:
            keepers = "; ".join(keeper.explain() for keeper in world.keepers)
            return f"partition {number}: {why}; {keepers}"
    for writer in world.writers:
        if not writer.is_idle:
            return f"{writer.name} still waits: {writer.said}"
    for follower in world.followers:
        why = _follower_missing(world, follower)
        if why:
            return why
    return None


def _seat_missing(world: "DocumentsWorld", number: PartitionId, seat: Seat) -> str:
    if seat.active == NO_NODE or seat.pending != NO_NODE or seat.is_handover:
        return f"its seat is {seat}"
    if len(seat.replicas) != world.shape.replicas:
        return f"{seat.replicas} are its replicas, and there should be {world.shape.replicas}"
    master = world.node(seat.active).partition(number)
    bucket = world.node(seat.active).bucket
    if master is None or bucket is None or bucket.active(number) is not master:
        return f"node {seat.active} does not lead it"
    if not bucket.is_serving or master.queue.count:
        return f"node {seat.active} does not serve, or has {master.queue.count} documents to write"
    for replica in seat.replicas:
        why = _replica_missing(world.node(replica), number, master)
        if why:
            return f"replica {replica}: {why}"
    for node in world.nodes:
        if node.node not in seat.holders and node.partition(number) is not None:
            return f"node {node.node} has a copy that nobody wants"
    return ""


def _replica_missing(node: "DocumentsNode", number: PartitionId, master: Partition) -> str:
    replica = node.partition(number)
    if replica is None:
        return "it has no copy"
    bucket = node.bucket
    assert bucket is not None
    is_current = replica.term == master.term and replica.log == master.log
    is_whole = replica.is_whole and replica.complete == master.high
    if replica.state is PartitionState.REPLICA and is_current and is_whole:
        return f"{replica.queue.count} documents to write" if replica.queue.count else ""
    said = bucket.explain_following(number)
    return f"{replica.state.value} at {replica.complete} of {master.high}, {said}"


def _follower_missing(world: "DocumentsWorld", follower: "Follower") -> str:
    for followed in follower.followed:
        master = master_of(world, followed.number)
        is_there = followed.backing.snapshot == master.high and followed.backing.log == master.log
        if not followed.is_settled or not is_there:
            return f"{follower.name}: {followed.consumer.explain()}; the master has {master.high}"
    if follower.lines.cookies_open:
        return f"{follower.name} waits for {follower.lines.cookies_open} barriers"
    return ""


def master_of(world: "DocumentsWorld", number: PartitionId) -> Partition:
    master = world.node(world.record.seat(number).active).partition(number)
    assert master is not None
    return master


# -- At the end -------------------------------------------------------------------------------


def check_end(world: "DocumentsWorld") -> None:
    for at, seat in enumerate(world.record.seats):
        number = PartitionId(at)
        master = master_of(world, number)
        histories = world.ledger.histories
        truth = histories.documents(number, master.log.newest, master.high)
        for holder in (seat.active, *seat.replicas):
            _check_copy(world.node(holder), number, truth)
        for follower in world.followers:
            compare(f"{follower.name}, partition {number}", follower.disks[at].documents, truth)
        _check_durable(world, number, seat.active)
    for node in world.nodes:
        if node.waits_open:
            raise Violation("waits", f"{node.waits_open} never end at node {node.node}")


def _check_copy(node: "DocumentsNode", number: PartitionId, truth: Documents) -> None:
    partition = node.partition(number)
    assert partition is not None
    stored = node.disk.partitions[node.world.record.id, number].documents
    on_disk = {key: found for key, found in stored.items() if not found.is_deleted}
    in_memory = {
        key: on_disk.get(key, found) if found.value is None else found
        for key, found in partition.table.items()
        if not found.is_deleted
    }
    compare(f"node {node.node}, partition {number}, in memory", in_memory, truth)
    compare(f"node {node.node}, partition {number}, on disk", on_disk, truth)


def _check_durable(world: "DocumentsWorld", number: PartitionId, master: NodeId) -> None:
    for durable in world.ledger.durable.get(number, ()):
        if not durable.is_excused and not world.ledger.has(master, durable.change):
            raise Violation("G11", f"{durable.change} is lost at node {master}")
