"""What is looked at when the faults are over: is everything done, and is everything there?"""

from typing import TYPE_CHECKING

from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.messages import ReplicaState
from millrace.sim.commit.reader import CommitReader
from millrace.sim.commit.truth import CommitTruth
from millrace.sim.stream_reader import reader_behind
from millrace.sim.violation import Violation
from millrace.sim.writer import append_under_way
from millrace.types import LogId, Lsn

if TYPE_CHECKING:
    from millrace.sim.world import World

RECEIVED_PER_DELIVERED_MAX = 1.02


def what_is_missing_of_commits(world: "World") -> str | None:
    """None when all is well; otherwise who waits for what (G9)."""
    commits = world.commits
    stuck = append_under_way(commits.writers)
    if stuck is not None:
        return f"{stuck}; committers {_committers(world)}"
    behind = reader_behind(commits.readers, commits.end_of)
    if behind is not None:
        return behind
    for record in commits.records():
        for stream in record.streams:
            why = _unwell(world, record, stream)
            if why:
                return f"log {record.log}, stream {stream.stream}: {why}; {_committers(world)}"
    return None


def _committers(world: "World") -> list[object]:
    return [node.committing.explain() for node in world.nodes if node.is_up]


def _unwell(world: "World", record: CommitRecord, stream: StreamRecord) -> str:
    """A stream, closed or not, has all the replicas again that it should have, all of them open."""
    if _is_asleep(world, record.log):
        return ""
    stream_log = stream_log_of(record.log, stream.stream)
    live = [node for node in world.nodes if node.is_up and not node.is_disk_full]
    is_damaged = any(node.disk.rotten.get(stream_log) for node in world.nodes)
    if len(stream.replicas) < min(record.copies, len(live)) and not is_damaged:
        return f"only nodes {stream.replicas} are its replicas"
    for number in stream.replicas:
        node = world.node(number)
        if not node.is_up:
            return f"node {number} is down, and still a replica"
        states = {one.stream: one.state for one in node.shell.core.replicas(record.log)}
        if states.get(stream.stream) is not ReplicaState.OPEN:
            return f"node {number} is {states.get(stream.stream)}"
    return ""


def _is_asleep(world: "World", log: LogId) -> bool:
    """Nobody has anything of the log: whoever appends next finds a committer."""
    up = [node for node in world.nodes if node.is_up]
    return not any(node.shell.core.replicas(log) or log in node.committing.explain() for node in up)


# -- At the end -------------------------------------------------------------------------------


def check_commits(world: "World") -> None:
    for log in world.commits.log_ids:
        _check_log(world, log, world.commits.ledger.truth(log))
    for reader in world.commits.readers:
        reader.tally_all()
        _check_costs(world, reader)


def _check_log(world: "World", log: LogId, truth: CommitTruth) -> None:
    """The order has no hole, and every replica has all of its stream that is committed."""
    at = Lsn(1)
    for place in truth.order.values():
        if place.first != at:
            raise Violation("G4", f"log {log}: {at} is nobody's, {place.first} is the next")
        at = Lsn(place.last + 1)
    ledger = world.commits.ledger
    for place in truth.kept_places():
        replicas = ledger.replicas(place.entry.stream_log)
        lacking = [node for node in replicas if not ledger.has_copy(node, place.entry)]
        rotten = [
            node
            for node in lacking
            if place.entry.first in world.node(node).disk.rotten.get(place.entry.stream_log, ())
        ]
        if lacking != rotten:
            raise Violation("G1", f"log {log}: {place.first} is missing on {lacking} of {replicas}")


def _check_costs(world: "World", reader: CommitReader) -> None:
    """Without faults each block is received once, in single-copy delivery.  What is trimmed before
    its turn was received for nothing."""
    shape = world.commits.shape
    is_exact = shape.is_single_copy and not shape.trims and not reader.is_sampler
    if not world.is_calm or not is_exact:
        return
    if reader.data_received > RECEIVED_PER_DELIVERED_MAX * reader.data_delivered + 20:
        received, delivered = reader.data_received, reader.data_delivered
        raise Violation("cost", f"{reader.name} received {received} blocks for {delivered}")
