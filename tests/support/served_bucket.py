"""A bucket on two nodes in memory, behind real front ends, and a client of it; all on one loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from operator import attrgetter
from typing import Any

from millrace.client.bucket import Bucket
from millrace.client.bucket_map import MapRead, PartitionMap
from millrace.core.documents.document import NO_SEQ, Document, FailoverId, PartitionId, Seq
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import UnknownBucket
from millrace.server.documents.front_end import DocumentFrontEnd
from millrace.types import NO_NODE, NodeId
from tests.support.change_sessions import StreamingBackend
from tests.support.document_backend import FAILOVER_ID, PARTITIONS, MemoryHost

BUCKET = "default"
TIME_LIMIT_S = 20
LOOK_S = 0.001
LOOKS_MAX = 10_000
NODES = (NodeId(1), NodeId(2))
VALUE_BYTES_MAX = 1 << 20


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIME_LIMIT_S):
            await work

    asyncio.run(bounded())


def with_bucket(work: "Callable[[ServedBucket], Awaitable[None]]") -> None:
    async def whole() -> None:
        async with served_bucket() as served:
            await work(served)

    run(whole())


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(LOOKS_MAX):
        if is_so():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError("it did not come about")


async def end_waits(host: MemoryHost, outcomes: Iterable[WaitOutcome]) -> None:
    """Of durability, one after the other, as they come."""
    for outcome in outcomes:
        await until(lambda: bool(host.waits))
        host.waits.pop()[2].set_result(outcome)


class ServedBucket:
    """`record` is what the repository would say; `reads` counts how often it was read."""

    def __init__(self, backends: dict[NodeId, StreamingBackend]) -> None:
        self.backends = backends
        self.fronts: dict[NodeId, DocumentFrontEnd] = {}
        self.reads = 0
        self.is_deleted = False
        seats = tuple(
            Seat(1, FailoverId(FAILOVER_ID), self.owner(PartitionId(number)))
            for number in range(PARTITIONS)
        )
        attributes = BucketAttributes(PARTITIONS, value_bytes_max=VALUE_BYTES_MAX)
        self.record = BucketRecord(1, BUCKET, attributes, seats)
        self.bucket: Bucket

    def host(self, node: NodeId) -> MemoryHost:
        found = self.backends[node].bucket(BUCKET)
        assert found is not None
        return found

    def owner(self, number: PartitionId) -> NodeId:
        for node in self.backends:
            if self.host(node).active(number) is not None:
                return node
        return NO_NODE

    def partition_of(self, key: bytes) -> Partition:
        number = self.bucket.partition_of(key)
        found = self.host(self.owner(number)).active(number)
        assert found is not None
        return found

    def host_of(self, key: bytes) -> MemoryHost:
        return self.host(self.owner(self.bucket.partition_of(key)))

    def move(self, number: PartitionId, target: NodeId, *, is_told: bool = True) -> None:
        """To another node; `is_told`: the repository knows it."""
        partition = self.host(self.owner(number))._partitions.pop(number)
        self.host(target)._partitions[number] = partition
        if is_told:
            self.tell(number, target)

    def tell(self, number: PartitionId, master: NodeId) -> None:
        """The repository says who the master is."""
        seats = list(self.record.seats)
        before = seats[number]
        seats[number] = Seat(before.term + 1, before.id, master, before.replicas)
        self.replace(seats)

    def replace(self, seats: list[Seat]) -> None:
        self.record = BucketRecord(
            1, BUCKET, self.record.attributes, tuple(seats), self.record.revision + 1
        )

    def fail_over(
        self, number: PartitionId, seq: Seq, id: FailoverId, history: Sequence[Document] = ()
    ) -> Partition:
        """Another copy, that has all up to `seq`, becomes the master on the same node.  `history`:
        all changes so far, if documents were changed more than once."""
        node = self.owner(number)
        host = self.host(node)
        before = host.active(number)
        assert before is not None
        known = history or sorted(before.table.values(), key=attrgetter("seq"))
        newest = {document.key: document for document in known if document.seq <= seq}
        copy = Partition(number)
        copy.finish_undo(before.log.up_to(seq))
        if seq:
            copy.begin_snapshot(NO_SEQ, seq)
            copy.apply(sorted(newest.values(), key=attrgetter("seq")))
            copy.advance(seq)
        copy.promote(2, id, is_takeover=False)
        self.backends[node].take(host, copy)
        return copy

    async def read(self) -> MapRead:
        self.reads += 1
        if self.is_deleted:
            raise UnknownBucket(f"there is no bucket {BUCKET!r}")
        return self.now()

    def now(self) -> MapRead:
        return MapRead(self.record, {node: front.address for node, front in self.fronts.items()})

    async def start(self, node: NodeId) -> None:
        front = DocumentFrontEnd(self.backends[node])
        await front.start("127.0.0.1", 0)
        self.fronts[node] = front

    async def stop(self, node: NodeId) -> None:
        await self.fronts[node].close()


@contextlib.asynccontextmanager
async def served_bucket() -> AsyncIterator[ServedBucket]:
    """The even partitions are on the first node, the odd ones on the second."""
    hosts = [
        MemoryHost(BUCKET, VALUE_BYTES_MAX, range(first, PARTITIONS, len(NODES)))
        for first in range(len(NODES))
    ]
    served = ServedBucket(
        {node: StreamingBackend(host) for node, host in zip(NODES, hosts, strict=True)}
    )
    try:
        for node in NODES:
            await served.start(node)
        async with Bucket(PartitionMap(served.now(), served.read)) as bucket:
            served.bucket = bucket
            yield served
    finally:
        for node in served.fronts:
            await served.stop(node)
