"""A flush is said to be whole if each partition was emptied by its master, and not otherwise."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from msgspec.structs import replace

from millrace.codec.memcached.multi import MultiSet, decode_multi_stored, encode_multi_set
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import FailoverId, PartitionId, PartitionState
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.messages import Message
from millrace.core.messages.documents import (
    BucketEmptied,
    DescribeBuckets,
    EmptyBucket,
    PartitionOrder,
)
from millrace.errors import NotConnected
from millrace.server.documents import flushing
from millrace.server.documents.flushing import DelayedFlushes, empty, flush, flush_everywhere
from millrace.server.partitions.front import BucketFront
from millrace.types import NO_NODE, NodeId
from tests.support.clusters import soon
from tests.support.document_backend import (
    PARTITIONS,
    MemoryBackend,
    MemoryHost,
    ServedDocuments,
    keys_of,
)
from tests.support.memcached_wire import WireClient
from tests.support.partition_nodes import (
    BUCKET,
    CAFE,
    NAME,
    NUMBER,
    ONE,
    THREE,
    TWO,
    Node,
    World,
    two_nodes,
)

BEEF = FailoverId(0xBEEF)
LED_BY_ONE, LED_BY_TWO = Seat(1, CAFE, ONE, (TWO,)), Seat(2, CAFE, TWO)
TAKEN_OVER = PartitionOrder(NUMBER, PartitionState.ACTIVE, 2, CAFE, is_takeover=True)
DEPOSED = PartitionOrder(NUMBER, PartitionState.DEAD, 2, CAFE)


def record(*seats: Seat) -> BucketRecord:
    return BucketRecord(BUCKET, NAME, BucketAttributes(len(seats), 1), seats)


class Cluster:
    """Nodes of a bucket, as one of them asks the others.  What is to happen with the next attempt
    happens when the map is read."""

    def __init__(self, world: World, *seats: Seat) -> None:
        self._world = world
        self._seats = seats
        self.empties: list[NodeId] = []
        self.before_emptying: Callable[[], None] = lambda: None
        self.next_seats = seats
        self.when_read: Callable[[], None] = lambda: None

    def front(self, node: Node) -> BucketFront:
        front = BucketFront(
            record(*self._seats), node.store, node.around, self._ask, lambda _: "", self._reload
        )
        front.here = node.hosted.buckets.get(BUCKET)
        self._asking = front
        return front

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        found = self._world.nodes[node]
        if not found.is_up:
            raise NotConnected("away")
        if isinstance(message, DescribeBuckets):
            return found.hosted.describe(message)
        assert isinstance(message, EmptyBucket)
        self.empties.append(node)
        self.before_emptying()
        asking = self._asking
        emptied = await empty(self.front(found), message.marks)
        self._asking = asking
        return BucketEmptied(tuple(emptied))

    async def _reload(self) -> None:
        self._asking.record = replace(self._asking.record, seats=self.next_seats)
        self._seats = self.next_seats
        self.when_read()


def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "PATIENCE_S", 0.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "PAUSE_S", 0.001)


def replicated() -> tuple[World, Node, Node]:
    """A document on both."""
    world, master, replica = two_nodes()
    master.put(b"k")
    world.pass_ms(1_000)
    assert replica.values()
    return world, master, replica


def test_a_node_that_holds_nothing_has_all_of_it_flushed() -> None:
    """It was all flushed, and then said to have failed."""
    world, master, _ = replicated()
    cluster = Cluster(world, LED_BY_ONE)
    assert asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))
    assert master.values() == {}


def test_a_partition_without_a_master_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said to be; its documents were back after the promotion."""
    one_attempt(monkeypatch)
    world, master, _ = replicated()
    cluster = Cluster(world, LED_BY_ONE, Seat(2, CAFE, NO_NODE, (TWO,)))
    assert not asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))
    assert master.values() == {}, "the others are, nevertheless"


@pytest.mark.parametrize("asked", [ONE, TWO, THREE], ids=["by the old", "by the new", "by another"])
def test_nor_is_one_that_is_being_handed_over(
    asked: NodeId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master has stopped and the new one has not begun: both said that all was done."""
    one_attempt(monkeypatch)
    world, master, _ = replicated()
    Node(world, THREE)
    master.order(DEPOSED)
    for seat in (LED_BY_ONE, LED_BY_TWO):
        cluster = Cluster(world, seat)
        assert not asyncio.run(flush_everywhere(cluster.front(world.nodes[asked])))


def test_it_is_flushed_when_its_new_master_has_begun(quick: None) -> None:
    world, master, replica = replicated()
    master.order(DEPOSED)
    cluster = Cluster(world, LED_BY_ONE)
    cluster.next_seats = (LED_BY_TWO,)

    def take_over() -> None:
        if replica.partition.state is not PartitionState.ACTIVE:
            replica.order(TAKEN_OVER)
            world.pass_ms(100)

    cluster.when_read = take_over
    assert asyncio.run(flush_everywhere(cluster.front(master)))
    assert replica.values() == {}


def test_a_master_that_begins_while_it_is_asked_may_have_left_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the partition when it says that all was deleted: all that it led when it began."""
    one_attempt(monkeypatch)
    world, master, replica = replicated()
    cluster = Cluster(world, LED_BY_TWO)

    def take_over() -> None:
        master.order(DEPOSED)
        replica.order(TAKEN_OVER)
        world.pass_ms(100)

    cluster.before_emptying = take_over
    assert not asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))


def test_a_node_that_is_away_keeps_a_flush_from_being_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_attempt(monkeypatch)
    world, master, _ = replicated()
    master.crash()
    cluster = Cluster(world, LED_BY_ONE)
    assert not asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))


