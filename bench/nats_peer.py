"""NATS JetStream as a peer: streams with three replicas in files, read and written by `nats-py`.

What is done so that NATS shows its best: the client runs on uvloop and talks to the server that
leads the stream, which saves a hop; pipelined appends use `publish_async` with several windows
and reading is tried in several ways, and the runner keeps the fastest.  The batch publishing of
newer servers is not used, because `nats-py` has no call for it.

The client library has no place in the project's environment, so it is imported by name and every
use of it is in this module.
"""

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.measure import Load
from bench.nats_cluster import SERVERS, NatsCluster, server_index
from bench.peer import Ack, Kind, PeerFailure, ReadOutcome
from bench.peers_install import (
    NATS_CLIENT_VERSION,
    NATS_SERVER_VERSION,
    install_nats,
    make_importable,
)

READY_SECONDS_MAX: Final = 60.0
ACKNOWLEDGE_SECONDS_MAX: Final = 30.0
READ_SECONDS_MAX: Final = 60.0
RETRY_SECONDS: Final = 0.02
ATTEMPT_SECONDS_MAX: Final = 1.0
PENDING_BYTES_MAX: Final = 512 * 1024 * 1024  # What a subscription may hold before it drops.
ARROW_BATCH_RECORDS: Final = 4096
ORDERED: Final = "ordered push"
PUSH: Final = "push"
PULL: Final = "pull "


