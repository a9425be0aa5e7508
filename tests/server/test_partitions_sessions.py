"""The producer's session of one connection: when it pushes, and when it has had enough."""

from millrace.core.documents.document import Seq
from millrace.core.documents.messages import (
    BufferAck,
    Changes,
    ConsumerNotice,
    ConsumerRequest,
    Control,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    StreamRequest,
)
from millrace.server.partitions.sessions import TURN_BYTES, ProducerSession
from tests.support.partition_nodes import CAFE, NUMBER, ONE, Node, World


class Consumer:
    """Takes what it is given, as the outlet; says what the test says."""

    def __init__(self, node: Node) -> None:
        self.is_writable = True
        self.is_closed = False
        self.pushes: list[ProducerPush] = []
        self.turns = 0
        self.session = ProducerSession(node.bucket, node.around, self, node.bucket.acknowledged)
        node.bucket.add_session(self.session)

    def answer(self, request: ConsumerRequest, answer: ProducerAnswer) -> None: ...

    def push(self, pushes: list[ProducerPush]) -> None:
        assert not self.is_closed, "nothing is said to who is gone"
        self.pushes += pushes
        self.turns += 1

    def close(self) -> None:
        """The connection itself may take its time."""
        self.is_closed = True

    def say(self, *messages: ConsumerRequest | ConsumerNotice) -> None:
        for message in messages:
            self.session.receive(message)

    @property
    def keys(self) -> list[bytes]:
        changes = [push for push in self.pushes if isinstance(push, Changes)]
        return [document.key for each in changes for document in each.documents]


def streaming(*controls: Control) -> tuple[World, Node, Consumer]:
    world = World()
    node = Node(world, ONE)
    node.lead()
    consumer = Consumer(node)
    consumer.say(Open("test:1"), *controls, StreamRequest(NUMBER, Seq(0), CAFE))
    world.pass_ms(10)
    return world, node, consumer


def test_what_changes_is_pushed_after_the_event_in_one_turn() -> None:
    world, node, consumer = streaming()
    turns = consumer.turns
    for at in range(10):
        node.put(b"%d" % at)
    assert not consumer.keys
    world.pass_ms(1)
    assert len(consumer.keys) == 10
    assert consumer.turns == turns + 1


def test_much_is_pushed_in_turns() -> None:
    world, node, consumer = streaming()
    turns = consumer.turns
    for at in range(40):
        node.put(b"%d" % at, bytes(TURN_BYTES // 8))
    world.pass_ms(1)
    assert len(consumer.keys) == 40
    assert consumer.turns >= turns + 5


def test_nothing_is_pushed_into_a_full_connection() -> None:
    world, node, consumer = streaming()
    consumer.is_writable = False
    node.put(b"k")
    world.pass_ms(1_000)
    assert not consumer.keys
    consumer.is_writable = True
    consumer.session.writable()
    world.pass_ms(1)
    assert consumer.keys == [b"k"]


def test_who_acknowledges_nothing_is_sent_a_buffer_and_goes_on_when_it_does() -> None:
    world, node, consumer = streaming(Control("connection_buffer_size", "10000"))
    for at in range(30):
        node.put(b"%02d" % at, bytes(3_000))
        world.pass_ms(10)
    sent = len(consumer.keys)
    assert 0 < sent < 8
    consumer.say(BufferAck(1 << 20))
    world.pass_ms(1)
    assert len(consumer.keys) > sent


def test_no_view_is_held_for_long_for_who_takes_nothing() -> None:
    world, node, consumer = streaming(Control("connection_buffer_size", "10000"))
    for at in range(30):
        node.put(b"%02d" % at, bytes(3_000))
    world.pass_ms(10)
    stream = consumer.session.producer._cycle.streams[NUMBER]
    assert stream.view is not None
    world.pass_ms(60_000)
    assert stream.view is None


def test_a_silent_peer_is_left_and_nothing_is_done_for_it_any_more() -> None:
    """Its connection may linger."""
    keep_alive = (Control("enable_noop", "true"), Control("set_noop_interval", "1"))
    world, node, consumer = streaming(*keep_alive)
    world.pass_ms(5_000)
    assert Noop() in consumer.pushes
    assert consumer.is_closed
    assert not consumer.session.producer._cycle.streams
    node.put(b"k")
    world.pass_ms(5_000)
    assert not consumer.keys


def test_a_peer_that_answers_keep_alives_stays() -> None:
    keep_alive = (Control("enable_noop", "true"), Control("set_noop_interval", "1"))
    world, node, consumer = streaming(*keep_alive)
    for _ in range(20):
        world.pass_ms(500)
        consumer.session.heard()
    assert not consumer.is_closed
    node.put(b"k")
    world.pass_ms(1)
    assert consumer.keys == [b"k"]


def test_after_the_end_of_the_connection_nothing_is_said() -> None:
    world, node, consumer = streaming()
    consumer.session.closed()
    consumer.is_closed = True
    node.put(b"k")
    world.pass_ms(5_000)
    assert not consumer.keys
