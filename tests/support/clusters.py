"""Real clusters for the integration tests: run a test's coroutine, wait for what must become true.

Nothing here waits for a fixed time: `eventually` asks again until a condition holds, and says
what it saw last when the time is up.
"""

import asyncio
import contextlib
import http.client
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import uvloop

from millrace.client import Client, Log, connect
from millrace.config import KeeperSettings
from millrace.core.messages import (
    Describe,
    Described,
    Fetch,
    Fetched,
    Index,
    IndexPage,
    Message,
    Standing,
)
from millrace.core.projection import Projection
from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.types import Epoch, Extent, LogId, Lsn, NodeId

T = TypeVar("T")
MakeCluster = Callable[..., LocalCluster]  # The fixture of the integration tests.
WAIT_S = 45.0
POLL_S = 0.03
ASK_TIMEOUT_MS = 5_000
METRIC_LINE = re.compile(r"^([a-z_]+)(?:\{([^}]*)\})? ([0-9.e+-]+)$")

# Everything that happens by the clock happens soon.
QUICK_KEEPER = KeeperSettings(interval_ms=100, retention_interval_ms=300, surplus_after_ms=60_000)


def run(work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
    """The result of a test's coroutine, on the loop that nodes and clients use."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


async def eventually(
    look: Callable[[], Awaitable[T]],
    is_right: Callable[[T], bool] = bool,
    *,
    what: str = "the condition",
    timeout_s: float = WAIT_S,
) -> T:
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen = await look()
        if is_right(seen):
            return seen
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what} did not come true in {timeout_s} s; last seen: {seen!r}")
        await asyncio.sleep(POLL_S)


def soon(
    look: Callable[[], T],
    is_right: Callable[[T], bool] = bool,
    *,
    what: str = "the condition",
    timeout_s: float = WAIT_S,
) -> T:
    """`eventually` for tests without a loop."""
    deadline_s = time.monotonic() + timeout_s
    while not is_right(seen := look()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what} did not come true in {timeout_s} s; last seen: {seen!r}")
        time.sleep(POLL_S)
    return seen


class Noted(list[tuple[str, dict[str, object]]]):
    """What the protocol noted, as the `noted` callback of `connect`."""

    def __call__(self, event: str, fields: dict[str, object]) -> None:
        self.append((event, fields))

    def events(self) -> set[str]:
        return {event for event, _ in self}


@contextlib.asynccontextmanager
async def connected(cluster: LocalCluster, **options: Any) -> AsyncIterator[Client]:
    client = await connect(cluster.addresses, **options)
    try:
        yield client
    finally:
        await client.close()


async def start(cluster: LocalCluster, *numbers: int) -> None:
    await asyncio.to_thread(cluster.start, numbers)


async def kill(cluster: LocalCluster, *numbers: int) -> None:
    for number in numbers:
        await asyncio.to_thread(cluster.kill, number)


async def stop(cluster: LocalCluster, number: int) -> None:
    await asyncio.to_thread(cluster.stop, number)


# -- What a log looks like ------------------------------------------------------------------------


async def projection_of(client: Client, log: LogId) -> Projection:
    """As the repository has it."""
    projection, _ = await client.directory.read_projection(log)
    assert projection is not None
    return projection


async def whole_chain(client: Client, log: LogId, length: int = 3) -> Projection:
    """Wait until the chain has all its members, each of them alive and complete."""

    async def look() -> Projection | None:
        projection = await projection_of(client, log)
        if len(projection.chain) != length:
            return None
        live = (await client.directory.view()).live
        if not {projection.sequencer, *projection.chain} <= live:
            return None
        for node in projection.chain:
            described = await described_by(client, node, log)
            if described is None or described.standing is not Standing.MEMBER:
                return None
            if described.epoch != projection.epoch:
                return None
        return projection

    found = await eventually(look, what=f"a whole chain of {length}")
    assert found is not None
    return found


async def answer_of(client: Client, node: NodeId, message: Message) -> Message | None:
    try:
        return await client.ask_node(node, message, ASK_TIMEOUT_MS)
    except Unavailable:
        return None


async def described_by(client: Client, node: NodeId, log: LogId) -> Described | None:
    answer = await answer_of(client, node, Describe(log))
    return answer if isinstance(answer, Described) else None


async def extents_at(
    client: Client, node: NodeId, log: LogId, epoch: Epoch, end: Lsn
) -> list[Extent]:
    extents: list[Extent] = []
    at = Lsn(1)
    while at < end:
        page = await client.ask_node(node, Index(log, epoch, at, end), ASK_TIMEOUT_MS)
        assert isinstance(page, IndexPage), page
        extents += page.extents
        at = page.next_lsn
    return extents


async def bytes_at(
    client: Client, node: NodeId, log: LogId, epoch: Epoch, end: Lsn
) -> dict[Lsn, bytes]:
    """Every block a node holds below `end`, by its first position."""
    blocks: dict[Lsn, bytes] = {}
    at = Lsn(1)
    while at < end:
        request = Fetch(log, epoch, at, end, 4 << 20)
        fetched = await client.ask_node(node, request, ASK_TIMEOUT_MS)
        assert isinstance(fetched, Fetched), fetched
        blocks |= {block.first: bytes(block.data) for block in fetched.blocks}
        at = fetched.next_lsn
    return blocks


async def assert_members_equal(client: Client, log: Log) -> Projection:
    """All members of the chain hold the same extents and the same bytes (G4)."""
    projection = await whole_chain(client, log.info.id)
    _, end = await log.bounds()
    described = [await described_by(client, node, log.info.id) for node in projection.chain]
    assert len({(d.trim_end, d.contiguous_end, d.end, d.blocks) for d in described if d}) == 1
    head, *others = [
        (
            await extents_at(client, node, log.info.id, projection.epoch, end),
            await bytes_at(client, node, log.info.id, projection.epoch, end),
        )
        for node in projection.chain
    ]
    for other in others:
        assert other[0] == head[0]
        assert other[1] == head[1]
    return projection


# -- What a node says -----------------------------------------------------------------------------


def http_get(address: str, path: str) -> tuple[int, dict[str, str], str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read().decode()
    finally:
        connection.close()


def metrics_of(cluster: LocalCluster, number: int) -> dict[str, float]:
    """Metric and labels to value, from `/metrics`."""
    _, _, text = http_get(cluster.node(number).admin, "/metrics")
    return dict(_samples(text.splitlines()))


def _samples(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    for line in lines:
        match = METRIC_LINE.match(line)
        if match:
            name, labels, value = match.groups()
            yield (f"{name}{{{labels}}}" if labels else name), float(value)


def resident_bytes(cluster: LocalCluster, number: int) -> int:
    """Memory of a node's own: not the file that LMDB maps."""
    with open(f"/proc/{cluster.node(number).pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
