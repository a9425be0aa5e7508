"""Partitions that move, nodes that go away, and what a client makes of it."""

import asyncio

import pytest

from millrace.client.bucket_map import MapRead, PartitionMap
from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.errors import (
    ChangeUnknown,
    MetadataUnavailable,
    PartitionUnavailable,
    UnknownBucket,
)
from millrace.types import NO_NODE, NodeId
from tests.support.document_backend import keys_of
from tests.support.served_bucket import (
    BUCKET,
    NODES,
    ServedBucket,
    run,
    until,
    with_bucket,
)

FIRST, SECOND = NODES
EVEN = PartitionId(0)
EVEN_KEY = next(keys_of([EVEN]))
SHORT_MS = 150


def test_a_partition_that_moved_is_found_by_reading_the_map_again() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(EVEN_KEY, b"1")
        served.move(EVEN, SECOND)
        found = await served.bucket.get(EVEN_KEY)
        assert found is not None and found.value == b"1"
        assert served.reads == 1

    with_bucket(work)


def test_many_requests_that_find_the_map_old_read_it_once() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(EVEN_KEY, b"1")
        served.move(EVEN, SECOND)
        await asyncio.gather(*(served.bucket.get(EVEN_KEY) for _ in range(100)))
        assert served.reads <= 2

    with_bucket(work)


def test_a_client_waits_until_the_repository_knows_the_new_master() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(EVEN_KEY, b"1")
        served.move(EVEN, SECOND, is_told=False)
        changing = asyncio.create_task(served.bucket.set(EVEN_KEY, b"2"))
        await until(lambda: served.reads >= 2)
        served.tell(EVEN, SECOND)
        assert (await changing).token.seq == 2

    with_bucket(work)


def test_a_partition_without_a_master_is_unavailable_and_nothing_happened() -> None:
    async def work(served: ServedBucket) -> None:
        served.tell(EVEN, NO_NODE)
        await served.bucket.asker.map.reload()
        with pytest.raises(PartitionUnavailable, match="it has no master") as raised:
            await served.bucket.set(EVEN_KEY, b"1", timeout_ms=SHORT_MS)
        assert raised.value.is_definite

    with_bucket(work)


def test_a_node_that_takes_no_changes_for_now_is_asked_again() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host(FIRST)
        host.is_congested = True
        changing = asyncio.create_task(served.bucket.set(EVEN_KEY, b"1"))
        await until(lambda: served.reads >= 1)
        host.is_congested = False
        assert (await changing).token.seq == 1

    with_bucket(work)


def test_a_read_survives_a_lost_connection() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(EVEN_KEY, b"1")
        await served.stop(FIRST)
        await served.start(FIRST)
        found = await served.bucket.get(EVEN_KEY)
        assert found is not None and found.value == b"1"

    with_bucket(work)


def test_a_change_whose_connection_is_lost_may_have_happened() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host(FIRST)
        host.is_everything_safe = False
        changing = asyncio.create_task(served.bucket.set(EVEN_KEY, b"1", durability="majority"))
        await until(lambda: bool(host.waits))
        await served.stop(FIRST)
        with pytest.raises(ChangeUnknown) as raised:
            await changing
        assert not raised.value.is_definite
        assert served.partition_of(EVEN_KEY).high == 1, "it was not sent twice"

    with_bucket(work)


def test_a_change_that_was_never_sent_is_tried_again() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(EVEN_KEY, b"1")
        await served.stop(FIRST)
        await until(lambda: served.bucket.asker.quick.current(served.fronts[FIRST].address) is None)
        changing = asyncio.create_task(served.bucket.set(EVEN_KEY, b"2"))
        await until(lambda: served.reads >= 1)
        await served.start(FIRST)
        assert (await changing).token.seq == 2

    with_bucket(work)


def test_a_dead_node_costs_its_own_partitions_alone() -> None:
    async def work(served: ServedBucket) -> None:
        odd_key = next(keys_of([1]))
        await served.stop(FIRST)
        await served.bucket.set(odd_key, b"1")
        with pytest.raises(PartitionUnavailable):
            await served.bucket.get(EVEN_KEY, timeout_ms=SHORT_MS)

    with_bucket(work)


# -- The map itself ---------------------------------------------------------------------------


def read_of(revision: int, master: int, id: int = 1) -> MapRead:
    seats = (Seat(revision, 1, NodeId(master)),)
    record = BucketRecord(id, BUCKET, BucketAttributes(1), seats, revision)
    return MapRead(record, {FIRST: "first:1", SECOND: "second:1"})


def reading(*reads: MapRead | Exception) -> PartitionMap:
    first, *rest = reads
    assert isinstance(first, MapRead)

    async def read_again() -> MapRead:
        found = rest.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return PartitionMap(first, read_again)


def test_an_older_map_is_not_taken() -> None:
    async def work() -> None:
        known = reading(read_of(5, FIRST), read_of(4, SECOND))
        await known.reload()
        assert known.masters == ["first:1"]

    run(work())


def test_a_bucket_of_the_same_name_is_another_one() -> None:
    async def work() -> None:
        known = reading(read_of(5, FIRST), read_of(1, SECOND, id=2))
        with pytest.raises(UnknownBucket, match="another one made"):
            await known.reload()

    run(work())


def test_everybody_who_waits_for_the_map_hears_that_it_cannot_be_read() -> None:
    async def work() -> None:
        known = reading(read_of(5, FIRST), MetadataUnavailable("away"), read_of(6, SECOND))
        both = await asyncio.gather(known.reload(), known.reload(), return_exceptions=True)
        assert [type(each) for each in both] == [MetadataUnavailable] * 2
        await known.reload()
        assert known.masters == ["second:1"]

    run(work())
