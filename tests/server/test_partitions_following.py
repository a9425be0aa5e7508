"""Replicas that follow their master: over lost lines, silent masters, other masters; and what the
master's sessions make of those that follow."""

import pytest

from millrace.core.documents.document import PartitionId, PartitionState, Seq
from millrace.core.documents.messages import BufferAck, SeqAck
from millrace.core.messages.documents import PartitionOrder
from millrace.server.partitions import following
from millrace.server.partitions.following import DIAL_MS_MAX, SILENT_MS
from tests.support.partition_nodes import (
    BA5E,
    BUCKET,
    CAFE,
    DEAD,
    NUMBER,
    ONE,
    THREE,
    TWO,
    Node,
    World,
    two_nodes,
)

OTHER = PartitionId(NUMBER + 1)


def agree(master: Node, replica: Node) -> bool:
    ours, theirs = master.partition, replica.partition
    is_same = ours.log == theirs.log and ours.high == theirs.complete
    return is_same and master.values() == replica.values() and not theirs.has_undo


def test_a_replica_gets_what_was_there_and_what_comes() -> None:
    world = World()
    master = Node(world, ONE)
    master.lead(TWO)
    master.put(b"before")
    replica = Node(world, TWO)
    replica.follow(ONE)
    world.until(lambda: agree(master, replica))
    master.put(b"after")
    world.until(lambda: agree(master, replica))
    assert replica.values() == {b"before": b"value", b"after": b"value"}


def test_a_replica_tells_its_master_how_far_it_is_on_disk() -> None:
    world, master, replica = two_nodes()
    master.put(b"k")
    world.until(lambda: agree(master, replica))
    world.pass_ms(100)
    (session,) = master.bucket.sessions
    assert session.producer.acks[NUMBER] == SeqAck(NUMBER, CAFE, Seq(1), Seq(1))


def test_a_lost_line_is_made_again() -> None:
    world, master, replica = two_nodes()
    master.put(b"one")
    world.until(lambda: agree(master, replica))
    for line in master.lines:
        line.cut()
    master.put(b"two")
    world.until(lambda: agree(master, replica), within_ms=1_000)
    assert replica.dialled == [ONE, ONE]


def test_a_master_that_is_away_is_dialled_less_and_less_often() -> None:
    world, master, replica = two_nodes()
    world.until(lambda: agree(master, replica))
    master.crash()
    world.pass_ms(60_000)
    assert 60_000 / DIAL_MS_MAX - 5 < len(replica.dialled) < 60_000 / DIAL_MS_MAX + 12
    assert "no connection" in replica.bucket._following.explain(NUMBER)


def test_a_silent_master_is_given_up_and_dialled_again() -> None:
    world, master, replica = two_nodes()
    master.put(b"one")
    world.until(lambda: agree(master, replica))
    master.is_silent = True
    master.put(b"two")
    world.pass_ms(2 * SILENT_MS)
    assert len(replica.dialled) >= 2
    master.is_silent = False
    world.until(lambda: agree(master, replica))


def test_an_idle_line_is_kept_by_keep_alives() -> None:
    world, master, replica = two_nodes()
    world.until(lambda: agree(master, replica))
    world.pass_ms(20 * SILENT_MS)
    assert replica.dialled == [ONE]


def test_a_try_that_failed_is_repeated_soon_not_with_the_next_look() -> None:
    """The master has not heard that it is one: the replica asks again after 50 ms, 100 ms, ..."""
    world = World()
    master, replica = Node(world, ONE), Node(world, TWO)
    master.order(PartitionOrder(NUMBER, PartitionState.DEAD, 1))
    world.pass_ms(10)
    replica.follow(ONE)
    world.pass_ms(120)
    consumer = replica.bucket._following._masters[ONE]._consumers[NUMBER]
    assert consumer.retries >= 2
    master.lead(TWO, term=2)
    world.until(lambda: agree(master, replica), within_ms=500)


def test_a_replica_follows_another_master_when_it_is_told() -> None:
    world, first, replica = two_nodes()
    first.put(b"k")
    world.until(lambda: agree(first, replica))
    second = Node(world, THREE)
    second.follow(ONE)
    world.until(lambda: agree(first, second))
    second.lead(TWO, term=2, id=DEAD)
    replica.follow(THREE, term=2)
    second.put(b"of the second")
    first.put(b"of the first")
    world.until(lambda: agree(second, replica))
    assert b"of the first" not in replica.values()


