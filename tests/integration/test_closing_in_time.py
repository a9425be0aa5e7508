"""Closing a client waits for its appends, but not for those that nobody can do."""

import asyncio
import time

import pytest

from millrace.client import Client, Log, UnknownAppend, connect
from millrace.errors import AppendFailed
from millrace.local import LocalCluster
from millrace.types import NodeId
from tests.support.clusters import MakeCluster, connected, eventually, kill, run

pytestmark = pytest.mark.alone

LARGE = bytes(400 * 1024)
CLOSE_MS = 300
SOON_S = 4.0  # Short, and time for a busy machine; far below the 30 s that an append has.


async def sequencer_of(client: Client, log: Log) -> NodeId:
    record, _ = await client.directory.read_epochs(log.info.id)
    assert record is not None
    return record.sequencer


async def without_its_nodes(cluster: LocalCluster, client: Client) -> Log:
    """A log that was written, and has one node left of the three that its copies need."""
    log = await client.create_log("unfinished", replication=3)
    await log.append(b"before")
    kept = {1, await sequencer_of(client, log)}  # The first has the metadata.
    await kill(cluster, *[number for number in (2, 3) if number not in kept])
    return log


async def under_way(log: Log) -> None:
    async def blocks() -> int:
        return log._batcher.in_flight

    await eventually(blocks, what="an append under way")


def test_the_outcome_of_an_append_that_nobody_can_do_is_unknown(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        client = await connect(cluster.addresses)
        log = await without_its_nodes(cluster, client)
        appending = asyncio.create_task(log.append(b"lost?"))
        await under_way(log)
        began_s = time.monotonic()
        await client.close(timeout_ms=CLOSE_MS)
        assert time.monotonic() - began_s < SOON_S
        with pytest.raises(UnknownAppend, match="the client was closed while") as raised:
            await appending
        assert not raised.value.is_definite

    run(body())


def test_what_was_not_sent_when_the_client_closed_is_not_appended(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(3)

    async def body() -> None:
        client = await connect(cluster.addresses)
        log = await without_its_nodes(cluster, client)
        many = [asyncio.create_task(log.append(LARGE)) for _ in range(200)]
        await under_way(log)
        await client.close(timeout_ms=CLOSE_MS)
        outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {UnknownAppend, AppendFailed}
        kinds = [type(outcome) is UnknownAppend for outcome in outcomes]
        assert kinds == sorted(kinds, reverse=True), "blocks leave in order"

    run(body())


def test_appends_that_can_be_done_are_waited_for(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        client = await connect(calm_cluster.addresses)
        log = await client.create_log("finished")
        many = [asyncio.create_task(log.append(b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        await client.close()
        assert len({await each for each in many}) == 50
        async with connected(calm_cluster) as other:
            assert await (await other.log("finished")).tail_lsn() == max(
                [await each for each in many]
            )

    run(body())
