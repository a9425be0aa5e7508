"""The pipeline `copy` between real clusters: both ways at once, through a master's death, a restart
and a failover that loses changes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.client.bucket import Bucket
from millrace.client.cluster import Client
from millrace.core.documents.map import Seat
from millrace.core.documents.revisions import Revision
from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.spark.pipelines import Context
from millrace.spark.pipelines.copy import CopySettings, run_copy
from millrace.types import NO_NODE
from tests.support.clusters import MakeCluster, connected, eventually, kill, run, start

COPY_TIMEOUT_S = 240.0  # Far more than it takes; on a busy machine Spark is slow to start.
TIMEOUT_S = 600.0
KEYS = [b"user:%d" % at for at in range(61)]  # Both sides change them all.


def own_key(name: str) -> bytes:
    return f"user:{name}".encode()


def addresses(cluster: LocalCluster) -> str:
    return ",".join(cluster.addresses)


@contextlib.contextmanager
def copying(settings: CopySettings, context: Context) -> Iterator[None]:
    """The pipeline in a thread; it ends without complaint, when it is asked to."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            run_copy(settings, context)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        context.stop()
        thread.join(COPY_TIMEOUT_S)
    assert not thread.is_alive()
    assert not failures, failures


@contextlib.asynccontextmanager
async def written(bucket: Bucket, name: str) -> AsyncIterator[list[int]]:
    """Somebody changes the same keys as everybody else, and sets one of its own before; the count
    of what was acknowledged."""
    done = [0]
    await bucket.set(own_key(name), b"own")

    async def write() -> None:
        number = 0
        while True:
            number += 1
            key = KEYS[number * 7 % len(KEYS)]
            with contextlib.suppress(Unavailable):
                if number % 5:
                    await bucket.set(key, f"{name} {number}".encode(), flags=number)
                else:
                    await bucket.delete(key)
                done[0] += 1
            await asyncio.sleep(0.005)

    task = asyncio.create_task(write())
    try:
        yield done
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def grown(done: list[int], count: int) -> None:
    target = done[0] + count

    async def now() -> int:
        return done[0]

    await eventually(now, lambda seen: seen >= target, what=f"{count} more changes")


async def are_equal(here: Bucket, there: Bucket) -> dict[bytes, Revision]:
    """Both have the same of every key: value or deletion, CAS, flags."""

    async def both() -> tuple[dict[bytes, Revision], dict[bytes, Revision]]:
        return await here.read_revisions(KEYS), await there.read_revisions(KEYS)

    found, _ = await eventually(
        both, lambda pair: pair[0] == pair[1], what="equal buckets", timeout_s=COPY_TIMEOUT_S
    )
    return found


async def has_copied(bucket: Bucket, name: str) -> None:
    await eventually(
        lambda: bucket.get(own_key(name)),
        lambda found: found is not None,
        what=f"a copy of what was written {name}",
        timeout_s=COPY_TIMEOUT_S,
    )


async def seats_of(client: Client, bucket: Bucket) -> tuple[Seat, ...]:
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    return record.seats


async def masters_without(client: Client, bucket: Bucket, node: int) -> None:
    async def masters() -> set[int]:
        return {seat.active for seat in await seats_of(client, bucket)}

    await eventually(
        masters, lambda found: not found & {node, NO_NODE}, what=f"masters without {node}"
    )


@pytest.mark.timeout(TIMEOUT_S)
def test_two_clusters_that_are_both_written_become_equal_through_a_masters_death(
    make_cluster: MakeCluster, spark: SparkSession, tmp_path: Path
) -> None:
    one, other = make_cluster(3), make_cluster(1)
    settings = CopySettings(
        cluster=addresses(one),
        bucket="users",
        target_cluster=addresses(other),
        target="people",
        key_prefix="user:",
        two_way=True,
    )

    async def body() -> None:
        async with connected(one) as client, connected(other) as far:
            here = await client.create_bucket("users", partitions=6, replicas=2)
            there = await far.create_bucket("people", partitions=4, replicas=0)
            await here.set(b"other:1", b"stays")
            context = Context.at(tmp_path / "copy", spark)
            async with written(here, "here") as mine, written(there, "there") as theirs:
                with copying(settings, context):
                    await has_copied(there, "here")
                    await has_copied(here, "there")
                    await kill(one, 2)
                    await masters_without(client, here, 2)
                    await grown(mine, 100)
                    await grown(theirs, 100)
            # What was not copied when it stopped is, when it goes on.
            gone, later, *_ = KEYS
            await there.set(gone, b"earlier")
            await here.set(gone, b"deleted at once")
            await here.delete(gone)
            await here.set(later, b"earlier")
            await there.set(later, b"later")
            with copying(settings, Context.at(tmp_path / "copy", spark)):
                found = await are_equal(here, there)
            assert (found[gone].value, found[later].value) == (None, b"later")
            assert await there.get(b"other:1") is None
            progress = context.reported()
            assert progress.rows > 0 and "forth" in progress.note and "back" in progress.note

    run(body(), timeout_s=TIMEOUT_S)


@pytest.mark.timeout(TIMEOUT_S)
def test_changes_that_a_failover_lost_come_back_from_the_copy(
    make_cluster: MakeCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The replica of a partition was away when its last changes were made, and becomes the master
    without them."""
    one, other = make_cluster(3), make_cluster(1)
    settings = CopySettings(
        cluster=addresses(one),
        bucket="users",
        target_cluster=addresses(other),
        durability="none",  # One copy of two is all that is left in the end.
    )

    async def body() -> None:
        async with connected(one) as client, connected(other) as far:
            here = await client.create_bucket("users", partitions=6, replicas=1)
            there = await far.create_bucket("users", partitions=4, replicas=0)
            seats = await seats_of(client, here)
            number = next(
                at for at, seat in enumerate(seats) if (seat.active, seat.replicas) == (2, (3,))
            )
            changed, deleted, added = [k for k in KEYS if here.partition_of(k) == number][:3]
            for key in (changed, deleted):
                await here.set(key, b"old", durability="persist_to_majority")
            context = Context.at(tmp_path / "copy", spark)
            with copying(settings, context):
                await are_equal(here, there)
                await kill(one, 3)
                await here.set(changed, b"lost")
                await here.set(added, b"lost")
                await here.delete(deleted)
                lost = await are_equal(here, there)
                assert [lost[k].value for k in (changed, deleted, added)] == [
                    b"lost",
                    None,
                    b"lost",
                ]
                await kill(one, 2)
                await start(one, 3)
                await masters_without(client, here, 2)
                assert await are_equal(here, there) == lost

    run(body(), timeout_s=TIMEOUT_S)
