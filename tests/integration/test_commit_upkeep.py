"""Commit logs while nodes are drained, lost and away: replicas move, and what is deleted goes."""

import pytest

from millrace.client import Client
from millrace.client.standings import NodeStanding
from millrace.config import KeeperSettings
from millrace.core.commit.record import CommitRecord
from millrace.errors import UsageError
from millrace.local import LocalCluster
from millrace.types import AuthoritativeStatus, NodeId
from tests.integration.test_commit_logs import grows, read_all, record_of, whole, writing
from tests.support.clusters import (
    MakeCluster,
    connected,
    eventually,
    kill,
    metrics_of,
    run,
    start,
    stop,
)

FULL = AuthoritativeStatus.FULLY_AUTHORITATIVE
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
SOON = KeeperSettings(
    interval_ms=100, retention_interval_ms=300, surplus_after_ms=1_000, rebuild_after_ms=500
)


async def becomes(client: Client, node: int, status: AuthoritativeStatus) -> None:
    async def look() -> NodeStanding | None:
        return (await client.statuses()).get(NodeId(node))

    def has_become(standing: NodeStanding | None) -> bool:
        return standing is not None and standing.entry.status is status

    await eventually(look, has_become, what=f"node {node} to be {status.value}")


async def logs_held(cluster: LocalCluster, node: int) -> float:
    return metrics_of(cluster, node)["millrace_store_logs"]


def victim_of(record: CommitRecord, place: int) -> NodeId:
    """Never node 1, which has the metadata."""
    return next(each.replicas[place] for each in record.streams if each.replicas[place] != 1)


@pytest.mark.parametrize("place", [0, 1], ids=["primary", "backup"])
def test_streams_leave_a_drained_node_while_they_are_written(
    make_cluster: MakeCluster, place: int
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=3)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
                victim = victim_of(await record_of(log), place)
                await client.drain(victim)
                await becomes(client, victim, EMPTY)
                assert victim not in (await record_of(log)).nodes
                await grows(acknowledged)
                await stop(cluster, victim)
                await grows(acknowledged)
            await whole(log)
            found, gaps = await read_all(log)
            assert not gaps
            assert acknowledged.items() <= found.items()

    run(body(make_cluster(5)))


def test_a_drained_node_drops_what_it_had_and_takes_replicas_again_when_it_is_taken_back(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit")
            await log.append(b"one")
            victim = victim_of(await record_of(log), 1)
            await client.drain(victim)
            await becomes(client, victim, EMPTY)
            await eventually(lambda: logs_held(cluster, victim), lambda held: held == 0)
            await client.drain(victim, cancel=True)
            await becomes(client, victim, FULL)
            other = next(node for node in (await record_of(log)).nodes if node not in (1, victim))
            await client.drain(other)
            await becomes(client, other, EMPTY)
            assert set((await record_of(log)).nodes) == {1, 2, 3, 4} - {other}

    run(body(make_cluster(4)))


def test_a_drain_that_would_leave_too_few_nodes_is_refused(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            await client.create_log("orders", write_path="commit")
            with pytest.raises(UsageError, match="node 3 cannot be drained: log 'orders'"):
                await client.drain(3)

    run(body(make_cluster(3)))


def test_a_drain_that_cannot_end_names_the_log(make_cluster: MakeCluster) -> None:
    """The node that was to take the replica died."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit")
            await log.append(b"one")
            nodes = (await record_of(log)).nodes
            (spare,) = {NodeId(each) for each in (1, 2, 3, 4)}.difference(nodes)
            victim = next(node for node in nodes if node != 1)
            if spare == 1:  # It has the metadata: another one has to die.
                spare = next(node for node in nodes if node not in (1, victim))
            cluster.pause(spare)  # It counts as alive for a while.
            await client.drain(victim)
            await kill(cluster, spare)

            async def look() -> list[str]:
                standing = (await client.statuses())[victim]
                return [each.log for each in standing.blocked]

            await eventually(look, lambda logs: logs == ["orders"], what="the log to be named")
            await start(cluster, spare)
            await becomes(client, victim, EMPTY)

    run(body(make_cluster(4)))


def test_replicas_of_a_node_that_is_lost_are_made_anew(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit", streams=2)
            async with writing(log) as acknowledged:
                await grows(acknowledged)
                victim = victim_of(await record_of(log), 1)
                await kill(cluster, victim)
                await becomes(client, victim, EMPTY)
                await whole(log)
                assert victim not in (await record_of(log)).nodes
            found, gaps = await read_all(log)
            assert not gaps
            assert acknowledged.items() <= found.items()

    run(body(make_cluster(5, keeper=SOON)))


def test_a_log_that_was_deleted_while_a_node_was_away_goes_when_it_is_back(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            log = await client.create_log("orders", write_path="commit")
            await log.append(b"one")
            victim = victim_of(await record_of(log), 1)
            assert await logs_held(cluster, victim) == 1
            await kill(cluster, victim)
            await client.delete_log("orders")
            await start(cluster, victim)
            await eventually(lambda: logs_held(cluster, victim), lambda held: held == 0)

    run(body(make_cluster(3, keeper=SOON)))
