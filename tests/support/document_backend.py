"""Nodes of a bucket in memory, behind real front ends: what `server/documents` asks of a node.

Two of them may share a bucket: each is the master of its own partitions, and passes on what is the
other's.  Waits end when the test says so, or when `is_everything_safe`.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from millrace.codec.memcached.binary import Request, Response
from millrace.core.documents.document import (
    NO_SEQ,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
)
from millrace.core.documents.map import partition_of
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    TEMPORARY_FAILURE,
    Command,
    Operations,
    Outcome,
    ValueUnavailable,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.server.documents.backend import Stat, StreamOutlet
from millrace.server.documents.carrying_out import carry_out
from millrace.server.documents.flushing import Marks, flush
from millrace.server.documents.front_end import DocumentFrontEnd

PARTITIONS = 8
START_TIMEOUT_S = 10.0
FAILOVER_ID = FailoverId(0xCAFE)

Answer = TypeVar("Answer")


class MemoryHost:
    """A bucket; `mine` are the partitions that this node is the master of, None: all."""

    def __init__(self, name: str, value_bytes_max: int, mine: Iterable[int] | None = None) -> None:
        self.name = name
        self.operations = Operations(value_bytes_max, self._load, self._fetch)
        self.is_serving = True
        self.is_congested = False
        self.is_everything_safe = True
        self.wait_outcome = WaitOutcome.OK
        self.conditions: list[Durability] = []  # Of the waits that ended at once.
        self.timeouts_ms: list[int] = []  # Of all waits.
        self.now_offset_us = 0  # Tests let time pass with it.
        self.waits: list[tuple[MutationToken, Durability, asyncio.Future[WaitOutcome]]] = []
        self.others: list[MemoryHost] = []
        self.disk: dict[tuple[int, bytes], Document] = {}
        self._partitions: dict[PartitionId, Partition] = {}
        for number in map(PartitionId, range(PARTITIONS) if mine is None else mine):
            partition = Partition(number)
            partition.promote(1, FAILOVER_ID, is_takeover=False)
            self._partitions[number] = partition

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.now_offset_us

    def is_damaged(self, number: PartitionId) -> bool:
        return False

    def partition_of(self, key: bytes) -> PartitionId:
        return partition_of(key, PARTITIONS)

    def active(self, number: PartitionId) -> Partition | None:
        partition = self._partitions.get(number)
        is_master = partition is not None and partition.state is PartitionState.ACTIVE
        return partition if is_master else None

    def copies(self) -> Iterable[Partition]:
        return self._partitions.values()

    def copy(self, number: PartitionId) -> Partition | None:
        return self._partitions.get(number)

    async def forward(self, number: PartitionId, command: Command) -> Outcome:
        for other in self.others:
            if other.active(number) is not None:
                await asyncio.sleep(0)  # It takes at least a turn of the loop to hear from there.
                outcome = carry_out(other, number, command)
                return outcome if isinstance(outcome, Outcome) else await outcome
        return TEMPORARY_FAILURE

    @property
    def numbers(self) -> Collection[PartitionId]:
        return [PartitionId(number) for number in range(PARTITIONS)]

    def named_here(self) -> set[PartitionId]:
        return set(self._partitions)

    async def reload_map(self) -> None:
        """It never changes."""

    async def flush_elsewhere(
        self, numbers: Collection[PartitionId], marks: Marks
    ) -> set[PartitionId]:
        flushed = [other for other in self.others if await flush(other)]
        return {number for other in flushed for number in other.named_here()}

    def wait(
        self, number: PartitionId, token: MutationToken, condition: Durability, timeout_ms: int
    ) -> asyncio.Future[WaitOutcome]:
        future: asyncio.Future[WaitOutcome] = asyncio.get_running_loop().create_future()
        partition = self._partitions[number]
        self.timeouts_ms.append(timeout_ms)
        if token.id != partition.log.newest:
            future.set_result(WaitOutcome.WRONG_ID)
        elif self.is_everything_safe:
            self.conditions.append(condition)
            future.set_result(self.wait_outcome)
        else:
            self.waits.append((token, condition, future))
        return future

    def map_json(self) -> bytes:
        return b'{"partitions":%d}' % PARTITIONS

    def stats(self, group: str) -> Iterable[Stat] | None:
        if group == "":
            return [("curr_items", str(sum(len(p.table) for p in self.copies())))]
        if group == "partitions":
            return [(f"high_seq:{p.number}", str(p.high)) for p in self.copies()]
        return None

    def evict_everything(self) -> None:
        """Every value is on disk alone afterwards."""
        for partition in self._partitions.values():
            taken = partition.take_flush()
            if taken is not None:
                for document in taken.snapshot.after(NO_SEQ):
                    self.disk[partition.number, document.key] = document
                partition.flushed(taken)
            partition.evict(1 << 40)

    def _load(self, document: Document) -> Document:
        found = self.disk.get((self.partition_of(document.key), document.key))
        if found is None or found.seq != document.seq:
            raise ValueUnavailable(document.key)
        return found

    def _fetch(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        return [self.disk[number, key] for key in keys if (number, key) in self.disk]


class EchoSession:
    """A change stream that says what it was told."""

    def __init__(self, outlet: StreamOutlet) -> None:
        self.outlet = outlet
        self.frames: list[Request | Response] = []
        self.is_closed = False

    def receive(self, frame: Request | Response) -> None:
        self.frames.append(frame)
        self.outlet.write(b"got %02x " % frame.opcode)

    def writable(self) -> None:
        self.frames.clear()

    def closed(self) -> None:
        self.is_closed = True


class MemoryBackend:
    version = "0.1.0"

    def __init__(self, *hosts: MemoryHost) -> None:
        self._hosts = {host.name: host for host in hosts}
        self.sessions: list[EchoSession] = []

    def bucket(self, name: str) -> MemoryHost | None:
        return self._hosts.get(name)

    def drop(self, name: str) -> None:
        del self._hosts[name]

    def open_stream(self, bucket: str, outlet: StreamOutlet) -> EchoSession:
        session = EchoSession(outlet)
        self.sessions.append(session)
        return session


def default_backend(value_bytes_max: int = 1 << 20) -> MemoryBackend:
    return MemoryBackend(MemoryHost("default", value_bytes_max), MemoryHost("other", 100))


def two_backends() -> tuple[MemoryBackend, MemoryBackend]:
    """One bucket on two nodes: the even partitions here, the odd ones there."""
    even = MemoryHost("default", 1 << 20, range(0, PARTITIONS, 2))
    odd = MemoryHost("default", 1 << 20, range(1, PARTITIONS, 2))
    even.others, odd.others = [odd], [even]
    return MemoryBackend(even), MemoryBackend(odd)


def keys_of(numbers: Sequence[int]) -> Iterator[bytes]:
    """Keys whose partitions are among these."""
    for at in range(1 << 20):
        key = b"key-%d" % at
        if partition_of(key, PARTITIONS) in numbers:
            yield key


class ServedDocuments:
    """A front end in a thread of its own, for clients that block."""

    def __init__(self, backend: MemoryBackend, connections_max: int = 100) -> None:
        self.backend = backend
        self._connections_max = connections_max
        self.front_end: DocumentFrontEnd
        self.host = "127.0.0.1"
        self.port = 0
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self.front_end = DocumentFrontEnd(self.backend, self._connections_max)
        await self.front_end.start(self.host, 0)
        self.port = int(self.front_end.address.rpartition(":")[2])
        self._is_started.set()
        await self._stopping.wait()
        await self.front_end.close()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """On the front end's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    def call(self, function: Callable[[], Answer]) -> Answer:
        async def called() -> Answer:
            return function()

        return self.run(called())

    def default(self) -> MemoryHost:
        host = self.backend.bucket("default")
        assert host is not None
        return host

    def __enter__(self) -> "ServedDocuments":
        self._thread.start()
        assert self._is_started.wait(START_TIMEOUT_S), "the front end did not start"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_TIMEOUT_S)
