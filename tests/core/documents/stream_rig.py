"""A node with partitions and a disk, and the wire between two of them: no time, no sockets."""

from collections.abc import Sequence

from millrace.core.documents.change_stream import view_of
from millrace.core.documents.consumer import PartitionConsumer
from millrace.core.documents.consumer_effects import Ask, ConsumerEffect, Persist, ReloadMap
from millrace.core.documents.document import Document, FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.messages import AllPartitions, BarrierReached, Noop, Open
from millrace.core.documents.partition import Flush, Partition
from millrace.core.documents.producer import Producer
from millrace.core.documents.replica import ReplicaBacking
from millrace.core.documents.snapshot_walk import MergedView
from millrace.sim.documents.disk import DocumentDisk, SimView
from millrace.store.documents.contract import PartitionBatch

BUCKET = 1
P0 = PartitionId(0)
US = 1_000_000


class Node:
    """Holds partitions as a node does: what is not flushed is lost in a crash."""

    def __init__(self, *numbers: int) -> None:
        self.disk = DocumentDisk()
        self.partitions = {
            PartitionId(number): Partition(PartitionId(number)) for number in numbers or (0,)
        }
        self.views = 0  # That are open.

    def partition(self, number: PartitionId) -> Partition | None:
        return self.partitions.get(number)

    def open_view(self, number: PartitionId, after: Seq) -> MergedView:
        self.views += 1
        opened = view_of(self.partitions[number], after, lambda: self.disk_view(number))
        return CountedView(self, opened)

    def disk_view(self, number: PartitionId) -> SimView:
        return SimView(self.disk.partitions.get((BUCKET, number)))

    def newest(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        stored = self.disk.partitions.get((BUCKET, number))
        table = self.partitions[number].table
        on_disk = {} if stored is None else stored.documents
        found = (table.get(key) or on_disk.get(key) for key in keys)
        return [document for document in found if document is not None]

    def flush(self, number: PartitionId = P0) -> None:
        flush = self.partitions[number].take_flush()
        if flush is not None:
            self.write(flush)
            self.partitions[number].flushed(flush)

    def write(self, flush: Flush) -> None:
        batch = PartitionBatch(
            BUCKET, flush.number, flush.row, tuple(flush.snapshot), flush.removed, (), flush.is_wipe
        )
        assert self.disk.write([batch]) is None

    def crash(self) -> None:
        for number in self.partitions:
            stored = self.disk.partitions.get((BUCKET, number))
            partition = Partition(number)
            if stored is not None:
                live = [document for document in stored.by_seq if not document.is_deleted]
                partition.load(live, stored.row)
            self.partitions[number] = partition

    def contents(self, number: PartitionId = P0) -> dict[bytes, tuple[bytes | None, int]]:
        live = self.partitions[number].table.values()
        return {d.key: (d.value, d.seq) for d in live if not d.is_deleted}

    def on_disk(self, number: PartitionId = P0) -> dict[bytes, tuple[bytes | None, int]]:
        stored = self.disk.partitions.get((BUCKET, number))
        live = stored.documents.values() if stored else ()
        return {d.key: (d.value, d.seq) for d in live if not d.is_deleted}


class CountedView(MergedView):
    """The rig knows whether every view was closed."""

    def __init__(self, node: Node, opened: MergedView) -> None:
        self._node, self._opened = node, opened
        self.last, self.pinned_bytes = opened.last, opened.pinned_bytes
        self.is_from_disk = opened.is_from_disk

    def read(self, after: Seq, bytes_max: int) -> list[Document]:
        return self._opened.read(after, bytes_max)

    def close(self) -> None:
        self._node.views -= 1
        self._opened.close()


def master(*numbers: int, id: int = 0xCAFE) -> Node:
    node = Node(*numbers)
    for partition in node.partitions.values():
        partition.promote(1, FailoverId(id), is_takeover=False)
    return node


def replica(*numbers: int) -> Node:
    node = Node(*numbers)
    for partition in node.partitions.values():
        partition.set_state(PartitionState.REPLICA, 1)
    return node


def put(node: Node, key: str, value: str = "", number: PartitionId = P0) -> Document:
    return node.partitions[number].store(key.encode(), value.encode(), 0, 0, US)


def delete(node: Node, key: str, number: PartitionId = P0) -> Document | None:
    return node.partitions[number].delete(key.encode(), US)


def opened(node: Node, name: str = "test:1", now_ms: int = 0) -> Producer:
    """A producer that is told of changes."""
    producer = Producer(node, now_ms)
    producer.handle(Open(name), now_ms)
    for number, partition in node.partitions.items():
        partition.on_change.append(lambda number=number: producer.changed(number))  # type: ignore[misc]
    return producer


class Link:
    """A replica's consumer, and the producer that it is connected to."""

    def __init__(self, follower: Node, leader: Node, now_ms: int = 0) -> None:
        self.follower, self.leader = follower, leader
        self.now_ms = now_ms
        backing = ReplicaBacking(follower.partitions[P0], follower)
        self.consumer = PartitionConsumer(P0, backing, now_ms)
        self.producer = opened(leader, now_ms=now_ms)
        self.reloads: list[str] = []
        self.steps: list[object] = []  # What was asked and persisted, in order.

    def run(self, effects: Sequence[ConsumerEffect], steps_max: int = 1_000) -> None:
        """Carries out what is asked for, and what follows from it, up to a number of steps."""
        waiting = list(effects)
        while waiting and steps_max > 0:
            steps_max -= 1
            waiting += self.do(waiting.pop(0))

    def do(self, effect: ConsumerEffect) -> Sequence[ConsumerEffect]:
        match effect:
            case Ask(number, request):
                self.steps.append(request)
                answer = self.producer.handle(request, self.now_ms)
                assert answer is not None
                return self.consumer.answered(number, answer, self.now_ms)
            case Persist(number, step):
                self.steps.append(step)
                self.follower.flush()
                return self.consumer.persisted(number, self.now_ms)
            case ReloadMap(detail):
                self.reloads.append(detail)
        return []

    def start(self, steps_max: int = 1_000) -> None:
        self.run(self.consumer.tick(self.consumer.next_timer_ms or self.now_ms), steps_max)

    def stream(self, bytes_max: int = 1 << 30) -> None:
        for push in self.producer.pump(self.now_ms, bytes_max):
            if not isinstance(push, AllPartitions | BarrierReached | Noop):
                self.run(self.consumer.pushed(push, self.now_ms))

    def catch_up(self) -> None:
        self.start()
        while self.producer.wants_to_pump:
            self.stream()
