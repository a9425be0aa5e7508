"""Making, finding and deleting buckets in the repository."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace.client import bucket_creating
from millrace.core.documents.document import FailoverId, PartitionState
from millrace.core.documents.map import BucketAttributes, BucketRecord
from millrace.core.documents.seats import promoted
from millrace.core.messages import Message
from millrace.core.messages.documents import (
    BucketsDescribed,
    DescribeBuckets,
    HostedBucket,
    HostedPartition,
)
from millrace.errors import (
    BucketExists,
    BucketNotReady,
    MetadataOutcomeUnknown,
    NoAnswer,
    TooFewNodes,
    UnknownBucket,
    UsageError,
)
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.types import NO_NODE, NodeId, NodeInfo, Role
from tests.support.served_bucket import run

NAME = "users"
SMALL = BucketAttributes(partitions=6, replicas=1)


async def directory_of(
    *nodes: NodeInfo, live: int | None = None, repository: MemoryRepository | None = None
) -> ClusterDirectory:
    directory = ClusterDirectory(repository or MemoryRepository())
    for node in nodes:
        await directory.repository.set(
            keys.NODES.key(node.id), keys.NODES.encode(node), ANY_VERSION
        )
    for node in nodes[:live]:
        value = keys.LIVE.encode(keys.LiveNode(node.id))
        await directory.repository.set(keys.LIVE.key(node.id), value, ANY_VERSION)
    return directory


def node(id: int, *roles: Role) -> NodeInfo:
    chosen = roles or (Role.DOCUMENTS,)
    return NodeInfo(NodeId(id), f"host:{id}", roles=chosen, documents=f"documents:{id}")


async def keep(directory: ClusterDirectory, partitions: int) -> None:
    """As the keeper does: the first of these partitions get their wanted masters."""
    record: BucketRecord | None = None
    version = 0
    while record is None:
        record, version = await directory.read_bucket(NAME)
        await asyncio.sleep(0)
    seats = [
        promoted(seat, seat.replicas[0], FailoverId(number + 1)) if number < partitions else seat
        for number, seat in enumerate(record.seats)
    ]
    made = msgspec.structs.replace(record, seats=tuple(seats), revision=record.revision + 1)
    assert await directory.replace_bucket(made, version)


Late = Callable[[HostedBucket], HostedBucket]


def with_partitions(**changes: Any) -> Late:
    def late(bucket: HostedBucket) -> HostedBucket:
        held = tuple(msgspec.structs.replace(each, **changes) for each in bucket.partitions)
        return msgspec.structs.replace(bucket, partitions=held)

    return late


def not_serving(bucket: HostedBucket) -> HostedBucket:
    return msgspec.structs.replace(bucket, is_serving=False)


def silent(bucket: HostedBucket) -> HostedBucket:
    raise NoAnswer("node 2 does not answer")


not_ordered = with_partitions(is_ordered=False)


class Nodes:
    """What they say of the bucket: the masters serve what the repository says, from their second
    answer on, but for node 2, which may be late."""

    def __init__(self, directory: ClusterDirectory, late: Late | None) -> None:
        self._directory = directory
        self._late = late
        self._asked: set[NodeId] = set()

    async def ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        assert isinstance(message, DescribeBuckets)
        record, _ = await self._directory.read_bucket(NAME)
        assert record is not None and record.id == message.bucket
        held = tuple(
            HostedPartition(number, PartitionState.ACTIVE, 1, is_ordered=True)
            for number in message.partitions
            if record.seats[number].active == node
        )
        bucket = HostedBucket(record.id, 1, True, True, held)
        if node not in self._asked:
            bucket = not_ordered(bucket)
        elif node == 2 and self._late is not None:
            bucket = self._late(bucket)
        self._asked.add(node)
        return BucketsDescribed((bucket,))


async def create(
    directory: ClusterDirectory,
    name: str,
    attributes: BucketAttributes,
    timeout_ms: int,
    late: Late | None = None,
) -> BucketRecord:
    ask = Nodes(directory, late).ask
    return await bucket_creating.create(directory, ask, name, attributes, timeout_ms)


def test_a_bucket_is_made_when_every_partition_has_a_master() -> None:
    async def work() -> None:
        directory = await directory_of(*map(node, (1, 2, 3)))
        keeping = asyncio.create_task(keep(directory, SMALL.partitions))
        record = await create(directory, NAME, SMALL, 10_000)
        await keeping
        assert record.attributes == SMALL
        masters = [seat.active for seat in record.seats]
        assert sorted(masters) == [1, 1, 2, 2, 3, 3]
        assert all(len(seat.replicas) == 1 for seat in record.seats)

    run(work())


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(not_ordered, id="it has no order yet"),
        pytest.param(with_partitions(is_confirmed=False), id="nor one under its lease"),
        pytest.param(with_partitions(state=PartitionState.REPLICA), id="it is a replica"),
        pytest.param(not_serving, id="it serves nobody"),
        pytest.param(silent, id="it does not answer"),
    ],
)
def test_one_whose_masters_do_not_serve_in_time_is_told(late: Late) -> None:
    """The keeper has written down who they are, and they have not heard of it."""

    async def work() -> None:
        directory = await directory_of(*map(node, (1, 2, 3)))
        keeping = asyncio.create_task(keep(directory, SMALL.partitions))
        with pytest.raises(BucketNotReady, match="2 of 6 partitions are not served"):
            await create(directory, NAME, SMALL, 200, late)
        await keeping

    run(work())


def test_one_that_is_not_ready_in_time_is_told_and_stays() -> None:
    async def work() -> None:
        directory = await directory_of(node(1), node(2))
        keeping = asyncio.create_task(keep(directory, 4))
        with pytest.raises(BucketNotReady, match="2 of 6 partitions") as raised:
            await create(directory, NAME, SMALL, 100)
        await keeping
        assert not raised.value.is_definite
        record, _ = await directory.read_bucket(NAME)
        assert record is not None and record.seats[5].active == NO_NODE

    run(work())


def test_a_name_is_given_once() -> None:
    async def work() -> None:
        directory = await directory_of(node(1), node(2))
        with pytest.raises(BucketNotReady):
            await create(directory, NAME, SMALL, 1)
        with pytest.raises(BucketExists):
            await create(directory, NAME, SMALL, 1)

    run(work())


def test_one_whose_answer_was_lost_and_that_has_masters_since_is_ours() -> None:
    class Forgetful(MemoryRepository):
        """Loses the answer to the making of a bucket, and gives the keeper time to find it."""

        async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
            entry = await super().set(key, value, expected, lease)
            if key == keys.BUCKETS.key(NAME) and expected == 0:
                await keep(ClusterDirectory(self), SMALL.partitions)
                raise MetadataOutcomeUnknown("no answer")
            return entry

    async def work() -> None:
        directory = await directory_of(node(1), node(2), repository=Forgetful())
        record = await create(directory, NAME, SMALL, 10_000)
        assert record.id == 1
        with pytest.raises(BucketExists):
            await create(directory, NAME, SMALL, 1)

    run(work())


def test_buckets_have_ids_of_their_own() -> None:
    async def work() -> None:
        directory = await directory_of(node(1), node(2))
        for name in ("a", "b"):
            with pytest.raises(BucketNotReady):
                await create(directory, name, SMALL, 1)
        await bucket_creating.delete(directory, "b")
        with pytest.raises(BucketNotReady):
            await create(directory, "b", SMALL, 1)
        assert [record.id for record in await directory.buckets()] == [1, 3]

    run(work())


@pytest.mark.parametrize(
    ("nodes", "live"),
    [
        pytest.param([node(1)], None, id="one-node"),
        pytest.param([node(1), node(2)], 1, id="one-lives"),
        pytest.param([node(1), node(2, Role.STORAGE)], None, id="one-has-the-role"),
    ],
)
def test_copies_need_nodes_that_live_and_hold_documents(
    nodes: list[NodeInfo], live: int | None
) -> None:
    async def work() -> None:
        directory = await directory_of(*nodes, live=live)
        with pytest.raises(TooFewNodes, match="and 1 live"):
            await create(directory, NAME, SMALL, 1)
        assert await directory.buckets() == []

    run(work())


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        pytest.param("", {}, id="no-name"),
        pytest.param("a/b", {}, id="name"),
        pytest.param("a" * 101, {}, id="long-name"),
        pytest.param(NAME, {"partitions": 0}, id="no-partitions"),
        pytest.param(NAME, {"partitions": 1025}, id="too-many-partitions"),
        pytest.param(NAME, {"replicas": 4}, id="too-many-replicas"),
        pytest.param(NAME, {"memory_bytes": 1}, id="no-memory"),
        pytest.param(NAME, {"value_bytes_max": 2**30}, id="values-beyond-a-frame"),
        pytest.param(NAME, {"colour": "red"}, id="no-such-attribute"),
        pytest.param(NAME, {"replicas": "1"}, id="text"),
        pytest.param(NAME, {"replicas": True}, id="boolean"),
    ],
)
def test_what_cannot_be_chosen(name: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        bucket_creating.choose(name, attributes)


def test_what_is_not_chosen_is_as_usual() -> None:
    assert bucket_creating.choose(NAME, {"replicas": 2}) == BucketAttributes(replicas=2)


def test_the_map_has_the_addresses_of_the_documents_ports() -> None:
    async def work() -> None:
        directory = await directory_of(node(1), node(2))
        with pytest.raises(UnknownBucket):
            await bucket_creating.read_map(directory, NAME)
        with pytest.raises(BucketNotReady):
            await create(directory, NAME, SMALL, 1)
        read = await bucket_creating.read_map(directory, NAME)
        assert read.addresses == {1: "documents:1", 2: "documents:2"}

    run(work())


def test_a_deleted_bucket_is_unknown() -> None:
    async def work() -> None:
        directory = await directory_of(node(1), node(2))
        with pytest.raises(BucketNotReady):
            await create(directory, NAME, SMALL, 1)
        await bucket_creating.delete(directory, NAME)
        with pytest.raises(UnknownBucket):
            await bucket_creating.delete(directory, NAME)

    run(work())
