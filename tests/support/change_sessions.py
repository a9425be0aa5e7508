"""Nodes in memory that stream their changes: a producer behind each connection of a front end."""

import asyncio
from collections.abc import Sequence

from millrace.codec.memcached.binary import Request, Response
from millrace.codec.memcached.pushes import BadMessage, encode_push
from millrace.codec.memcached.streams import decode_message, encode_answer
from millrace.core.documents.change_stream import view_of
from millrace.core.documents.document import Document, PartitionId, Seq
from millrace.core.documents.messages import (
    AllPartitions,
    Answered,
    BarrierReached,
    Noop,
    ProducerPush,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.producer import Producer
from millrace.core.documents.snapshot_walk import MergedView
from millrace.server.documents.backend import StreamOutlet
from tests.support.document_backend import MemoryBackend, MemoryHost

PUMP_BYTES = 256 * 1024


class HostSource:
    """What a producer needs of a node whose documents are all in memory."""

    def __init__(self, host: MemoryHost) -> None:
        self.host = host

    def partition(self, number: PartitionId) -> Partition | None:
        return self.host.copy(number)

    def open_view(self, number: PartitionId, after: Seq) -> MergedView:
        partition = self.host.copy(number)
        assert partition is not None
        return view_of(partition, after, _no_disk)

    def newest(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        partition = self.host.copy(number)
        assert partition is not None
        return [partition.table[key] for key in keys if key in partition.table]


def _no_disk() -> MergedView:
    raise AssertionError("nothing is flushed here")


class ProducerSession:
    """The producer of one connection, pumped by the loop when something changed."""

    def __init__(self, host: MemoryHost, outlet: StreamOutlet) -> None:
        self.outlet = outlet
        self.producer = Producer(HostSource(host), _now_ms())
        self.received: list[object] = []
        self.noops_answered = 0
        self.barriers_reached = 0
        self.is_held = False  # Nothing is pushed meanwhile.
        self._opaques: dict[PartitionId, int] = {}
        self._is_due = False
        self._loop = asyncio.get_running_loop()
        self._watched: list[Partition] = []
        for partition in host.copies():
            self.watch(partition)
        self.is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, partition: Partition) -> None:
        partition.on_change.append(Watcher(self, partition.number))
        self._watched.append(partition)

    def changed(self, number: PartitionId) -> None:
        self.producer.changed(number)
        self._schedule()

    def receive(self, frame: Request | Response) -> None:
        if isinstance(frame, Response):
            self.noops_answered += 1
            self.producer.heard(_now_ms())
            return
        try:
            message = decode_message(frame)
        except BadMessage as error:
            answer = Answered(StreamStatus.INVALID, str(error))
            self.outlet.write(encode_answer(answer, frame.opcode, frame.opaque))
            return
        self.received.append(message)
        said = self.producer.handle(message, _now_ms())
        if isinstance(message, StreamRequest):
            self._opaques[message.partition] = frame.opaque
        if said is not None:
            self.outlet.write(encode_answer(said, frame.opcode, frame.opaque))
        self._schedule()

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._schedule()

    def writable(self) -> None:
        self._schedule()

    def closed(self) -> None:
        self.is_closed = True
        self.producer.close()
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.on_change[:] = [
                watcher
                for watcher in partition.on_change
                if not (isinstance(watcher, Watcher) and watcher.session is self)
            ]

    def _schedule(self) -> None:
        if not self._is_due and not self.is_closed:
            self._is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_due = False
        if self.is_closed or self.is_held or self.outlet.is_congested:
            return
        pushes = self.producer.pump(_now_ms(), PUMP_BYTES)
        is_batched = self.producer.settings.is_batched
        for push in pushes:
            self.barriers_reached += isinstance(push, BarrierReached)
            for frame in encode_push(push, self._opaque_of(push), is_batched=is_batched):
                self.outlet.write(frame)
        if self.producer.wants_to_pump:
            self._schedule()
        self._set_timer()

    def _opaque_of(self, push: ProducerPush) -> int:
        if isinstance(push, AllPartitions | BarrierReached | Noop):
            return 0
        return self._opaques[push.partition]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        timer_ms = self.producer.next_timer_ms
        if timer_ms is not None:
            delay_ms = max(1, timer_ms - _now_ms())
            self._timer = self._loop.call_later(delay_ms / 1000, self._schedule)


class Watcher:
    def __init__(self, session: ProducerSession, number: PartitionId) -> None:
        self.session = session
        self.number = number

    def __call__(self) -> None:
        self.session.changed(self.number)


class StreamingBackend(MemoryBackend):
    """Its change streams are real."""

    def __init__(self, *hosts: MemoryHost) -> None:
        super().__init__(*hosts)
        self.producers: list[ProducerSession] = []

    def open_stream(self, bucket: str, outlet: StreamOutlet) -> ProducerSession:  # type: ignore[override]
        host = self.bucket(bucket)
        assert host is not None
        session = ProducerSession(host, outlet)
        self.producers.append(session)
        return session

    def take(self, host: MemoryHost, partition: Partition) -> None:
        """Another copy in the place of the one that is there."""
        host._partitions[partition.number] = partition
        for session in self.producers:
            if not session.is_closed:
                session.watch(partition)
                session.changed(partition.number)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
