"""Nodes that hold partitions of one bucket, with time, disks and lines of a test's own.

What runs is the nodes' own code (`server/partitions/`) on the simulator's disks.  Lines carry the
messages of change streams as they are, in order, each for a millisecond.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from millrace.core.documents.document import (
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import (
    Answered,
    ConsumerNotice,
    ConsumerRequest,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    StreamStatus,
)
from millrace.core.documents.partition import Partition
from millrace.core.messages import Message
from millrace.core.messages.documents import PartitionOrder, SetPartitions
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.hosting import HostedBuckets
from millrace.server.partitions.sessions import ProducerSession
from millrace.server.partitions.surroundings import Line, Listener
from millrace.server.partitions.warming import warm_up
from millrace.sim.documents.disk import DocumentDisk, SimDocuments
from millrace.types import NodeId

BUCKET = 5
NAME = "default"
NUMBER = PartitionId(0)
CAFE, DEAD, BA5E = FailoverId(0xCAFE), FailoverId(0xDEAD), FailoverId(0xBA5E)
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
EPOCH_US = 1_700_000_000_000_000
STEPS_MAX = 1_000_000

Kind = TypeVar("Kind", bound=Message)


class Alarm:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class World:
    """The clock, and the nodes by number."""

    def __init__(self) -> None:
        self.now_us = 0
        self.nodes: dict[NodeId, Node] = {}
        self._alarms: list[tuple[int, int, Alarm]] = []
        self._order = itertools.count()

    def later(self, delay_us: int, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(call)
        heapq.heappush(self._alarms, (self.now_us + delay_us, next(self._order), alarm))
        return alarm

    def pass_ms(self, ms: int) -> None:
        self._until(self.now_us + ms * 1000)

    def until(self, is_so: Callable[[], bool], within_ms: int = 60_000) -> None:
        end_us = self.now_us + within_ms * 1000
        for _ in range(STEPS_MAX):
            if is_so():
                return
            if not self._alarms or self._alarms[0][0] > end_us:
                break
            self._step()
        assert is_so(), "it did not come about"

    def _until(self, end_us: int) -> None:
        while self._alarms and self._alarms[0][0] <= end_us:
            self._step()
        self.now_us = end_us

    def _step(self) -> None:
        self.now_us, _, alarm = heapq.heappop(self._alarms)
        if alarm.call is not None:
            alarm.call()


class VirtualAround:
    def __init__(self, world: World, node: "Node") -> None:
        self.node = node.id
        self.lease = 1
        self._world = world
        self._node = node
        self._life = node.life  # Timers of an earlier life of the process do not ring.
        self._drawn = itertools.count(1_000 * node.life + 1)

    def now_us(self) -> int:
        return EPOCH_US + self._world.now_us

    def now_ms(self) -> int:
        return self._world.now_us // 1000

    def later(self, delay_ms: int, call: Callable[[], None]) -> Alarm:
        def ring() -> None:
            if self._node.life == self._life and self._node.is_up:
                call()

        return self._world.later(delay_ms * 1000, ring)

    def draw(self) -> int:
        return next(self._drawn)

    def dial(self, node: NodeId, listener: Listener) -> Line:
        self._node.dialled.append(node)
        return VirtualLine(self._world, self._node, node, listener)


class VirtualLine:
    """Both ends of a connection: `Line` to the consumer, `Outlet` to the producer."""

    def __init__(self, world: World, owner: "Node", target: NodeId, listener: Listener) -> None:
        self.is_writable = True
        self._world = world
        self._owner_life = owner.life
        self._owner = owner
        self._target = target
        self._listener: Listener | None = listener
        self._session: ProducerSession | None = None
        self._bucket: BucketPartitions | None = None
        self._ticket = 0
        world.later(1000, self._dialled)

    def _dialled(self) -> None:
        node = self._world.nodes.get(self._target)
        if node is None or not node.is_up:
            self._end("it does not answer")
        elif self._listener is not None:
            node.lines.append(self)
            self._listener.opened()

    def _end(self, why: str) -> None:
        listener, self._listener = self._listener, None
        self.hang_up()
        if listener is not None and self._owner.life == self._owner_life:
            listener.closed(why)

    def hang_up(self) -> None:
        if self._session is not None and self._bucket is not None:
            self._bucket.remove_session(self._session)
            self._session.closed()
            self._session = None

    # -- The consumer's end ---------------------------------------------------------------------

    def ask(self, request: ConsumerRequest, ticket: int) -> None:
        self._world.later(1000, lambda: self._asked(request, ticket))

    def tell(self, notice: ConsumerNotice) -> None:
        self._world.later(1000, lambda: self._told(notice))

    def close(self) -> None:
        """Also the producer's: whoever closes it, the other end hears of it."""
        self._listener = None
        self.hang_up()

    # -- The producer's end ---------------------------------------------------------------------

    def _asked(self, request: ConsumerRequest, ticket: int) -> None:
        node = self._world.nodes[self._target]
        if not node.is_up or self._listener is None:
            return
        self._ticket = ticket
        if isinstance(request, Open) and self._session is None:
            self._bucket = node.hosted.find(request.bucket, request.bucket_id)
            if self._bucket is None:
                self.answer(request, Answered(StreamStatus.NO_BUCKET))
                return
            on_ack = self._bucket.acknowledged
            self._session = ProducerSession(self._bucket, node.around, ProducerEnd(self), on_ack)
            self._bucket.add_session(self._session)
        if self._session is not None:
            self._session.receive(request)

    def _told(self, notice: ConsumerNotice) -> None:
        if self._session is not None and self._world.nodes[self._target].is_up:
            self._session.receive(notice)

    def answer(self, request: ConsumerRequest, answer: ProducerAnswer) -> None:
        ticket = self._ticket
        self._deliver(lambda listener: listener.answered(ticket, answer))

    def push(self, pushes: list[ProducerPush]) -> None:
        for each in pushes:
            self._deliver(lambda listener, each=each: self._pushed(listener, each))  # type: ignore[misc]

    def _pushed(self, listener: Listener, push: ProducerPush) -> None:
        if isinstance(push, Noop) and self._session is not None:
            self._session.heard()
        listener.pushed(push, message_bytes(push))

    def _deliver(self, tell: Callable[[Listener], None]) -> None:
        def arrive() -> None:
            is_silent = self._world.nodes[self._target].is_silent
            is_alive = self._owner.is_up and self._owner.life == self._owner_life
            if self._listener is not None and is_alive and not is_silent:
                tell(self._listener)

        self._world.later(1000, arrive)

    def cut(self) -> None:
        if self._world.nodes[self._target].is_silent:
            self.hang_up()
        else:
            self._world.later(1000, lambda: self._end("it was cut"))


