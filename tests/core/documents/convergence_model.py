"""A cluster of three nodes and an application, in which everything goes wrong at random.

One partition.  Nodes take turns as its master, lose what is not flushed, keep serving as stale
masters, are rolled back half-way; the application follows anybody, and keeps less than it has
processed.  At the end all follow the last master, and have to hold what it holds.
"""

from collections.abc import Callable, Sequence
from random import Random

from millrace.core.documents.backing import Backing
from millrace.core.documents.consumer import PartitionConsumer
from millrace.core.documents.consumer_effects import (
    Ask,
    ConsumerEffect,
    Deliver,
    FollowerState,
    ForgetAll,
    KeepEntries,
    Persist,
    Undo,
)
from millrace.core.documents.document import ChangeKind, Document, FailoverId, PartitionState
from millrace.core.documents.messages import (
    AllPartitions,
    BarrierReached,
    Noop,
    ProducerPush,
)
from millrace.core.documents.partition import Flush
from millrace.core.documents.producer import Producer
from millrace.core.documents.replica import ReplicaBacking
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.ring_buffer import RingBuffer, RingEntry
from tests.core.documents.stream_rig import P0, US, Node, opened

KEYS = [b"a", b"b", b"c", b"d", b"e"]
RING_ENTRIES = 12
Contents = dict[bytes, bytes | None]


class Follower:
    """A consumer, and the connection that it has at the moment."""

    def __init__(self) -> None:
        self.consumer: PartitionConsumer | None = None
        self.producer: Producer | None = None
        self.leader: Node | None = None
        self.waiting: list[ConsumerEffect] = []
        self.arriving: list[ProducerPush] = []

    def backing(self) -> Backing:
        raise NotImplementedError

    def carry_out(self, effect: ConsumerEffect) -> None:
        """What the consumer leaves to its host, `Persist` included."""
        raise NotImplementedError

    def connect(self, leader: Node, now_ms: int) -> None:
        self.disconnect(now_ms)
        if self.consumer is None:
            self.consumer = PartitionConsumer(P0, self.backing(), now_ms)
        self.leader = leader
        self.producer = opened(leader, now_ms=now_ms)

    def disconnect(self, now_ms: int) -> None:
        if self.producer is not None:
            self.producer.close()
        if self.consumer is not None:
            self.consumer.failed(now_ms, "the connection broke")
        self.producer = self.leader = None
        self.waiting = [effect for effect in self.waiting if not isinstance(effect, Ask)]
        self.arriving = []

    def leave(self, now_ms: int) -> None:
        """It follows nobody any more."""
        self.disconnect(now_ms)
        self.consumer, self.waiting = None, []

    def step(self, now_ms: int) -> None:
        """One thing that happens next."""
        if self.consumer is None:
            return
        if self.waiting:
            self._do(self.waiting.pop(0), now_ms)
        elif self.producer is None:
            return
        elif self.arriving:
            self.waiting += self.consumer.pushed(self.arriving.pop(0), now_ms)
        else:
            self.waiting += self.consumer.tick(now_ms)

    def pump(self, bytes_max: int, now_ms: int) -> None:
        if self.producer is not None:
            pushes = self.producer.pump(now_ms, bytes_max)
            unheard = AllPartitions | BarrierReached | Noop
            self.arriving += [push for push in pushes if not isinstance(push, unheard)]

    def _do(self, effect: ConsumerEffect, now_ms: int) -> None:
        assert self.consumer is not None
        if isinstance(effect, Ask):
            assert self.producer is not None
            answer = self.producer.handle(effect.request, now_ms)
            assert answer is not None
            self.waiting += self.consumer.answered(effect.number, answer, now_ms)
            return
        self.carry_out(effect)
        if isinstance(effect, Persist):
            self.waiting += self.consumer.persisted(effect.number, now_ms)


class ReplicaNode(Follower, Node):
    def __init__(self, name: str) -> None:
        Follower.__init__(self)
        Node.__init__(self)
        self.name = name
        self.flushing: Flush | None = None
        self.is_written = False

    def backing(self) -> Backing:
        return ReplicaBacking(self.partitions[P0], self)

    def carry_out(self, effect: ConsumerEffect) -> None:
        if isinstance(effect, Persist):
            self.finish_flush()
            self.flush()

    def flush_a_bit(self) -> None:
        """Take, write, done: what happens between them is anybody's guess."""
        if self.flushing is None:
            self.flushing, self.is_written = self.partitions[P0].take_flush(), False
        elif not self.is_written:
            self.write(self.flushing)
            self.is_written = True
        else:
            self.finish_flush()

    def finish_flush(self) -> None:
        if self.flushing is not None:
            if not self.is_written:
                self.write(self.flushing)
            self.partitions[P0].flushed(self.flushing)
            self.flushing = None

    def lose_memory(self, now_ms: int) -> None:
        self.leave(now_ms)
        self.flushing = None
        self.crash()

    @property
    def state(self) -> PartitionState:
        return self.partitions[P0].state

    def live(self) -> Contents:
        table = self.partitions[P0].table.values()
        return {held.key: held.value for held in table if not held.is_deleted}

    def purge(self, count: int) -> None:
        stored = self.disk.partitions.get((1, P0))
        gone = [held for held in (stored.by_seq if stored else ()) if held.is_deleted]
        self.partitions[P0].purge(gone[:count])


