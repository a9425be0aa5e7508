"""What an append and a read cost, counted where the requests leave (C7)."""

import pytest

from millrace.local import LocalCluster
from millrace.runtime.conditions import TransportCounters
from millrace.types import Record
from tests.support.clusters import connected, run

pytestmark = pytest.mark.alone

TIMES = 25


def test_an_append_takes_four_round_trips_and_a_read_one(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        counters = TransportCounters()
        async with connected(calm_cluster, counters=counters) as client:
            log = await client.create_log("round-trips", replication=3, write_path="chain")
            last = await log.append(b"warm")
            await log.get(last)
            before = counters.round_trips
            for number in range(TIMES):
                last = await log.append(b"%d" % number)
            assert counters.round_trips - before == 4 * TIMES
            before = counters.round_trips
            for number in range(TIMES):
                found = await log.get(last - number)
                assert isinstance(found, Record)
                assert found.value == b"%d" % (TIMES - 1 - number)
            assert counters.round_trips - before == TIMES

    run(body())


def test_a_batch_costs_what_one_record_costs(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        counters = TransportCounters()
        async with connected(calm_cluster, counters=counters) as client:
            log = await client.create_log("round-trips-batch", write_path="chain")
            await log.append(b"warm")
            before = counters.round_trips
            appended = await log.append_many([b"%d" % number for number in range(1_000)])
            assert len(appended) == 1
            assert counters.round_trips - before == 4

    run(body())


def test_a_whole_log_is_read_without_asking_for_each_block(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        counters = TransportCounters()
        async with connected(calm_cluster, counters=counters) as client:
            log = await client.create_log("round-trips-stream", write_path="chain")
            for number in range(50):
                await log.append(b"%d" % number)
            before = counters.round_trips
            async with await log.read() as reader:
                seen = [item async for item in reader]
            assert [item.value for item in seen if isinstance(item, Record)] == [
                b"%d" % number for number in range(50)
            ]
            # Where it ends (2), who serves it (1), start (1); then blocks are pushed.
            assert counters.round_trips - before <= 4
            assert reader.bytes_received == reader.bytes_delivered

    run(body())
