"""The servers that keep documents: what is asked of one, and Millrace with one node and with more.

1. A server that is one process gets one core: "per core" is by the clock then, not by arithmetic.
2. `settle` ends when nothing is left to do for what was answered: flushed, and at the replicas.
   What a server does after its answers is a cost of them.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from bench.documents.lanes import dial, exchange
from bench.documents.requests import Documents, Route
from bench.millrace_peer import in_thread
from bench.peer import PeerFailure
from millrace.client import Bucket, Client, connect
from millrace.codec.memcached.binary import Response, encode_request
from millrace.codec.memcached.observing import encode_features
from millrace.codec.memcached.opcodes import Feature, Opcode
from millrace.errors import MillraceError
from millrace.limits import MIB
from millrace.local import LocalCluster

BUCKET: Final = "default"
PARTITIONS: Final = 64
MEMORY_BYTES: Final = 2048 * MIB
SETTLE_SECONDS_MAX: Final = 60.0
LOOK_S: Final = 0.05
LEASE_MS: Final = 15_000  # Nobody fails here: a busy machine is not to look like it.


class DocumentServer(Protocol):
    name: str

    def describe(self) -> str: ...

    async def start(self, directory: Path) -> None:
        """Raises PeerFailure."""

    async def stop(self) -> None:
        """Leaves no process behind, also after a failed `start`."""

    def process_ids(self) -> Sequence[int]: ...

    def routes(self, documents: Documents) -> list[Route]: ...

    async def settle(self) -> None:
        """Keeps 2."""


class MillraceServer:
    def __init__(self, name: str, nodes: int, replicas: int) -> None:
        self.name = name
        self._nodes = nodes
        self._replicas = replicas
        self._cluster: LocalCluster | None = None
        self._client: Client | None = None
        self._bucket: Bucket | None = None

    def describe(self) -> str:
        word = "node" if self._nodes == 1 else "nodes"
        return (
            f"Millrace, {self._nodes} {word}, {self._replicas} replicas, {PARTITIONS} partitions, "
            "persistent"
        )

    async def start(self, directory: Path) -> None:
        try:
            self._cluster = LocalCluster.create(
                directory / self.name, self._nodes, name="bench", lease_ttl_ms=LEASE_MS
            )
            await in_thread(self._cluster.start)
            self._client = await connect(self._cluster.addresses)
            self._bucket = await self.make_bucket(BUCKET, self._replicas)
            durability = "majority" if self._replicas else None
            await self._bucket.set(b"first", b"", durability=durability)  # Now all nodes know it.
        except MillraceError as error:
            raise PeerFailure(f"start: {error}") from error
        if self._nodes == 1:
            pin(self.process_ids())

    async def make_bucket(self, name: str, replicas: int = 0) -> Bucket:
        assert self._client is not None, "not started"
        return await self._client.create_bucket(
            name, partitions=PARTITIONS, replicas=replicas, memory_bytes=MEMORY_BYTES
        )

    @property
    def bucket(self) -> Bucket:
        assert self._bucket is not None, "not started"
        return self._bucket

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._cluster is not None:
            await in_thread(self._cluster.destroy)
            self._cluster = None

    def process_ids(self) -> Sequence[int]:
        return () if self._cluster is None else [node.pid for node in self._cluster.nodes]

    def routes(self, documents: Documents) -> list[Route]:
        return routes_of(self.bucket, documents, is_map_known=self._nodes > 1)

    async def settle(self) -> None:
        await settled(self.bucket)


# -- Millrace ------------------------------------------------------------------------------------


def routes_of(bucket: Bucket, documents: Documents, *, is_map_known: bool) -> list[Route]:
    """One to each node that is the master of some.  Without the map the client says what any
    client of memcached says, to the first node."""
    name = bucket.name.encode()
    select = encode_request(Opcode.SELECT_BUCKET, name) if bucket.name != BUCKET else b""
    masters = bucket.asker.map.masters
    if not is_map_known:
        return [Route(masters[0], documents, select, has_multi_set=True)]
    features = encode_features([Feature.MAP_AWARE, Feature.SELECT_BUCKET])
    greeting = encode_request(Opcode.HELLO, b"bench", features) + select
    parts: defaultdict[str, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    for key, value, _ in documents.rows():
        number = bucket.partition_of(key)
        parts[masters[number]].append((key, value, number))
    return [
        Route(address, Documents(*map(list, zip(*rows, strict=True))), greeting, has_multi_set=True)
        for address, rows in parts.items()
    ]


async def settled(bucket: Bucket) -> None:
    """Until every copy of every partition has the same last seq, and has it on disk."""
    addresses = set(bucket.asker.map.masters)
    select = encode_request(Opcode.SELECT_BUCKET, bucket.name.encode())
    stat = encode_request(Opcode.STAT, b"partitions")

    def is_settled() -> bool:
        highs: defaultdict[bytes, set[bytes]] = defaultdict(set)
        persisted: defaultdict[bytes, set[bytes]] = defaultdict(set)
        for address in addresses:
            with dial(address) as connection:
                answers = exchange(connection, select + stat, _is_stat_over)
            for answer in answers:
                what, _, number = answer.key.partition(b":")
                if what == b"high_seq":
                    highs[number].add(answer.value)
                elif what == b"persisted_seq":
                    persisted[number].add(answer.value)
        return highs == persisted and all(len(seqs) == 1 for seqs in highs.values())

    await until(is_settled, f"bucket {bucket.name} does not come to rest", SETTLE_SECONDS_MAX)


def _is_stat_over(answers: list[Response]) -> bool:
    """Statistics end with one that has no name; the first answer is that to the selection."""
    return len(answers) > 1 and not answers[-1].key


# -- Processes -----------------------------------------------------------------------------------


def pin(servers: Sequence[int]) -> None:
    """Keeps 1: to the last core; the client finds another by itself."""
    core = max(os.sched_getaffinity(0))
    for server in servers:
        for thread in Path(f"/proc/{server}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})


async def until(is_true: Callable[[], bool], complaint: str, seconds_max: float = 10.0) -> None:
    """Looks now and then.  Raises PeerFailure with the complaint."""
    deadline_s = time.perf_counter() + seconds_max
    while not is_true():
        if time.perf_counter() > deadline_s:
            raise PeerFailure(complaint)
        await asyncio.sleep(LOOK_S)
