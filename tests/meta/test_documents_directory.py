"""Buckets and rebalances in the repository: compare-and-set, and who was first."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from millrace.core.documents.failover_request import FailoverRequest
from millrace.core.documents.map import BucketAttributes, BucketRecord
from millrace.core.documents.placement import Copies
from millrace.core.documents.rebalance import RebalanceRecord, RebalanceState
from millrace.core.documents.seats import new_bucket
from millrace.errors import MetadataOutcomeUnknown
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.types import NodeId

WANTED_OF_NEXT = RebalanceRecord((NodeId(1),), bucket=2)
COPIES = [Copies(NodeId(1), (NodeId(2),))] * 4


def bucket(name: str = "orders", revision: int = 1) -> BucketRecord:
    record = new_bucket(1, name, BucketAttributes(partitions=4), COPIES, 0)
    return msgspec.structs.replace(record, revision=revision)


def on_a_directory(body: Callable[[ClusterDirectory], Awaitable[None]]) -> None:
    async def work() -> None:
        await body(ClusterDirectory(MemoryRepository()))

    asyncio.run(work())


def test_a_bucket_is_made_once() -> None:
    async def body(directory: ClusterDirectory) -> None:
        assert await directory.read_bucket("orders") == (None, 0)
        version = await directory.replace_bucket(bucket(), 0)
        assert version
        assert await directory.replace_bucket(bucket(revision=9), 0) == 0
        assert await directory.read_bucket("orders") == (bucket(), version)

    on_a_directory(body)


def test_of_two_changes_one_is_first() -> None:
    async def body(directory: ClusterDirectory) -> None:
        version = await directory.replace_bucket(bucket(), 0)
        assert await directory.replace_bucket(bucket(revision=2), version) > version
        assert await directory.replace_bucket(bucket(revision=3), version) == 0

    on_a_directory(body)


def test_buckets_are_listed_and_removed_with_their_rebalance() -> None:
    async def body(directory: ClusterDirectory) -> None:
        for name in ("orders", "users"):
            await directory.replace_bucket(bucket(name), 0)
            await directory.replace_rebalance(name, RebalanceRecord(()), 0)
        assert [record.name for record in await directory.buckets()] == ["orders", "users"]
        await directory.remove_bucket("orders")
        assert [record.name for record in await directory.buckets()] == ["users"]
        assert await directory.read_rebalance("orders") == (None, 0)
        assert (await directory.read_rebalance("users"))[0] is not None

    on_a_directory(body)


def test_what_is_wanted_of_the_next_bucket_of_the_name_outlives_the_one_that_is_removed() -> None:
    async def work() -> None:
        directory = ClusterDirectory(Overtaken())
        assert await directory.replace_bucket(bucket(), 0)
        assert await directory.replace_rebalance("orders", RebalanceRecord((), bucket=1), 0)
        await directory.remove_bucket("orders")
        assert (await directory.read_rebalance("orders"))[0] == WANTED_OF_NEXT

    asyncio.run(work())


@pytest.mark.parametrize(
    ("wanted_of", "is_its_own"), [(1, True), (2, False), (0, True)], ids=["it", "another", "any"]
)
def test_the_last_rebalance_of_a_bucket_is_not_that_of_another_of_its_name(
    wanted_of: int, is_its_own: bool
) -> None:
    async def body(directory: ClusterDirectory) -> None:
        assert await directory.last_rebalance(bucket()) is None
        assert await directory.last_failover(bucket()) is None
        rebalance = RebalanceRecord((), bucket=wanted_of)
        failover = FailoverRequest((), bucket=wanted_of)
        assert await directory.replace_rebalance("orders", rebalance, 0)
        assert await directory.replace_failover("orders", failover, 0)
        assert await directory.last_rebalance(bucket()) == (rebalance if is_its_own else None)
        assert await directory.last_failover(bucket()) == (failover if is_its_own else None)

    on_a_directory(body)


def test_no_two_buckets_get_one_id() -> None:
    async def body(directory: ClusterDirectory) -> None:
        ids = await asyncio.gather(*(directory.next_bucket_id() for _ in range(20)))
        assert sorted(ids) == list(range(1, 21))
        assert await directory.next_log_id() == 1  # Logs are counted for themselves.

    on_a_directory(body)


def test_a_rebalance_that_somebody_stopped_is_not_written_over() -> None:
    async def body(directory: ClusterDirectory) -> None:
        running = RebalanceRecord((NodeId(1),), RebalanceState.RUNNING)
        assert await directory.replace_rebalance("orders", running, 0)
        _, version = await directory.read_rebalance("orders")
        stopped = RebalanceRecord((NodeId(1),), RebalanceState.STOPPED)
        assert await directory.replace_rebalance("orders", stopped, version)
        assert not await directory.replace_rebalance("orders", running, version)
        assert (await directory.read_rebalance("orders"))[0] == stopped

    on_a_directory(body)


class Overtaken(MemoryRepository):
    """When a bucket has gone, something is wanted of the next of its name at once."""

    async def delete(self, key: str, expected: int) -> None:
        await super().delete(key, expected)
        if key == keys.BUCKETS.key("orders"):
            value = keys.REBALANCES.encode(WANTED_OF_NEXT)
            await self.set(keys.REBALANCES.key("orders"), value, ANY_VERSION)


class Forgetful(MemoryRepository):
    """Does what it is asked to, and does not say so."""

    async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
        await super().set(key, value, expected, lease)
        raise MetadataOutcomeUnknown("the connection was lost")


def test_a_change_whose_answer_was_lost_is_looked_for() -> None:
    async def body() -> None:
        directory = ClusterDirectory(Forgetful())
        version = await directory.replace_bucket(bucket(), 0)
        assert version and (await directory.read_bucket("orders"))[1] == version
        assert await directory.replace_rebalance("orders", RebalanceRecord(()), 0)

    asyncio.run(body())