@pytest.mark.parametrize("successor", [ONE, TWO], ids=["by the same node", "by another"])
def test_what_was_emptied_is_left_alone_by_the_next_attempt(quick: None, successor: NodeId) -> None:
    """A partition got its master later than the others: those were emptied once more."""
    world, master, _ = replicated()
    other = PartitionId(1)
    cluster = Cluster(world, LED_BY_ONE, Seat(1, CAFE, NO_NODE, (successor,)))
    cluster.next_seats = (LED_BY_ONE, Seat(2, CAFE, successor))

    def promote() -> None:
        world.nodes[successor].order(PartitionOrder(other, PartitionState.ACTIVE, 2, CAFE))
        world.pass_ms(100)
        master.put(b"new")

    cluster.when_read = promote
    assert asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))
    assert cluster.empties == [ONE, successor]
    assert set(master.values()) == {b"new"}


def test_the_next_attempt_knows_what_came_after_the_first(quick: None) -> None:
    """A master that stopped half-way is succeeded: what its successor has taken is newer."""
    world, master, replica = replicated()
    cluster = Cluster(world, LED_BY_ONE)
    cluster.next_seats = (LED_BY_TWO,)
    cluster.before_emptying = lambda: None if len(cluster.empties) > 1 else depose()

    def depose() -> None:
        master.order(DEPOSED)

    def succeed() -> None:
        if replica.partition.state is not PartitionState.ACTIVE:
            replica.order(PartitionOrder(NUMBER, PartitionState.ACTIVE, 2, BEEF))
            world.pass_ms(100)
            replica.put(b"new")

    cluster.when_read = succeed
    assert asyncio.run(flush_everywhere(cluster.front(Node(world, THREE))))
    assert cluster.empties == [ONE, TWO]
    assert set(replica.values()) == {b"new"}


def test_a_node_flushes_what_the_map_says_it_leads_or_fails() -> None:
    """Asked by a client that knows the map."""
    world, _, replica = replicated()
    cluster = Cluster(world, LED_BY_TWO)
    assert not asyncio.run(flush(cluster.front(replica)))
    assert asyncio.run(flush(cluster.front(Node(world, THREE)))), "it leads nothing"


# -- For later --------------------------------------------------------------------------------


def later(host: MemoryHost, scenario: Callable[[DelayedFlushes], Awaitable[None]]) -> None:
    async def played() -> None:
        flushes = DelayedFlushes(MemoryBackend(host))
        try:
            async with asyncio.timeout(10):
                await scenario(flushes)
        finally:
            flushes.close()

    asyncio.run(played())


def documents(host: MemoryHost) -> int:
    found = [each.peek(key) for each in host.copies() for key in list(each.table)]
    return len(found) - found.count(None)


def stored() -> MemoryHost:
    host = MemoryHost("default", 1 << 20)
    partition = host.active(PartitionId(0))
    assert partition is not None
    partition.store(b"k", b"v", 0, 0, 1)
    assert documents(host) == 1
    return host


@pytest.mark.parametrize("is_everywhere", [True, False], ids=["everywhere", "here"])
def test_a_delayed_flush_is_tried_until_it_is_whole(quick: None, is_everywhere: bool) -> None:
    """It was told to be done; it was tried once."""
    host = stored()
    host.is_serving = False

    async def scenario(flushes: DelayedFlushes) -> None:
        flushes.order("default", is_everywhere, 0.001)
        await asyncio.sleep(0.02)
        assert documents(host) == 1
        host.is_serving = True
        await asyncio.to_thread(soon, lambda: not documents(host))

    later(host, scenario)


def test_a_delayed_flush_that_is_never_whole_is_given_up_and_said(
    quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flushing, "DELAYED_PATIENCE_S", 0.01)
    host = stored()
    host.is_serving = False

    async def scenario(flushes: DelayedFlushes) -> None:
        flushes.order("default", True, 0.001)
        await asyncio.to_thread(soon, lambda: bool(caplog.records))

    later(host, scenario)
    assert [each.getMessage() for each in caplog.records] == ["document_flush_not_whole"]


# -- Over the wire, on a node that holds nothing ------------------------------------------------


@pytest.fixture
def third() -> Iterator[ServedDocuments]:
    bare = MemoryHost("default", 1 << 20, ())
    bare.is_serving = False
    bare.others = [MemoryHost("default", 1 << 20)]
    with ServedDocuments(MemoryBackend(bare)) as served, WireClient(served.port) as client:
        client.send(b"set k 0 0 1\r\nv\r\n")
        assert client.text_until(b"\r\n") == b"STORED\r\n"
        yield served


def test_a_text_client_may_flush_there(third: ServedDocuments) -> None:
    with WireClient(third.port) as client:
        client.send(b"flush_all\r\nget k\r\n")
        assert client.text_until(b"END\r\n") == b"OK\r\nEND\r\n"


def test_many_documents_may_be_stored_there(third: ServedDocuments) -> None:
    """They were refused, though one at a time they were passed on."""
    keys = [next(keys_of([number])) for number in range(PARTITIONS)]
    none = [0] * PARTITIONS
    many = MultiSet(none, keys, [b"v"] * PARTITIONS, none, none)
    with WireClient(third.port) as client:
        answer = client.ask(Opcode.MULTI_SET, value=encode_multi_set(many))
        assert decode_multi_stored(answer.value).statuses == [Status.SUCCESS] * PARTITIONS
        assert client.ask(Opcode.GET, keys[0]).value == b"v"
