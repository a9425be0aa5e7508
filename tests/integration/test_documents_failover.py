"""Masters are killed under load, one after the other; others take over, and those that return roll
back what nobody took over (R-P, U2, U7)."""

import asyncio
import time

import pytest

from millrace.client import Client
from millrace.client.bucket import Bucket
from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import Seat
from millrace.core.messages.documents import BucketsDescribed, DescribeBuckets, HostedPartition
from millrace.errors import ChangeUnknown
from millrace.local import LocalCluster
from millrace.types import NO_NODE, NodeId
from tests.support.clusters import (
    MakeCluster,
    answer_of,
    connected,
    eventually,
    kill,
    run,
    start,
)
from tests.support.document_load import Account, Follower, documents_written

NODES = (NodeId(1), NodeId(2), NodeId(3))
WAIT_ENDS_S = 5.0  # Far less than it would wait.


def test_what_a_majority_had_survives_masters_that_are_killed_in_turn(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("storm", partitions=8, replicas=2)
            account = Account()
            async with Follower(bucket, "follower:1") as follower:
                async with documents_written(bucket, account, durability="majority"):
                    await account.grown_by(300)
                    for victim in (2, 3):
                        await kill(cluster, victim)
                        await masters_are(client, bucket, without=victim)
                        await account.grown_by(300)
                        await start(cluster, victim)
                        await copies_agree(client, bucket)
                    cluster.pause(2)
                    await masters_are(client, bucket, without=2)
                    cluster.resume(2)  # A master of before, that knows nothing of the others.
                    await account.grown_by(300)
                held = await account.assert_kept(bucket)
                await copies_agree(client, bucket)
                await follower.holds(held)

    run(body(make_cluster(3)))


def test_the_bucket_goes_on_when_the_node_with_the_metadata_returns(
    make_cluster: MakeCluster,
) -> None:
    """Nobody can hold a lease meanwhile, so nobody serves; it is a master, too, and the keeper."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("away", partitions=8, replicas=2)
            account = Account()
            async with Follower(bucket, "follower:1") as follower:
                async with documents_written(bucket, account, durability="majority"):
                    await account.grown_by(300)
                    await kill(cluster, 1)
                    await start(cluster, 1)
                    await account.grown_by(600)
                held = await account.assert_kept(bucket)
                await copies_agree(client, bucket)
                await follower.holds(held)

    run(body(make_cluster(3)))


@pytest.mark.alone
def test_whoever_waits_for_a_majority_hears_of_the_masters_death(
    make_cluster: MakeCluster,
) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("waits", partitions=12, replicas=1)
            key = await key_of(client, bucket, master=2, replica=3)
            await bucket.set(key, b"before", durability="majority")
            await kill(cluster, 3)
            waiting = asyncio.create_task(
                bucket.set(key, b"alone", durability="majority", timeout_ms=60_000)
            )
            await value_is(bucket, key, b"alone")
            assert not waiting.done(), "one copy of two is no majority"
            began_s = time.monotonic()
            await kill(cluster, 2)
            with pytest.raises(ChangeUnknown):
                await waiting
            assert time.monotonic() - began_s < WAIT_ENDS_S

    run(body(make_cluster(3)))


def test_a_master_that_returns_rolls_back_and_brings_what_the_new_one_lacks(
    make_cluster: MakeCluster,
) -> None:
    """Its replica was away when the last changes were made, and became the master without them.
    Those to documents that were changed since are over; the others come back by repair (U7)."""

    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("returns", partitions=12, replicas=1)
            key = await key_of(client, bucket, master=2, replica=3)
            number = bucket.partition_of(key)
            other = next(k for k in keys(bucket, number) if k != key)
            await bucket.set(key, b"old", durability="persist_to_majority")
            await kill(cluster, 3)
            async with Follower(bucket, "follower:1") as follower:
                await bucket.set(key, b"lost")
                alone = await bucket.set(other, b"only at the old master")
                await bucket.wait(alone.token)
                await follower.holds({key: b"lost", other: b"only at the old master"})
                await kill(cluster, 2)
                await start(cluster, 3)
                await seat_is(client, bucket, number, active=3)
                assert (await bucket.get(key)) is not None
                await value_is(bucket, key, b"old")
                await follower.holds({key: b"old"})
                await bucket.set(key, b"new")
                await start(cluster, 2)
                await value_is(bucket, other, b"only at the old master")
                await copies_agree(client, bucket)
                await value_is(bucket, key, b"new")
                await follower.holds({key: b"new", other: b"only at the old master"})
            copies = await copies_of(client, bucket, number)
            assert all(len(copy.log.entries) == 2 for copy in copies.values()), copies

    run(body(make_cluster(3)))


# -- What is waited for ---------------------------------------------------------------------------


async def seats_of(client: Client, bucket: Bucket) -> tuple[Seat, ...]:
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    return record.seats


async def masters_are(client: Client, bucket: Bucket, *, without: int) -> None:
    async def masters() -> set[NodeId]:
        return {seat.active for seat in await seats_of(client, bucket)}

    await eventually(
        masters,
        lambda found: not found & {NodeId(without), NO_NODE},
        what=f"other masters than {without}",
    )


async def seat_is(client: Client, bucket: Bucket, number: PartitionId, *, active: int) -> None:
    async def master() -> NodeId:
        return (await seats_of(client, bucket))[number].active

    await eventually(master, lambda found: found == active, what=f"node {active} as the master")


async def copies_of(
    client: Client, bucket: Bucket, number: PartitionId
) -> dict[NodeId, HostedPartition]:
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    found: dict[NodeId, HostedPartition] = {}
    for node in record.seat(number).holders:
        answer = await answer_of(client, node, DescribeBuckets(record.id, (number,)))
        if isinstance(answer, BucketsDescribed):
            copies = [copy for each in answer.buckets for copy in each.partitions]
            found |= dict.fromkeys([node], copies[0]) if copies else {}
    return found


async def copies_agree(client: Client, bucket: Bucket) -> None:
    """Every holder of every partition has the master's history, and follows it closely."""

    async def differing() -> list[object]:
        seats = await seats_of(client, bucket)
        found: list[object] = []
        for number, seat in enumerate(seats):
            copies = await copies_of(client, bucket, PartitionId(number))
            logs = {copy.log for copy in copies.values()}
            is_whole = len(copies) == 1 + bucket.attributes.replicas and len(logs) == 1
            if seat.active == NO_NODE or not is_whole or any(c.has_undo for c in copies.values()):
                found.append((number, seat, copies))
        return found

    await eventually(differing, lambda found: not found, what="copies that agree")


async def value_is(bucket: Bucket, key: bytes, value: bytes) -> None:
    async def found() -> bytes | None:
        document = await bucket.get(key)
        return None if document is None else document.value

    await eventually(found, lambda seen: seen == value, what=f"{key!r} as {value!r}")


def keys(bucket: Bucket, number: PartitionId) -> list[bytes]:
    every = (b"key-%d" % at for at in range(1_000))
    return [key for key in every if bucket.partition_of(key) == number]


async def key_of(client: Client, bucket: Bucket, *, master: int, replica: int) -> bytes:
    for number, seat in enumerate(await seats_of(client, bucket)):
        if (seat.active, seat.replicas) == (master, (replica,)):
            return keys(bucket, PartitionId(number))[0]
    raise AssertionError(f"no partition goes from {master} to {replica}")
