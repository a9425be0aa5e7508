"""What is done now and then: documents expire, tombstones are purged, values leave memory, changes
are refused while the disk is behind; and what a start loads."""

import asyncio
from collections.abc import Sequence

import pytest

from millrace.core.documents.document import (
    ChangeKind,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import (
    AMBIGUOUS,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.core.messages import Message, Refusal
from millrace.core.messages.documents import CarriedOut, CarryOut, PartitionOrder
from millrace.errors import ConnectionLost, NotConnected
from millrace.server.documents.carrying_out import carry_out
from millrace.server.partitions import upkeep, warming
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import RETRY_DAMAGED_MS
from millrace.server.partitions.front import BucketFront
from millrace.server.partitions.upkeep import Upkeep
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import PartitionBatch
from millrace.types import NodeId
from tests.support.partition_nodes import (
    BUCKET,
    CAFE,
    EPOCH_US,
    NAME,
    NUMBER,
    ONE,
    TWO,
    Node,
    World,
    two_nodes,
)

NOW_S = EPOCH_US // 1_000_000
RECORD = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), (Seat(1, CAFE, ONE, (TWO,)),))


class Elsewhere:
    """The other nodes: what each is asked, and says; an error is raised."""

    def __init__(self, *answers: Outcome | Exception) -> None:
        self.asked: list[NodeId] = []
        self._answers = list(answers)

    async def ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        assert isinstance(message, CarryOut)
        self.asked.append(node)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return CarriedOut(answer)


def front_of(node: Node, elsewhere: Elsewhere | None = None) -> BucketFront:
    asked = elsewhere or Elsewhere()
    front = BucketFront(RECORD, node.store, node.around, asked.ask, lambda _: "")
    front.here = node.bucket
    return front


def upkeep_of(node: Node, front: BucketFront | None = None) -> Upkeep:
    fronts = {} if front is None else {NAME: front}
    return Upkeep(node.hosted.buckets, fronts, node.store, node.flusher, node.around)


def rounds(world: World, upkeep: Upkeep, count: int = 4) -> None:
    for _ in range(count):
        upkeep.look()
        world.pass_ms(50)


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


# -- Room -----------------------------------------------------------------------------------------


def test_values_that_are_on_disk_leave_memory() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead(memory_bytes=100_000)
    for at in range(50):
        node.put(b"%d" % at, bytes(10_000))
    rounds(world, upkeep_of(node), 1)
    assert node.bucket.memory_bytes > 500_000, "they are nowhere else yet"
    world.pass_ms(100)
    rounds(world, upkeep_of(node))
    assert node.bucket.memory_bytes <= 100_000
    assert len(node.values()) == 50


def test_keys_that_fill_memory_are_not_searched_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    node = Node(world, ONE)
    node.lead(memory_bytes=10_000)
    for at in range(1_000):
        node.put(b"%d" % at, b"")
    world.pass_ms(100)
    searched: list[int] = []
    evict = node.partition.evict

    def counted(bytes_wanted: int) -> int:
        searched.append(bytes_wanted)
        return evict(bytes_wanted)

    monkeypatch.setattr(node.partition, "evict", counted)
    rounds(world, upkeep_of(node), 20)
    assert len(searched) == 1
    node.put(b"more", bytes(5_000))
    world.pass_ms(100)
    rounds(world, upkeep_of(node), 1)
    assert node.values()[b"more"] is None


def filled(**attributes: int) -> tuple[World, Node, Upkeep]:
    """With 50 documents that are on disk, and nothing that was not looked at."""
    world = World()
    node = Node(world, ONE)
    node.lead(**attributes)
    for at in range(50):
        node.put(b"%d" % at, bytes(10_000))
    world.pass_ms(100)
    looking = upkeep_of(node, front_of(node))
    rounds(world, looking)
    assert not node.bucket.is_stirred
    return world, node, looking