def test_a_replica_that_has_too_much_rolls_back_and_repairs() -> None:
    """What the new master lacks the old one brings; what was changed since, it takes."""
    world, old, new = two_nodes()
    old.put(b"both")
    world.until(lambda: agree(old, new) and bool(new.on_disk))
    new.crash()
    old.put(b"both", b"lost")
    old.put(b"alone", b"kept")
    world.pass_ms(100)
    old.crash()
    new.start()
    new.lead(ONE, term=2, id=DEAD)
    new.put(b"both", b"newer")
    old.start()
    old.follow(TWO, term=2)
    world.until(lambda: agree(new, old))
    assert new.values() == {b"both": b"newer", b"alone": b"kept"}


def test_what_a_repair_deletes_was_deleted_now() -> None:
    """Tombstones tell when they were made; old ones are purged at once."""
    world, old, new = two_nodes()
    old.put(b"k")
    world.until(lambda: agree(old, new) and bool(new.on_disk))
    new.crash()
    old.partition.delete(b"k", old.around.now_us())
    world.pass_ms(100)
    old.crash()
    new.start()
    new.lead(ONE, term=2, id=DEAD)
    old.start()
    old.follow(TWO, term=2)
    world.until(lambda: agree(new, old))
    world.pass_ms(100)
    tombstone = new.store.get(BUCKET, NUMBER, b"k")
    assert tombstone is not None
    assert tombstone.is_deleted
    assert tombstone.expiry_s == new.around.now_us() // 1_000_000


def test_an_undo_that_a_crash_cut_off_is_finished() -> None:
    world, old, new = two_nodes()
    old.put(b"both")
    world.until(lambda: agree(old, new) and bool(new.on_disk))
    new.crash()
    old.put(b"alone")
    world.pass_ms(100)
    old.crash()
    new.start()
    new.lead(ONE, term=2, id=DEAD)
    old.start()
    old.follow(TWO, term=2)
    world.until(lambda: old.disk.partitions[BUCKET, NUMBER].row.undo is not None)
    old.crash()
    old.start()
    assert old.partition.has_undo
    old.follow(TWO, term=2)
    world.until(lambda: agree(new, old))


def test_a_line_is_closed_when_nothing_of_the_bucket_is_left() -> None:
    """Whoever streams would otherwise hold on to something that never changes again."""
    world, master, replica = two_nodes()
    world.until(lambda: agree(master, replica))
    dropped = PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True)
    master.order(dropped)
    world.pass_ms(100)
    master.lead(TWO, term=3, id=BA5E)
    master.put(b"in another life")
    replica.follow(ONE, term=3)
    world.until(lambda: agree(master, replica))


def test_a_partition_that_is_moved_here_has_a_line_of_its_own() -> None:
    """Its documents would hold up those of all others that come over the same one."""
    world, master, replica = two_nodes()
    master.order(PartitionOrder(OTHER, PartitionState.ACTIVE, 1, CAFE, replicas=(TWO,)))
    replica.order(PartitionOrder(OTHER, PartitionState.PENDING, 1, master=ONE))
    world.until(lambda: replica.dialled == [ONE, ONE])
    master.put(b"k")
    world.until(lambda: agree(master, replica))
    replica.order(PartitionOrder(OTHER, PartitionState.REPLICA, 2, master=ONE))
    world.pass_ms(1_000)
    assert replica.dialled == [ONE, ONE], "as a replica it uses the common line"
    assert len(master.bucket.sessions) == 1, "and its own is closed"


def test_a_line_that_no_partition_needs_is_closed() -> None:
    world, first, replica = two_nodes()
    world.until(lambda: agree(first, replica))
    second = Node(world, THREE)
    second.lead(TWO, term=2, id=DEAD)
    replica.follow(THREE, term=2)
    world.until(lambda: not first.bucket.sessions)
    assert "follows node 3" in replica.bucket._following.explain(NUMBER)


# -- Flow control -------------------------------------------------------------------------------


def test_a_replica_acknowledges_bytes_unless_its_disk_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "QUEUED_BYTES_MAX", 1 << 20)
    world, master, replica = two_nodes()
    world.until(lambda: agree(master, replica))
    replica.disk.capacity_bytes = 0
    told: list[int] = []
    (session,) = master.bucket.sessions
    hear = session.receive

    def listen(message: object) -> None:
        if isinstance(message, BufferAck):
            told.append(message.bytes)
        hear(message)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "receive", listen)
    for at in range(40):
        master.put(b"k%d" % at, bytes(1 << 19))
        world.pass_ms(20)
    assert replica.partition.queue.size_bytes > 16 << 20
    assert len(told) <= 1, "the master is stopped while nothing can be written"
    assert replica.partition.high < master.partition.high
    replica.disk.capacity_bytes = 1 << 30
    world.until(lambda: agree(master, replica))
    assert sum(told) > 16 << 20
