"""Small appends share blocks; and nothing waits for ever."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from millrace.client import Client, Log, UnknownAppend, connect
from millrace.errors import MillraceError, NoNodeReachable, TimedOut
from millrace.local import LocalCluster
from millrace.types import Lsn
from tests.support.clusters import MakeCluster, connected, described_by, run, whole_chain
from tests.support.load import read_all

pytestmark = pytest.mark.alone

TIMEOUT_MS = 1_000
PATIENCE_S = 8.0  # A second, and time for a busy machine.


def test_a_thousand_writers_share_blocks(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("batching", write_path="chain")
            values = [b"%d" % number for number in range(1_000)]
            positions = await asyncio.gather(*(log.append(value) for value in values))
            assert sorted(positions) == list(range(1, 1_001))
            tape = await read_all(log)
            assert {tape.values[lsn]: lsn for lsn in positions} == dict(
                zip(values, positions, strict=True)
            )
            described = await described_by(client, log.projection.tail, log.info.id)
            assert described is not None
            assert described.blocks < 50

    run(body())


def test_a_writer_alone_does_not_wait_for_company(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("batching-alone", write_path="chain")
            for number in range(20):
                await log.append(b"%d" % number)
            described = await described_by(client, log.projection.tail, log.info.id)
            assert described is not None
            assert described.blocks == 20

    run(body())


def test_a_paused_cluster_is_no_hang(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", write_path="chain")
            await log.append(b"before")
            async with paused(cluster):
                unknown = await appends_time_out(log)
                await in_time(lambda: log.get(1, timeout_ms=TIMEOUT_MS), TimedOut)
                await in_time(lambda: log.seal(timeout_ms=TIMEOUT_MS), MillraceError)
                await in_time(
                    lambda: connect(cluster.addresses, timeout_ms=TIMEOUT_MS), NoNodeReachable
                )
                await a_reader_times_out(client, log)
            for each in unknown:
                await log.resume(each)
            await log.append(b"after")
            values = list((await read_all(log)).values.values())
            assert values[0] == b"before"
            assert values[-1] == b"after"
            assert len(values) == len(set(values))
            assert len(values) == 2 + len(unknown)
            await whole_chain(client, log.info.id)

    run(body(make_cluster(3)))


@asynccontextmanager
async def paused(cluster: LocalCluster) -> AsyncIterator[None]:
    for node in cluster.nodes:
        cluster.pause(node.id)
    try:
        yield
    finally:
        for node in cluster.nodes:
            cluster.resume(node.id)


async def appends_time_out(log: Log) -> list[UnknownAppend]:
    """Several at once: what waits behind another append has its own time, not the sum."""
    began_s = time.monotonic()
    results = await asyncio.gather(
        *(log.append(b"during %d" % n, timeout_ms=TIMEOUT_MS) for n in range(20)),
        log.append_many([b"many"], timeout_ms=TIMEOUT_MS),
        return_exceptions=True,
    )
    assert time.monotonic() - began_s < PATIENCE_S
    for result in results:
        assert isinstance(result, TimedOut | UnknownAppend), result
    return [result for result in results if isinstance(result, UnknownAppend)]


async def in_time(operation: Callable[[], Awaitable[object]], error: type[MillraceError]) -> None:
    began_s = time.monotonic()
    with pytest.raises(error):
        await operation()
    assert time.monotonic() - began_s < PATIENCE_S


async def a_reader_times_out(client: Client, log: Log) -> None:
    """Opened on what the client knows; nothing comes, and `take` says what it waits for."""
    async with log.reader(Lsn(1), Lsn(2)) as reader:
        await in_time(lambda: reader.take(timeout_ms=TIMEOUT_MS), TimedOut)