def test_room_is_not_reckoned_where_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    world, node, looking = filled()
    reckoned: list[int] = []
    for name in ("memory_bytes", "queued_bytes"):
        monkeypatch.setattr(BucketPartitions, name, property(lambda self: reckoned.append(1) or 0))
    rounds(world, looking, 10)
    assert not reckoned
    node.put(b"more")
    world.pass_ms(0)
    rounds(world, looking, 1)
    assert reckoned


def test_memory_is_given_back_when_less_of_it_is_allowed() -> None:
    world, node, looking = filled()
    node.order(memory_bytes=100_000)
    rounds(world, looking)
    assert node.bucket.memory_bytes <= 100_000


def test_values_that_were_read_from_disk_leave_memory_again() -> None:
    world, node, looking = filled(memory_bytes=100_000)
    front = front_of(node)
    for at in range(50):
        found = done(front, Command(Verb.GET, b"%d" % at))
        assert found.document is not None and found.document.value
    assert node.bucket.memory_bytes > 500_000
    rounds(world, looking)
    assert node.bucket.memory_bytes <= 100_000


def test_room_that_one_round_could_not_make_is_made_by_the_next_ones() -> None:
    """Each partition is asked for its share, and one of them has keys alone to give."""
    world = World()
    node = Node(world, ONE)
    node.lead(memory_bytes=400_000)
    node.order(PartitionOrder(PartitionId(1), PartitionState.ACTIVE, 1, CAFE), memory_bytes=400_000)
    world.pass_ms(100)
    keys = node.bucket.held[PartitionId(1)].partition
    for at in range(800):
        keys.store(b"%0200d" % at, b"", 0, 0, node.around.now_us())
    for at in range(50):
        node.put(b"%d" % at, bytes(10_000))
    world.pass_ms(100)
    looking = upkeep_of(node)
    looking.look()
    assert node.bucket.memory_bytes > 400_000 and not node.bucket.queued_bytes
    rounds(world, looking, 10)
    assert node.bucket.memory_bytes <= 400_000


def test_values_that_a_start_loaded_make_room_for_the_keys_that_it_loads_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory was reckoned once, and the keys of all the rest came on top of the bucket's share."""
    monkeypatch.setattr(warming, "LOAD_DOCUMENTS", 50)
    world = World()
    node = Node(world, ONE)
    node.lead()
    for at in range(1_500):
        node.put(b"%0100d" % at, bytes(1_000) if at < 400 else b"")
    world.pass_ms(100)
    node.crash()
    most_bytes = most_values = 0

    def loaded() -> None:
        nonlocal most_bytes, most_values
        most_values = max(most_values, sum(map(bool, node.values().values())))
        upkeep_of(node).look()
        most_bytes = max(most_bytes, node.bucket.memory_bytes)

    node.start(loaded, memory_bytes=400_000)
    assert most_values > 100, "there was room for values"
    assert most_bytes <= 400_000
    assert len(node.values()) == 1_500


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


def done(front: BucketFront, command: Command) -> Outcome:
    outcome = carry_out(front, NUMBER, command)
    assert isinstance(outcome, Outcome)
    return outcome


# -- Values on disk -------------------------------------------------------------------------------


def test_a_value_that_left_memory_is_read_and_comes_back() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    front = front_of(node)
    node.put(b"k", b"v")
    world.pass_ms(100)
    node.partition.evict(1 << 30)
    assert node.values() == {b"k": None}
    done(front, Command(Verb.APPEND, b"k", b" more"))
    assert node.values() == {b"k": b"v more"}


def test_a_value_that_cannot_be_read_is_a_temporary_failure() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    front = front_of(node)
    node.put(b"k", b"v")
    world.pass_ms(100)
    node.partition.evict(1 << 30)
    node.disk.rot(BUCKET, NUMBER, b"k")
    assert done(front, Command(Verb.GET, b"k")) == TEMPORARY_FAILURE


