"""What is done now and then: documents expire, tombstones are purged, changes are refused while the
disk is behind."""

from collections.abc import Sequence

import pytest

from millrace.core.documents.document import ChangeKind, PartitionId, PartitionState
from millrace.core.documents.operations import (
    TEMPORARY_FAILURE,
    Command,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.core.messages import Refusal
from millrace.core.messages.documents import PartitionOrder
from millrace.server.documents.carrying_out import carry_out
from millrace.server.partitions import upkeep
from millrace.server.partitions.flusher import RETRY_DAMAGED_MS
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import PartitionBatch
from tests.support.partition_fronts import done, front_of, rounds, upkeep_of
from tests.support.partition_nodes import (
    BUCKET,
    CAFE,
    EPOCH_US,
    NUMBER,
    ONE,
    Node,
    World,
    two_nodes,
)

NOW_S = EPOCH_US // 1_000_000


# -- Expiry ---------------------------------------------------------------------------------------


def test_what_has_expired_becomes_a_change_that_replicas_hear_of() -> None:
    world, master, replica = two_nodes()
    master.put(b"short", expiry_s=NOW_S + 5)
    master.put(b"long", expiry_s=NOW_S + 5_000)
    master.put(b"for ever")
    rounds(world, upkeep_of(master))
    assert len(master.values()) == 3
    world.pass_ms(10_000)
    rounds(world, upkeep_of(master))
    world.pass_ms(100)
    assert set(master.values()) == set(replica.values()) == {b"long", b"for ever"}
    tombstone = master.store.get(BUCKET, NUMBER, b"short")
    assert tombstone is not None
    assert tombstone.kind is ChangeKind.EXPIRATION


def test_a_replica_lets_nothing_expire_itself() -> None:
    world, master, replica = two_nodes()
    master.put(b"short", expiry_s=NOW_S + 1)
    world.pass_ms(5_000)
    rounds(world, upkeep_of(replica))
    assert set(replica.values()) == {b"short"}
    assert replica.partition.high == 1


def test_a_master_without_a_lease_lets_nothing_expire() -> None:
    world, master, _ = two_nodes()
    master.put(b"short", expiry_s=NOW_S + 1)
    master.around.lease = 0
    world.pass_ms(5_000)
    rounds(world, upkeep_of(master))
    assert set(master.values()) == {b"short"}


def test_a_round_looks_at_a_bite_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EXPIRE_LOOKED_AT", 10)
    world, master, _ = two_nodes()
    for at in range(35):
        master.put(b"%d" % at, expiry_s=NOW_S + 1)
    world.pass_ms(5_000)
    looking = upkeep_of(master)
    left = []
    for _ in range(4):
        looking.look()
        left.append(len(master.values()))
    assert left == [25, 15, 5, 0]


# -- Purging --------------------------------------------------------------------------------------


def test_tombstones_go_when_they_are_old() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead(purge_after_s=60)
    node.put(b"k")
    node.partition.delete(b"k", node.around.now_us())
    world.pass_ms(30_000)
    rounds(world, upkeep_of(node))
    assert node.store.get(BUCKET, NUMBER, b"k") is not None
    assert node.partition.purged == 0
    world.pass_ms(60_000)
    rounds(world, upkeep_of(node))
    world.pass_ms(100)
    assert node.store.get(BUCKET, NUMBER, b"k") is None
    assert node.partition.purged == 2
    assert node.disk.partitions[BUCKET, NUMBER].row.purged == 2


def test_a_damaged_tombstone_stays_and_all_else_goes_on() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead(purge_after_s=60)
    node.put(b"k")
    node.partition.delete(b"k", node.around.now_us())
    world.pass_ms(90_000)
    node.disk.rot(BUCKET, NUMBER, b"k")
    upkeep = upkeep_of(node)
    rounds(world, upkeep)
    node.partition.store(b"expires", b"", 0, NOW_S, node.around.now_us())
    rounds(world, upkeep)
    assert node.partition.purged == 0
    assert node.partition.peek(b"expires") is None


# -- Congestion -----------------------------------------------------------------------------------


def test_changes_are_refused_while_the_disk_fails_and_reads_are_not() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    front = front_of(node)
    looking = upkeep_of(node, front)
    assert done(front, Command(Verb.SET, b"k", b"v")) is not TEMPORARY_FAILURE
    node.disk.capacity_bytes = 0
    world.pass_ms(100)
    assert node.flusher.failure is not None
    rounds(world, looking, 1)
    assert done(front, Command(Verb.SET, b"k", b"w")) == TEMPORARY_FAILURE
    found = done(front, Command(Verb.GET, b"k"))
    assert found.document is not None
    assert found.document.value == b"v"
    node.disk.capacity_bytes = 1 << 30
    world.pass_ms(1_000)
    rounds(world, looking, 1)
    assert done(front, Command(Verb.SET, b"k", b"w")) != TEMPORARY_FAILURE


def test_a_full_disk_lets_deletions_through_and_they_bring_the_node_back() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    node.disk.capacity_bytes = 30_000
    front = front_of(node)
    looking = upkeep_of(node, front)
    for key in (b"first", b"second"):
        done(front, Command(Verb.SET, key, bytes(10_000)))
        world.pass_ms(100)
    done(front, Command(Verb.SET, b"third", bytes(10_000)))
    world.pass_ms(100)
    rounds(world, looking, 1)
    assert front.is_congested
    assert done(front, Command(Verb.SET, b"fourth", b"v")) == TEMPORARY_FAILURE
    assert done(front, Command(Verb.DELETE, b"first")).status is OperationStatus.OK
    world.pass_ms(1_000)
    rounds(world, looking, 1)
    assert not front.is_congested
    assert set(node.on_disk) == {b"first", b"second", b"third"}
    assert node.partition.persisted == 4
    assert done(front, Command(Verb.SET, b"fourth", b"v")) != TEMPORARY_FAILURE


def test_a_disk_that_fails_otherwise_lets_no_deletions_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    front = front_of(node)
    done(front, Command(Verb.SET, b"k", b"v"))
    failure = StoreFailed(Refusal.UNAVAILABLE, "the disk does not answer")
    monkeypatch.setattr(node.disk, "write", lambda batches: failure)
    monkeypatch.setattr(node.store, "failure", failure)
    world.pass_ms(100)
    rounds(world, upkeep_of(node, front), 1)
    assert done(front, Command(Verb.DELETE, b"k")) == TEMPORARY_FAILURE
    assert done(front, Command(Verb.GET, b"k")).status is OperationStatus.OK


def test_a_partition_that_cannot_be_written_stops_itself_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All buckets of the node refused changes until it was started anew."""
    world = World()
    node = Node(world, ONE)
    node.lead()
    other = PartitionId(1)
    node.order(PartitionOrder(other, PartitionState.ACTIVE, 1, CAFE))
    world.pass_ms(100)
    front = front_of(node)
    looking = upkeep_of(node, front)
    write = node.disk.write

    def damaged(batches: Sequence[PartitionBatch]) -> StoreFailed | None:
        if any(batch.partition == NUMBER for batch in batches):
            return StoreFailed(Refusal.UNAVAILABLE, "its row is damaged")
        return write(batches)

    monkeypatch.setattr(node.disk, "write", damaged)
    done(front, Command(Verb.SET, b"k", b"v"))
    world.pass_ms(100)
    for at in range(20):
        rounds(world, looking, 1)
        assert done(front, Command(Verb.SET, b"k", bytes(1_000))) is TEMPORARY_FAILURE
        assert done(front, Command(Verb.GET, b"k")).status is OperationStatus.OK
        put = carry_out(front, other, Command(Verb.SET, b"%d" % at, b"v"))
        assert isinstance(put, Outcome) and put.status is OperationStatus.OK
    world.pass_ms(100)
    assert node.partition.queue.count == 1, "what is refused fills no memory"
    assert node.bucket.held[other].partition.persisted == 20
    monkeypatch.undo()
    world.pass_ms(RETRY_DAMAGED_MS)
    rounds(world, looking, 1)
    assert node.on_disk.keys() == {b"k"}
    assert done(front, Command(Verb.SET, b"k", b"w")).status is OperationStatus.OK


def test_changes_are_refused_while_too_much_is_not_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "QUEUED_BYTES_MAX", 10_000)
    world = World()
    node = Node(world, ONE)
    node.lead()
    front = front_of(node)
    looking = upkeep_of(node, front)
    node.put(b"large", bytes(20_000))
    looking.look()
    assert front.is_congested
    world.pass_ms(100)
    looking.look()
    assert not front.is_congested
