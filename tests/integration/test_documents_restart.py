"""A node with documents is killed, or stopped, and started again: what was on disk is there."""

import asyncio

import pytest

from millrace.client import Client
from millrace.client.bucket import Bucket
from millrace.core.messages.documents import BucketsDescribed, DescribeBuckets, HostedPartition
from millrace.errors import HistoryChanged
from millrace.local import LocalCluster
from millrace.types import NodeId
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

MIB = 1 << 20
ALONE = NodeId(1)


def test_what_was_persisted_outlives_a_kill(make_cluster: MakeCluster) -> None:
    """It may have had more than it has, so what follows is another history (U3)."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("kept", partitions=4, replicas=0)
            safe = {b"safe-%d" % at: b"%d" % at for at in range(200)}
            await bucket.set_many(safe, durability="persist_to_majority")
            waited = await bucket.set(b"waited", b"for")
            await bucket.wait(waited.token)
            assert await bucket.delete(b"safe-7", durability="persist_to_majority")
            del safe[b"safe-7"]
            before = await copies_of(client, bucket)
            await kill(cluster, 1)
            await start(cluster, 1)
            found = await bucket.get_many([*safe, b"safe-7", b"waited"])
            assert {key: each.value for key, each in found.items()} == {**safe, b"waited": b"for"}
            for number, copy in (await copies_of(client, bucket)).items():
                assert len(copy.log.entries) == len(before[number].log.entries) + 1
                assert copy.high >= before[number].persisted
            with pytest.raises(HistoryChanged):
                await bucket.wait(waited.token)

    run(body(make_cluster(1)))


def test_a_shutdown_in_order_is_the_same_history(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("clean", partitions=4, replicas=0)
            written = {b"key-%d" % at: b"%d" % at for at in range(200)}
            await bucket.set_many(written)  # Nobody waited for the disk.
            last = await bucket.set(b"last", b"one")
            before = await copies_of(client, bucket)
            await stop(cluster, 1)
            await start(cluster, 1)
            found = await bucket.get_many([*written, b"last"])
            assert {key: each.value for key, each in found.items()} == {**written, b"last": b"one"}
            await bucket.wait(last.token)
            after = await copies_of(client, bucket)
            assert {n: copy.log for n, copy in after.items()} == {
                n: copy.log for n, copy in before.items()
            }

    run(body(make_cluster(1)))


def test_more_documents_than_memory(make_cluster: MakeCluster) -> None:
    """Values are on disk alone, and come back for whoever asks; also after a restart."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket(
                "large", partitions=4, replicas=0, memory_bytes=MIB, value_bytes_max=64 * 1024
            )
            written = {b"key-%d" % at: b"%d " % at * 2_000 for at in range(600)}
            await bucket.set_many(written, durability="persist_to_majority")
            assert sum(map(len, written.values())) > 4 * MIB
            await memory_shrinks(cluster)
            await holds(bucket, written)
            await memory_shrinks(cluster)
            for at in range(0, 600, 50):
                key = b"key-%d" % at
                await bucket.append(key, b"and more")
                written[key] += b"and more"
            await bucket.set(b"key-1", b"short", durability="persist_to_majority")
            written[b"key-1"] = b"short"
            await stop(cluster, 1)
            await start(cluster, 1)
            await holds(bucket, written)
            await memory_shrinks(cluster)
            assert metrics_of(cluster, 1)["millrace_documents"] == len(written)

    run(body(make_cluster(1)))


def test_what_is_left_of_a_deleted_bucket_is_dropped_also_by_a_node_that_was_away(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            buckets = {
                name: await client.create_bucket(name, partitions=6, replicas=2)
                for name in ("gone", "kept")
            }
            for bucket in buckets.values():
                await bucket.set(b"key", b"value")
            ids = {record.name: record.id for record in await client.directory.buckets()}
            await hold(client, cluster, set(ids.values()))
            await kill(cluster, 3)
            await client.delete_bucket("gone")
            await start(cluster, 3)
            await hold(client, cluster, {ids["kept"]})
            found = await buckets["kept"].get(b"key")
            assert found is not None and found.value == b"value"

    run(body(make_cluster(3)))


async def hold(client: Client, cluster: LocalCluster, wanted: set[int]) -> None:
    """All nodes have partitions of these buckets and no others."""

    async def held() -> list[set[int]]:
        asked = (client.ask_node(node.id, DescribeBuckets(), 5_000) for node in cluster.nodes)
        answers = await asyncio.gather(*asked)
        return [
            {each.id for each in answer.buckets} if isinstance(answer, BucketsDescribed) else set()
            for answer in answers
        ]

    await eventually(held, lambda found: all(each == wanted for each in found), what="the buckets")


async def copies_of(client: Client, bucket: Bucket) -> dict[int, HostedPartition]:
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    answer = await client.ask_node(ALONE, DescribeBuckets(record.id), 5_000)
    assert isinstance(answer, BucketsDescribed), answer
    return {copy.number: copy for each in answer.buckets for copy in each.partitions}


async def memory_shrinks(cluster: LocalCluster) -> None:
    async def memory_bytes() -> float:
        return metrics_of(cluster, 1)["millrace_document_memory_bytes"]

    await eventually(memory_bytes, lambda seen: seen <= MIB, what="values that leave memory")


async def holds(bucket: Bucket, wanted: dict[bytes, bytes]) -> None:
    found = await bucket.get_many(wanted)
    assert {key: each.value for key, each in found.items()} == wanted
    for key in (b"key-0", b"key-599"):
        one = await bucket.get(key)
        assert one is not None and one.value == wanted[key]
