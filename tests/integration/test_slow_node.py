"""A node that turns slow is passed over for a while, and comes back when it is well."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from millrace.client import Client, Log, Reader
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.slow_nodes import SlowNodeSettings
from millrace.local import LocalCluster
from millrace.lsn import lsn_of
from millrace.types import Epoch, Gap
from tests.support.clusters import MakeCluster, connected, eventually, run

pytestmark = pytest.mark.alone

VALUES = [b"v" * 1_000] * 500
BLOCKS = 400  # 200 MB.
HEALTHY_BLOCKS = 100  # Some windows, so that each node's speed is known.
MEASURED_BLOCKS = 150
STICKY_BYTES = 1 << 20  # Each window has something of each node.
WAIT_MS = 60_000
PROBATION_MS = 3_000
SETTINGS = SequencedReadSettings(
    window_bytes=8 << 20,
    sender_bytes_min=2 << 20,
    slow_nodes=SlowNodeSettings(
        required_margin=4.0,
        outlier_ms_min=PROBATION_MS,
        outlier_ms_max=2 * PROBATION_MS,
        pending_ms_min=30,  # Of windows that are smaller than the usual.
    ),
)
RUNS_MS, RESTS_MS = 5, 95  # A twentieth of its speed.
VICTIM = 4  # Not node 1, which has the metadata.
THROUGHPUT_LEAST = 0.8  # Of what the nodes gave when all were well.
MEASUREMENTS_MAX = 5  # The machine may be busy with something else.


@contextlib.asynccontextmanager
async def slowed(cluster: LocalCluster, node: int) -> AsyncIterator[None]:
    """The process is stopped for most of the time."""

    async def duty() -> None:
        while True:
            cluster.pause(node)
            await asyncio.sleep(RESTS_MS / 1_000)
            cluster.resume(node)
            await asyncio.sleep(RUNS_MS / 1_000)

    task = asyncio.create_task(duty())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        cluster.resume(node)


async def take(reader: Reader, blocks: int) -> float:
    """Blocks in a second."""
    begun = time.perf_counter()
    for _ in range(blocks):
        part = await reader.take(WAIT_MS)
        assert part is not None and not isinstance(part, Gap), part
    return blocks / (time.perf_counter() - begun)


def listed(reader: Reader) -> set[int]:
    slow = reader.explain()["slow"]
    assert isinstance(slow, list)
    return set(slow)


def from_the_first(log: Log) -> Reader:
    return log.reader(lsn_of(Epoch(1), 1), None, settings=SETTINGS)


async def filled(client: Client) -> Log:
    """With blocks on all nodes."""
    log = await client.create_log("slow", compression=False, sticky_bytes=STICKY_BYTES)
    for _ in range(BLOCKS):
        await log.append_many(VALUES, ack="memory")
    return log


async def find_slow(reader: Reader, blocks_max: int) -> None:
    """Read until the slow node is found to be one; another may really be slow for a moment."""
    for _ in range(blocks_max):
        await take(reader, 1)
        if VICTIM in listed(reader):
            return
    raise AssertionError(reader.explain())


async def throughput_kept(cluster: LocalCluster, log: Log) -> float:
    """A reader finds the slow node; what it reads from then on, to what it read before."""
    async with from_the_first(log) as reader:
        healthy = await take(reader, HEALTHY_BLOCKS)
        async with slowed(cluster, VICTIM):
            await find_slow(reader, BLOCKS - HEALTHY_BLOCKS - MEASURED_BLOCKS)
            await take(reader, 1)  # The rewind is done with the first that comes after it.
            kept = await take(reader, MEASURED_BLOCKS - 1) / healthy
        assert not reader.explain()["down"]
        return kept


def test_a_node_that_turns_slow_is_passed_over(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(5, lease_ttl_ms=10_000)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            kept: list[float] = []
            while len(kept) < MEASUREMENTS_MAX and max(kept, default=0) < THROUGHPUT_LEAST:
                kept.append(await throughput_kept(cluster, log))
            assert kept[-1] >= THROUGHPUT_LEAST, kept

    run(body())


def test_a_slow_node_is_reinstated_after_its_probation(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(5, lease_ttl_ms=10_000)

    async def body() -> None:
        async with connected(cluster) as client:
            log = await filled(client)
            async with from_the_first(log) as reader:
                await take(reader, HEALTHY_BLOCKS)
                async with slowed(cluster, VICTIM):
                    await find_slow(reader, BLOCKS - HEALTHY_BLOCKS)

                async def rested() -> bool:
                    await log.append(b"so that windows slide")
                    await reader.take(WAIT_MS)
                    return VICTIM not in listed(reader)

                await eventually(rested, what="the node to be reinstated")

    run(body())
