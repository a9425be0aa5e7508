"""Nodes that stop in order, come back, or come back with an empty disk."""

from millrace.client import Client, Log
from millrace.core.messages import Described, Standing
from millrace.local import LocalCluster
from millrace.types import NodeId
from tests.support.clusters import (
    MakeCluster,
    assert_members_equal,
    connected,
    described_by,
    eventually,
    kill,
    projection_of,
    run,
    start,
    stop,
    whole_chain,
)
from tests.support.load import Follower, Ledger, assert_agree, load_on, read_all


def test_each_node_in_turn_is_restarted_under_load(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", write_path="chain")
            ledger, follower = Ledger(), Follower(log)
            async with load_on([log], ledger, writers=16):
                for number in (3, 2, 1):
                    await ledger.grown_by(200)
                    await stop(cluster, number)
                    await start(cluster, number)
                    await whole_chain(client, log.info.id)
                await ledger.grown_by(200)
            _, end = await log.bounds()
            await follower.reach(end)
            await follower.close()
            assert_agree(ledger, await read_all(log))
            await assert_members_equal(client, log)

    run(body(make_cluster(3)))


def test_a_cluster_that_stops_whole_comes_back_whole(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", ack="memory", write_path="chain")
            values = [b"%d" % number for number in range(500)]
            await log.append_many(values)
            for node in reversed(cluster.nodes):
                await stop(cluster, node.id)
            await start(cluster, *(node.id for node in cluster.nodes))
            assert list((await read_all(log)).values.values()) == values
            await log.append(b"after")
            projection = await whole_chain(client, log.info.id)
            # Only the sequencer was lost with its process, and the node that left first.
            assert projection.changes <= 6
            assert list((await read_all(log)).values.values()) == [*values, b"after"]

    run(body(make_cluster(3)))


def test_verifying_after_all_were_killed_sees_all_that_was_acknowledged(
    make_cluster: MakeCluster,
) -> None:
    """Also before the new sequencer has recovered: nothing readable is not the same as nothing."""

    async def body(cluster: LocalCluster) -> None:
        numbers = [node.id for node in cluster.nodes]
        async with connected(cluster) as client:
            log = await client.create_log("events")
            await log.append_many([b"%d" % number for number in range(500)])
            await kill(cluster, *numbers)
            await start(cluster, *numbers)
            verdict = await log.verify()
            assert (verdict.records, verdict.is_sound) == (500, True)

    run(body(make_cluster(3)))


def test_an_idle_log_does_not_change_its_chain(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", write_path="chain")
            await log.append(b"one")
            # Killed and back within its lease: nobody has a reason to change anything.
            await kill(cluster, 3)
            await start(cluster, 3)
            assert (await projection_of(client, log.info.id)).chain == (1, 2, 3)
            await log.append(b"two")
            assert list((await read_all(log)).values.values()) == [b"one", b"two"]
            assert len((await whole_chain(client, log.info.id)).chain) == 3

    run(body(make_cluster(3, lease_ttl_ms=10_000)))


def test_a_wiped_node_is_no_member_until_it_has_synchronized(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("events", write_path="chain")
            idle = await client.create_log("idle", write_path="chain")
            values = [b"%d" % number for number in range(300)]
            await log.append_many(values)
            await idle.append_many(values)
            await kill(cluster, 3)
            cluster.wipe(3)
            await start(cluster, 3)
            # Nobody writes to the idle log: the keeper has to find out by itself.
            for each in (log, idle):
                await returned(client, each, NodeId(3))
                await assert_members_equal(client, each)
            # The others may go now: what was wiped is back.
            await log.append(b"after")
            await kill(cluster, 2)
            assert list((await read_all(log)).values.values()) == [*values, b"after"]
            assert list((await read_all(idle)).values.values()) == values

    run(body(make_cluster(3)))


async def returned(client: Client, log: Log, node: NodeId) -> None:
    """Wait until a node is a member again and holds something."""

    def is_back(seen: Described | None) -> bool:
        return seen is not None and seen.standing is Standing.MEMBER and seen.blocks > 0

    await eventually(
        lambda: described_by(client, node, log.info.id), is_back, what="the wiped node's return"
    )