class Application(Follower):
    """Its own store is durable at once, where it stands is kept now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: Contents = {}
        self.kept_state = FollowerState()
        self.kept_entries: tuple[RingEntry, ...] = ()
        self.kept_floor = RingBuffer().floor
        self.reached = FollowerState()

    def backing(self) -> Backing:
        ring = RingBuffer(RING_ENTRIES, self.kept_floor)
        ring.add_many(self.kept_entries)
        self.ring_backing = RingBacking(ring, self.kept_state)
        return self.ring_backing

    def carry_out(self, effect: ConsumerEffect) -> None:
        match effect:
            case KeepEntries(entries):
                ring = RingBuffer(RING_ENTRIES, self.kept_floor)
                ring.add_many(self.kept_entries + entries)
                self._keep_ring(ring)
            case Deliver(documents, after):
                self._process(documents)
                self.reached = after
            case Undo(documents, missing):
                self._process(documents)
                for key in missing:
                    self.contents.pop(key, None)
            case ForgetAll():
                self.contents.clear()
            case Persist():
                self.kept_state = self.reached = self.ring_backing.state()
                self._keep_ring(self.ring_backing.ring)

    def _keep_ring(self, ring: RingBuffer) -> None:
        self.kept_entries, self.kept_floor = ring.entries, ring.floor

    def _process(self, documents: Sequence[Document]) -> None:
        for document in documents:
            if document.is_deleted:
                self.contents.pop(document.key, None)
            else:
                self.contents[document.key] = document.value

    def checkpoint(self) -> None:
        if self.ring_backing.undo is None and self.kept_state.undo is None:
            self.kept_state = self.reached

    def lose_memory(self, now_ms: int) -> None:
        self.leave(now_ms)
        self.reached = self.kept_state


class Cluster:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes = [ReplicaNode(name) for name in "ABC"]
        self.application = Application()
        self.term, self.ids, self.values = 1, 0, 0
        self.now_ms = 0
        for node in self.nodes[1:]:
            node.partitions[P0].set_state(PartitionState.REPLICA, 1)
        self.master = self.nodes[0]
        self.promote(self.nodes[0])
        for _ in range(self.random.randint(0, 8)):
            self.write(self.master)
        self.settle()

    # -- What may happen ----------------------------------------------------------------------

    def promote(self, node: ReplicaNode) -> None:
        """The keeper makes it the master, with a new id."""
        node.leave(self.now_ms)
        self.term += 1
        self.ids += 1
        node.partitions[P0].promote(self.term, FailoverId(self.ids), is_takeover=False)
        self.master = node

    def fail_over(self) -> None:
        """The old master may go on for a while: it is stale then."""
        able = [node for node in self.nodes if self._is_able(node)]
        if able:
            old = self.master
            self.promote(self.random.choice(able))
            if self.random.random() < 0.5:
                self.depose(old)

    def _is_able(self, node: ReplicaNode) -> bool:
        return node.state is PartitionState.REPLICA and not node.partitions[P0].has_undo

    def take_over(self) -> None:
        """A clean one: somebody has everything."""
        master = self.master.partitions[P0]
        for node in self.nodes:
            held = node.partitions[P0]
            is_level = held.is_whole and held.complete == master.high and held.log == master.log
            if node is not self.master and self._is_able(node) and is_level:
                old, self.term = self.master, self.term + 1
                old.partitions[P0].set_state(PartitionState.DEAD, self.term)
                node.leave(self.now_ms)
                held.promote(self.term, held.log.newest, is_takeover=True)
                self.master = node
                self.depose(old)
                return

    def depose(self, node: ReplicaNode) -> None:
        if node is not self.master and node.state is not PartitionState.REPLICA:
            node.partitions[P0].set_state(PartitionState.REPLICA, self.term)

    def crash(self, node: ReplicaNode) -> None:
        """It comes back, and is told what it is: a master goes on under a new id (U3)."""
        was_master = node is self.master
        for other in [*self.nodes, self.application]:
            if other.leader is node:
                other.disconnect(self.now_ms)
        node.lose_memory(self.now_ms)
        node.partitions[P0].set_state(PartitionState.REPLICA, self.term)
        if was_master:
            able = [other for other in self.nodes if self._is_able(other)]
            self.promote(self.random.choice([node] if self._is_able(node) else able))

    def write(self, node: ReplicaNode) -> None:
        key = self.random.choice(KEYS)
        partition = node.partitions[P0]
        if self.random.random() < 0.25:
            partition.delete(key, US, ChangeKind.DELETION)
        else:
            self.values += 1
            partition.store(key, b"%d" % self.values, 0, 0, US)

    # -- A run --------------------------------------------------------------------------------

    def happen(self) -> None:
        """One thing."""
        self.now_ms += 50_000  # Whoever waits to try again does.
        node = self.random.choice(self.nodes)
        followers: list[ReplicaNode | Application] = [*self.nodes, self.application]
        follower = self.random.choice(followers)
        acts = self.acts(node, follower)
        shares = [share for share, _ in acts]
        _, act = self.random.choices(acts, shares)[0]
        act()

    def acts(
        self, node: ReplicaNode, follower: "ReplicaNode | Application"
    ) -> list[tuple[int, Callable[[], None]]]:
        writer = node if node.state is PartitionState.ACTIVE else self.master
        return [
            (30, lambda: self.follow(follower)),
            (20, lambda: self.write(writer)),
            (15, lambda: node.flush_a_bit()),
            (3, lambda: follower.disconnect(self.now_ms)),
            (2, lambda: self.fail_over()),
            (1, lambda: self.take_over()),
            (2, lambda: self.crash(node)),
            (1, lambda: self.depose(node)),
            (1, lambda: self.application.lose_memory(self.now_ms)),
            (1, lambda: node.purge(self.random.randint(1, 2))),
            (4, lambda: self.keep_place()),
        ]

    def follow(self, follower: "ReplicaNode | Application") -> None:
        """Some steps of the handshake, of an undo or of a stream."""
        if follower.producer is None:
            self.connect(follower)
        follower.pump(self.random.choice([1, 100, 1_000]), self.now_ms)
        for _ in range(self.random.choice([1, 2, 4, 10])):
            follower.step(self.now_ms)

    def keep_place(self) -> None:
        if self.application.consumer is not None:
            self.application.checkpoint()

    def connect(self, follower: "ReplicaNode | Application") -> None:
        """To the master, or to one that believes to be; the application to anybody."""
        if isinstance(follower, ReplicaNode) and follower.state is not PartitionState.REPLICA:
            return
        able = [node for node in self.nodes if node is not follower]
        if isinstance(follower, ReplicaNode):
            able = [node for node in able if node.state is PartitionState.ACTIVE]
        if able:
            follower.connect(self.random.choice(able), self.now_ms)

    def settle(self) -> None:
        """Everybody follows the master until there is nothing left."""
        for node in self.nodes:
            self.depose(node)
        followers: list[Follower] = [node for node in self.nodes if node is not self.master]
        for follower in [*followers, self.application]:
            follower.connect(self.master, self.now_ms)
        for _ in range(5):  # Repairs are changes too, so it takes some rounds.
            for follower in [*followers, self.application]:
                self._catch_up(follower)
        for node in self.nodes:
            node.finish_flush()
            node.flush()

    def _catch_up(self, follower: Follower) -> None:
        for _ in range(60):
            self.now_ms += 50_000
            follower.pump(1 << 20, self.now_ms)
            while follower.waiting or follower.arriving:
                follower.step(self.now_ms)
            follower.step(self.now_ms)
            if not follower.waiting and not (follower.producer and follower.producer.wants_to_pump):
                break

    def differences(self) -> list[str]:
        """What is not as the master has it."""
        wanted = self.master.live()
        found = [f"{n.name}: {n.live()}" for n in self.nodes if n.live() != wanted]
        on_disk = [{k: value for k, (value, _) in n.on_disk().items()} for n in self.nodes]
        found += [f"disk: {held}" for held in on_disk if held != wanted]
        if self.application.contents != wanted:
            found.append(f"application: {self.application.contents}")
        return [f"{difference} instead of {wanted}" for difference in found]


def play(seed: int, events: int = 200) -> list[str]:
    cluster = Cluster(seed)
    for _ in range(events):
        cluster.happen()
    cluster.settle()
    return cluster.differences()