# -- Starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bite_bytes", [1, 25_000, 1 << 30])
def test_a_start_loads_keys_of_all_and_values_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch, bite_bytes: int
) -> None:
    monkeypatch.setattr(warming, "LOAD_BYTES", bite_bytes)
    world = World()
    node = Node(world, ONE)
    node.lead()
    for at in range(300):
        node.put(b"%d" % at, bytes(1_000))
    node.partition.delete(b"7", node.around.now_us())
    world.pass_ms(100)
    node.crash()
    node.start(memory_bytes=100_000)
    values = node.values()
    assert len(values) == 299
    loaded = sum(value is not None for value in values.values())
    assert 50 < loaded < 150 or bite_bytes == 1 << 30
    assert node.partition.high == 301


def test_a_partition_that_is_damaged_on_disk_is_isolated_and_made_anew_by_order() -> None:
    world = World()
    node = Node(world, ONE)
    node.lead()
    for at in range(20):
        node.put(b"%d" % at, b"v")
    world.pass_ms(100)
    node.disk.rot(BUCKET, NUMBER, b"7")
    node.crash()
    node.start()
    assert node.bucket.is_warm
    assert NUMBER not in node.bucket.held
    node.lead(term=2, id=FailoverId(0xBEEF))
    world.pass_ms(100)
    assert node.partition.table == {}
    assert node.store.load(BUCKET, NUMBER, Seq(0), 100, True) == []


# -- Passing on -----------------------------------------------------------------------------------

OK = Outcome(OperationStatus.OK)
SET = Command(Verb.SET, b"k", b"v")
GET = Command(Verb.GET, b"k")


@pytest.mark.parametrize(
    ("command", "answers", "outcome", "times"),
    [
        (SET, [OK], OK, 1),
        (SET, [NOT_MY_PARTITION, OK], OK, 2),
        (SET, [NOT_MY_PARTITION, NOT_MY_PARTITION], TEMPORARY_FAILURE, 2),
        (SET, [NotConnected("away")], TEMPORARY_FAILURE, 1),
        (SET, [ConnectionLost("gone")], AMBIGUOUS, 1),
        (GET, [ConnectionLost("gone")], TEMPORARY_FAILURE, 1),
    ],
    ids=[
        "to the master",
        "to the master of a newer map",
        "nobody is the master",
        "not sent",
        "sent, but not answered",
        "a read does no harm",
    ],
)
def test_a_command_is_passed_on_to_the_master(
    command: Command, answers: list[Outcome | Exception], outcome: Outcome, times: int
) -> None:
    world = World()
    node = Node(world, TWO)
    node.order()
    elsewhere = Elsewhere(*answers)
    reloads: list[None] = []

    async def reload() -> None:
        reloads.append(None)

    front = BucketFront(RECORD, node.store, node.around, elsewhere.ask, lambda _: "", reload)
    assert asyncio.run(front.forward(NUMBER, command)) == outcome
    assert elsewhere.asked == [ONE] * times
    assert len(reloads) == times - 1


def test_a_partition_that_is_being_moved_here_is_a_temporary_failure() -> None:
    """The map says that this node is the master, which does not know yet."""
    world = World()
    node = Node(world, ONE)
    node.order()
    elsewhere = Elsewhere()
    front = BucketFront(RECORD, node.store, node.around, elsewhere.ask, lambda _: "")
    assert asyncio.run(front.forward(NUMBER, SET)) == TEMPORARY_FAILURE
    assert not elsewhere.asked


def test_the_state_of_a_partition_is_told_to_people() -> None:
    world, master, _ = two_nodes()
    master.put(b"k")
    world.pass_ms(100)
    stats = dict(front_of(master).stats("partitions") or ())
    assert stats["state:0"] == PartitionState.ACTIVE.value
    assert stats["high_seq:0"] == stats["persisted_seq:0"] == "1"
