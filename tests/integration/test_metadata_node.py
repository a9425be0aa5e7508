"""The node with the embedded repository dies: the current epoch goes on, changes wait and say for
what, and everybody recovers by themselves when it returns."""

import asyncio

import pytest

from millrace.client import Client, Log, UnknownAppend
from millrace.errors import MetadataUnavailable, TimedOut
from millrace.local import LocalCluster
from millrace.types import Record
from tests.support.clusters import MakeCluster, connected, kill, run, start, whole_chain
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all

METADATA_NODE = 1


def test_appends_and_reads_go_on_without_the_metadata_node(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            await client.create_log("other", write_path="chain")
            log = await client.create_log("events", write_path="chain")
            assert METADATA_NODE not in {*log.projection.chain, log.projection.sequencer}
            epoch = log.projection.epoch
            ledger, follower = Ledger(), Follower(log)
            async with load_on([log], ledger, writers=16):
                await ledger.grown_by(200)
                await kill(cluster, METADATA_NODE)
                await ledger.grown_by(500)
                assert log.projection.epoch == epoch
                await follower.reach(max(ledger.acknowledged.values()))
                found = await log.get(1)
                assert isinstance(found, Record)
                async with asyncio.timeout(10), await log.read(1, 2) as reader:
                    assert [item async for item in reader] == [found]
                await both_wait_for_the_repository(client, log, cluster.addresses[0])
                await start(cluster, METADATA_NODE)
                await client.create_log("another", write_path="chain")
                await ledger.grown_by(200)
            _, end = await log.bounds()
            await follower.reach(end)
            await follower.close()
            assert_agree(ledger, await read_all(log))

    run(body(make_cluster(5)))


def test_a_change_that_waits_for_the_repository_is_made_when_it_returns(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            await client.create_log("other", write_path="chain")
            log = await client.create_log("events", write_path="chain")
            await log.append(b"before")
            await kill(cluster, METADATA_NODE)
            await kill(cluster, log.projection.chain[-1])
            # The chain must change and cannot: an append waits, but not for ever.
            with pytest.raises((TimedOut, UnknownAppend)):
                await log.append(b"gives up", timeout_ms=3_000)
            waiting = asyncio.create_task(log.append(b"waits", timeout_ms=60_000))
            await start(cluster, METADATA_NODE)
            lsn = await waiting
            found = await log.get(lsn)
            assert isinstance(found, Record)
            assert found.value == b"waits"
            values = list((await read_all(log)).values.values())
            assert values.count(b"waits") == 1
            assert values.count(b"before") == 1
            await whole_chain(client, log.info.id)

    run(body(make_cluster(5)))


async def both_wait_for_the_repository(client: Client, log: Log, address: str) -> None:
    """Whatever changes something cannot happen now, and says who is missing."""
    results = await asyncio.gather(
        client.create_log("another", write_path="chain"),
        log.seal(timeout_ms=7_000),
        return_exceptions=True,
    )
    for result in results:
        assert isinstance(result, MetadataUnavailable), result
        assert result.is_definite
        assert address in str(result)