class NatsPeer:
    name = "nats"
    windows: tuple[int, ...] = (64, 256, 1024, 4096)
    read_ways: tuple[str, ...] = (ORDERED, PUSH, PULL + "256", PULL + "2048")

    def __init__(self) -> None:
        self._nats: Any = None
        self._errors: tuple[type[Exception], ...] = (OSError, TimeoutError)
        self._cluster: NatsCluster | None = None
        self._connections: dict[int, Any] = {}
        self._contexts: dict[tuple[int, int], Any] = {}
        self._leaders: dict[str, int] = {}

    def supports(self, kind: Kind) -> bool:
        return True

    def describe(self) -> str:
        versions = f"nats-server {NATS_SERVER_VERSION}, nats-py {NATS_CLIENT_VERSION}"
        return f"NATS JetStream, {versions}, {SERVERS} servers, R=3, file storage"

    async def start(self, ack: Ack, directory: Path) -> None:
        installed = install_nats()
        make_importable(installed)
        self._nats = importlib.import_module("nats")
        self._errors = (self._nats.errors.Error, OSError, TimeoutError)
        self._cluster = NatsCluster(installed / "bin" / "nats-server", directory, ack)
        self._cluster.launch()
        await self._until_done(partial(self._create, "probe"))
        await self.delete_log("probe")

    async def stop(self) -> None:
        await self._disconnect()
        if self._cluster is not None:
            self._cluster.kill()
            self._cluster = None

    def process_ids(self) -> Sequence[int]:
        return () if self._cluster is None else self._cluster.process_ids()

    async def create_log(self, log: str) -> None:
        with self._translated(f"create stream {log}"):
            await self._create(log)

    async def delete_log(self, log: str) -> None:
        with self._translated(f"delete stream {log}"):
            await (await self._context(self._leaders.pop(log))).delete_stream(log)

    async def append(self, log: str, payload: bytes) -> None:
        try:
            await (await self._context(self._leaders[log])).publish(log, payload)
        except self._errors as error:
            raise PeerFailure(f"append to {log}: {error!r}") from error

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        with self._translated(f"append to {log}"):
            context = await self._context(self._leaders[log], window)
            last: asyncio.Future[Any] | None = None
            failed: list[BaseException] = []
            for payload in load.payloads:
                last = await context.publish_async(log, payload)
                # The clock starts when the message has its place in the window.
                now_ns = time.perf_counter_ns()
                last.add_done_callback(partial(_on_answer, load, failed, now_ns))
                if failed or load.is_over(now_ns):
                    break
            await asyncio.wait_for(context.publish_async_completed(), ACKNOWLEDGE_SECONDS_MAX)
        # The library's callbacks stand before ours: one turn of the loop lets the last one run.
        await asyncio.sleep(0)
        if failed:
            raise PeerFailure(f"append to {log}: {failed[0]!r}")

    async def read_records(self, log: str, count: int, way: str) -> ReadOutcome:
        values = await self._read(log, count, way)
        return ReadOutcome(len(values), sum(map(len, values)))

    async def read_arrow(self, log: str, count: int, way: str) -> ReadOutcome:
        values = await self._read(log, count, way)
        rows = 0
        for first in range(0, len(values), ARROW_BATCH_RECORDS):
            column = pa.array(values[first : first + ARROW_BATCH_RECORDS], type=pa.binary())
            rows += pa.record_batch([column], names=["value"]).num_rows
        return ReadOutcome(rows, sum(map(len, values)))

    async def restart(self, log: str) -> float:
        assert self._cluster is not None, "not started"
        await self._disconnect()
        self._cluster.kill()
        started = time.perf_counter()
        self._cluster.launch()
        await self._until_done(partial(self._append_anywhere, log))
        seconds = time.perf_counter() - started
        await self._until_done(partial(self._find_leader, log))
        return seconds

    async def _create(self, log: str) -> None:
        api = self._nats.js.api
        config = api.StreamConfig(
            name=log, subjects=[log], num_replicas=3, storage=api.StorageType.FILE
        )
        information = await (await self._context(0)).add_stream(config)
        self._leaders[log] = server_index(information.cluster.leader)

    async def _append_anywhere(self, log: str) -> None:
        context = await self._context(self._leaders[log])
        await context.publish(log, b"after the restart", timeout=ATTEMPT_SECONDS_MAX)

    async def _find_leader(self, log: str) -> None:
        information = await (await self._context(0)).stream_info(log)
        self._leaders[log] = server_index(information.cluster.leader)

    async def _until_done(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Servers that elect a leader refuse for a while: try until one attempt succeeds."""
        assert self._cluster is not None, "not started"
        deadline = time.perf_counter() + READY_SECONDS_MAX
        while True:
            self._cluster.check()
            try:
                return await attempt()
            except self._errors as error:
                if time.perf_counter() > deadline:
                    raise PeerFailure(f"not ready after {READY_SECONDS_MAX:.0f} s") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, log: str, count: int, way: str) -> list[bytes]:
        with self._translated(f"read {log}"):
            if way.startswith(PULL):
                reading = self._pull(log, count, int(way.removeprefix(PULL)))
            else:
                reading = self._push(log, count, is_ordered=way == ORDERED)
            values = await asyncio.wait_for(reading, READ_SECONDS_MAX)
        if len(values) != count:
            raise PeerFailure(f"read {log}: {len(values)} messages instead of {count}")
        return values

    async def _push(self, log: str, count: int, *, is_ordered: bool) -> list[bytes]:
        values: list[bytes] = []
        done = asyncio.Event()

        async def on_message(message: Any) -> None:
            if len(values) < count:
                values.append(message.data)
                if len(values) == count:
                    done.set()

        api = self._nats.js.api
        subscription = await (await self._context(self._leaders[log])).subscribe(
            log,
            cb=on_message,
            stream=log,
            ordered_consumer=is_ordered,
            manual_ack=True,
            config=None if is_ordered else api.ConsumerConfig(ack_policy=api.AckPolicy.NONE),
            pending_bytes_limit=PENDING_BYTES_MAX,
        )
        try:
            await done.wait()
        finally:
            await subscription.unsubscribe()
        return values

    async def _pull(self, log: str, count: int, batch: int) -> list[bytes]:
        api = self._nats.js.api
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
        subscription = await (await self._context(self._leaders[log])).pull_subscribe(
            log, stream=log, config=config, pending_bytes_limit=PENDING_BYTES_MAX
        )
        values: list[bytes] = []
        try:
            while len(values) < count:
                messages = await subscription.fetch(min(batch, count - len(values)), timeout=5)
                values.extend(message.data for message in messages)
        finally:
            await subscription.unsubscribe()
        return values

    async def _context(self, server: int, window: int = 4000) -> Any:
        """A JetStream context at one server that lets `window` publishes wait."""
        assert self._cluster is not None, "not started"
        connection = self._connections.get(server)
        if connection is None or connection.is_closed:
            # A context belongs to its connection.
            self._contexts = {key: kept for key, kept in self._contexts.items() if key[0] != server}
            connection = self._connections[server] = await self._nats.connect(
                f"nats://127.0.0.1:{self._cluster.ports[server]}",
                allow_reconnect=False,
                error_cb=_on_error,
            )
        if (server, window) not in self._contexts:
            context = connection.jetstream(publish_async_max_pending=window)
            self._contexts[server, window] = context
        return self._contexts[server, window]

    async def _disconnect(self) -> None:
        connections = list(self._connections.values())
        self._connections.clear()
        self._contexts.clear()
        for connection in connections:
            await connection.close()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise PeerFailure(f"{doing}: {error!r}") from error


def _on_answer(
    load: Load, failed: list[BaseException], started_ns: int, future: asyncio.Future[Any]
) -> None:
    error = future.exception()
    if error is None:
        load.acknowledge(started_ns)
    else:
        failed.append(error)


async def _on_error(error: Exception) -> None:
    """Errors come back from the calls that met them; the library would print them as well."""