class ProducerEnd:
    """What a session holds: closing it is heard at the other end."""

    def __init__(self, line: VirtualLine) -> None:
        self._line = line

    @property
    def is_writable(self) -> bool:
        return self._line.is_writable

    def answer(self, request: ConsumerRequest, answer: ProducerAnswer) -> None:
        self._line.answer(request, answer)

    def push(self, pushes: list[ProducerPush]) -> None:
        self._line.push(pushes)

    def close(self) -> None:
        self._line.cut()


class Node:
    def __init__(self, world: World, id: NodeId) -> None:
        self.id = id
        self.life = 0
        self.is_up = False
        self.is_silent = False  # What it says does not arrive.
        self.disk = DocumentDisk()
        self.lines: list[VirtualLine] = []
        self.dialled: list[NodeId] = []
        self._world = world
        world.nodes[id] = self
        self.start()

    def start(self, after_bite: Callable[[], None] = lambda: None, **attributes: Any) -> None:
        """Loads what the disk has; `after_bite` is called whenever others have their turn."""
        self.life += 1
        self.is_up = True
        self.around = VirtualAround(self._world, self)
        self.store = SimDocuments(self._world.later, self.disk)
        self.flusher = Flusher(self.store, self.around.later)
        self.hosted = HostedBuckets(self.store, self.flusher, self.around)
        if BUCKET in self.store.buckets():
            chosen = _attributes(attributes)
            loading = warm_up(self.hosted.make(BUCKET, NAME, chosen), self.store)
            _finish(loading, after_bite)
        self.hosted.is_warm = True

    def crash(self) -> None:
        self.is_up = False
        self.store.crash()
        lines, self.lines = self.lines, []
        for line in lines:
            line.cut()

    def stop(self) -> None:
        """In order."""
        done: list[None] = []
        self.bucket.close(lambda: done.append(None))
        self._world.until(lambda: bool(done))
        self.crash()

    @property
    def bucket(self) -> BucketPartitions:
        return self.hosted.buckets[BUCKET]

    @property
    def partition(self) -> Partition:
        return self.bucket.held[NUMBER].partition

    # -- What the keeper says -------------------------------------------------------------------

    def order(
        self, *orders: PartitionOrder, cas: int | None = None, **attributes: Any
    ) -> list[Message]:
        """The list that the answer will be in."""
        known = self.hosted.buckets.get(BUCKET)
        current = 0 if known is None else known.cas
        answers: list[Message] = []
        chosen = _attributes(attributes)
        stated = current if cas is None else cas
        self.hosted.order(SetPartitions(BUCKET, NAME, chosen, stated, orders), answers.append)
        return answers

    def lead(
        self, *replicas: NodeId, term: int = 1, id: FailoverId = CAFE, **attributes: Any
    ) -> None:
        order = PartitionOrder(NUMBER, PartitionState.ACTIVE, term, id, replicas=replicas)
        answers = self.order(order, **attributes)
        self._world.until(lambda: bool(answers))

    def follow(self, master: NodeId, term: int = 1) -> None:
        answers = self.order(PartitionOrder(NUMBER, PartitionState.REPLICA, term, master=master))
        self._world.until(lambda: bool(answers))

    # -- Documents ------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes = b"value", expiry_s: int = 0) -> Document:
        return self.partition.store(key, value, 0, expiry_s, self.around.now_us())

    def values(self) -> dict[bytes, bytes | None]:
        table = self.partition.table
        return {key: document.value for key, document in table.items() if not document.kind}

    @property
    def on_disk(self) -> dict[bytes, Seq]:
        stored = self.disk.partitions.get((BUCKET, NUMBER))
        return {} if stored is None else {k: d.seq for k, d in stored.documents.items()}


def two_nodes() -> tuple[World, Node, Node]:
    """The second follows the first."""
    world = World()
    master, replica = Node(world, ONE), Node(world, TWO)
    master.lead(TWO)
    replica.follow(ONE)
    return world, master, replica


def only(answers: list[Message], kind: type[Kind]) -> Kind:
    (answer,) = answers
    assert isinstance(answer, kind), answer
    return answer


def _attributes(chosen: dict[str, Any]) -> BucketAttributes:
    return BucketAttributes(**{"partitions": 4, "replicas": 1, **chosen})


def _finish(loading: Any, after_bite: Callable[[], None]) -> None:
    """It yields after each bite, for nothing."""
    while True:
        try:
            loading.send(None)
        except StopIteration:
            return
        after_bite()
