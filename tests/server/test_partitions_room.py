"""What of a bucket is in memory: values leave it, are read from disk, and a start loads what there
is room for."""

import pytest

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.operations import TEMPORARY_FAILURE, Command, Verb
from millrace.core.messages.documents import PartitionOrder
from millrace.server.partitions import warming
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.upkeep import Upkeep
from tests.support.partition_fronts import done, front_of, rounds, upkeep_of
from tests.support.partition_nodes import BUCKET, CAFE, NUMBER, ONE, Node, World

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
