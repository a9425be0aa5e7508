"""Millrace as a peer: a local cluster of five node processes, logs with R=3.

It is measured in several ways, on one cluster: with sequenced logs (`millrace`, the default), with
chain logs (`chain`), with commit logs of one and of four streams (`commit`, `commit-4`), and
reading sequenced logs with all nodes sending all they have (`all-send-all`), which is what single
copy delivery saves.

The pipelined append is `Log.append_many`, the client's way to append many records: a few calls at
once, together never more than `window` unacknowledged records.  Appends by many tasks go through
`Log.append`, which batches by itself.  Every call into Millrace's client is in this module.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.measure import Load
from bench.peer import Ack, Kind, PeerFailure, ReadOutcome
from millrace.client import Client, Log, Reader, connect
from millrace.core.reading.settings import SequencedReadSettings
from millrace.errors import MillraceError
from millrace.local import LocalCluster
from millrace.types import Gap, WritePath

NODES: Final = 5
REPLICATION: Final = 3
CALLS_AT_ONCE: Final = 8
RESTART_TIMEOUT_MS: Final = 60_000


class SharedCluster:
    """One cluster for all ways to measure it: idle nodes of another would only be in the way."""

    def __init__(self) -> None:
        self.cluster: LocalCluster | None = None
        self._users = 0

    async def enter(self, directory: Path) -> LocalCluster:
        self._users += 1
        if self.cluster is None:
            self.cluster = LocalCluster.create(directory / "millrace", NODES, name="bench")
            await in_thread(self.cluster.start)
        return self.cluster

    async def leave(self) -> None:
        self._users -= 1
        if self.cluster is not None and not self._users:
            await in_thread(self.cluster.destroy)
            self.cluster = None


_shared: Final = SharedCluster()


class MillracePeer:
    name = "millrace"
    windows: tuple[int, ...] = (1024, 4096, 16384)
    read_ways: tuple[str, ...] = ("read stream",)
    write_path = WritePath.SEQUENCED
    kinds = frozenset(Kind)
    settings: SequencedReadSettings | None = None
    more: Mapping[str, int] = {}  # What else is chosen of a log.

    def __init__(self) -> None:
        self._cluster: LocalCluster | None = None
        self._client: Client | None = None
        self._ack = Ack.DISK
        self._logs: dict[str, Log] = {}  # Those in use: whoever appends holds on to its log.
        self._has_entered = False

    def supports(self, kind: Kind) -> bool:
        return kind in self.kinds

    def describe(self) -> str:
        return f"Millrace, {NODES} nodes, {self.write_path.value} logs, R={REPLICATION}"

    async def start(self, ack: Ack, directory: Path) -> None:
        self._ack = ack
        self._has_entered = True
        try:
            self._cluster = await _shared.enter(directory)
            self._client = await connect(self._cluster.addresses)
        except MillraceError as error:
            raise PeerFailure(f"start: {error}") from error

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
            self._logs.clear()
        if self._has_entered:
            self._has_entered = False
            self._cluster = None
            await _shared.leave()

    def process_ids(self) -> Sequence[int]:
        return () if self._cluster is None else [node.pid for node in self._cluster.nodes]

    async def create_log(self, log: str) -> None:
        await self._connected().create_log(
            self._named(log),
            write_path=self.write_path,
            replication=REPLICATION,
            ack=self._ack.value,
            compression=True,
            **self.more,
        )

    async def delete_log(self, log: str) -> None:
        self._logs.pop(log, None)
        await self._connected().delete_log(self._named(log))

    async def append(self, log: str, payload: bytes) -> None:
        opened = self._logs.get(log) or await self._log(log)
        try:
            await opened.append(payload)
        except MillraceError as error:
            raise PeerFailure(f"append to {log}: {error}") from error

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        opened = await self._log(log)
        chunk = max(1, window // CALLS_AT_ONCE)
        firsts = iter(range(0, len(load.payloads), chunk))

        async def write() -> None:
            for first in firsts:
                values = load.payloads[first : first + chunk]
                started_ns = now_ns = time.perf_counter_ns()
                await opened.append_many(values)
                for _ in values:
                    now_ns = load.acknowledge(started_ns)
                if load.is_over(now_ns):
                    return

        try:
            await asyncio.gather(*(write() for _ in range(CALLS_AT_ONCE)))
        except MillraceError as error:
            raise PeerFailure(f"append to {log}: {error}") from error

    async def read_records(self, log: str, count: int, way: str) -> ReadOutcome:
        rows = size = 0
        async with await self._read(log, count) as reader:
            async for record in reader:
                if isinstance(record, Gap):
                    raise PeerFailure(f"read of {log}: {record}")
                rows += 1
                size += len(record.value)
        return ReadOutcome(rows, size, reader.bytes_received / max(1, reader.bytes_delivered))

    async def read_arrow(self, log: str, count: int, way: str) -> ReadOutcome:
        rows = size = 0
        async with await self._read(log, count) as reader:
            async for batch in reader.batches(["value"]):
                if isinstance(batch, Gap):
                    raise PeerFailure(f"read of {log}: {batch}")
                rows += batch.num_rows
                # The offsets, four bytes a row and one more, are no payload.
                size += batch.column("value").get_total_buffer_size() - 4 * batch.num_rows
        return ReadOutcome(rows, size, reader.bytes_received / max(1, reader.bytes_delivered))

    async def restart(self, log: str) -> float:
        assert self._cluster is not None, "not started"
        cluster = self._cluster
        opened = await self._log(log)
        for node in cluster.nodes:
            cluster.kill(node.id)
        started = time.perf_counter()
        await in_thread(cluster.start)
        try:
            await opened.append(b"after the restart", timeout_ms=RESTART_TIMEOUT_MS)
        except MillraceError as error:
            raise PeerFailure(f"restart: {error}") from error
        return time.perf_counter() - started

    async def _read(self, log: str, count: int) -> Reader:
        """Its records have consecutive positions: no sequencer has changed."""
        opened = await self._log(log)
        first, _ = await opened.bounds()
        return await opened.read(first, first + count, settings=self.settings)

    async def _log(self, log: str) -> Log:
        opened = self._logs[log] = await self._connected().log(self._named(log))
        return opened

    def _named(self, log: str) -> str:
        return f"{self.name}-{log}"

    def _connected(self) -> Client:
        assert self._client is not None, "not started"
        return self._client


class ChainPeer(MillracePeer):
    name = "chain"
    write_path = WritePath.CHAIN


class CommitPeer(MillracePeer):
    name = "commit"
    write_path = WritePath.COMMIT
    more: Mapping[str, int] = {"streams": 1}

    def describe(self) -> str:
        return f"{super().describe()}, streams: {self.more['streams']}"


class CommitFourPeer(CommitPeer):
    name = "commit-4"
    more: Mapping[str, int] = {"streams": 4}


class AllSendAllPeer(MillracePeer):
    name = "all-send-all"
    kinds = frozenset({Kind.READ_ARROW})
    settings = SequencedReadSettings(is_single_copy=False)

    def describe(self) -> str:
        return f"{super().describe()}, read without single copy delivery"


async def in_thread(work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)
