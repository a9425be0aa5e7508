"""Whatever a client asks at once, it waits for its own load and takes no node for dead."""

import asyncio
import random

import pytest

from millrace.limits import MIB
from millrace.local import LocalCluster
from millrace.types import Record
from tests.support.clusters import connected, run

pytestmark = pytest.mark.alone


def test_hundreds_of_readers_of_one_large_block(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("own-load-gets", replication=3, write_path="chain")
            lsn = await log.append(random.Random(1).randbytes(MIB))
            found = await asyncio.gather(*(log.get(lsn) for _ in range(200)))
            assert all(isinstance(one, Record) and len(one.value) == MIB for one in found)
            assert log.projection.epoch == 1

    run(body())


def test_many_appends_of_the_largest_size(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log(
                "own-load-appends", replication=3, ack="memory", write_path="chain"
            )
            value = random.Random(2).randbytes(16 * MIB - 1024)  # Does not shrink.
            positions = await asyncio.gather(*(log.append(value) for _ in range(12)))
            assert sorted(positions) == list(range(1, 13))
            assert log.projection.epoch == 1

    run(body())


def test_more_readers_than_requests_fit_on_a_connection(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("own-load-many", replication=3, write_path="chain")
            lsn = await log.append(b"small")
            found = await asyncio.gather(*(log.get(lsn) for _ in range(5_000)))
            assert all(isinstance(one, Record) and one.value == b"small" for one in found)
            assert log.projection.epoch == 1

    run(body())
