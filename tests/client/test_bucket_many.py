"""Many documents in one call."""

import asyncio

import pytest

from millrace.client import bucket_many
from millrace.core.documents.document import PartitionId
from millrace.errors import ChangeUnknown, PartitionUnavailable, ValueTooLarge
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX
from millrace.types import NO_NODE
from tests.support.document_backend import keys_of
from tests.support.served_bucket import (
    NODES,
    VALUE_BYTES_MAX,
    ServedBucket,
    until,
    with_bucket,
)

FIRST, SECOND = NODES
EVEN, ODD = PartitionId(0), PartitionId(1)


def some_keys(count: int) -> list[bytes]:
    keys = keys_of(range(8))
    return [next(keys) for _ in range(count)]


def test_what_was_set_together_is_got_together() -> None:
    async def work(served: ServedBucket) -> None:
        documents = {key: b"value of " + key for key in some_keys(500)}
        made = await served.bucket.set_many(documents, flags=3)
        found = await served.bucket.get_many([*documents, b"missing"])
        assert {key: each.value for key, each in found.items()} == documents
        assert {key: each.cas for key, each in found.items()} == made
        assert {each.flags for each in found.values()} == {3}

    with_bucket(work)


def test_of_a_key_that_is_given_twice_the_last_value_stays() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
        found = await served.bucket.get_many([b"a", b"b"])
        assert [found[key].value for key in (b"a", b"b")] == [b"2", b"1"]

    with_bucket(work)


def test_nothing_asks_for_nothing() -> None:
    async def work(served: ServedBucket) -> None:
        assert await served.bucket.get_many([]) == {}
        assert await served.bucket.set_many({}) == {}
        assert await served.bucket.delete_many([]) == []

    with_bucket(work)


def test_those_that_existed_are_deleted() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(20)
        await served.bucket.set_many(dict.fromkeys(keys[:10], b"1"))
        assert await served.bucket.delete_many(keys) == keys[:10]
        assert await served.bucket.get_many(keys) == {}

    with_bucket(work)


def test_each_node_is_asked_once() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(200)
        await served.bucket.set_many(dict.fromkeys(keys, b"1"))
        asked = [front.counts.read_bytes for front in served.fronts.values()]
        await served.bucket.get_many(keys)
        frames = [
            front.counts.read_bytes - before
            for front, before in zip(served.fronts.values(), asked, strict=True)
        ]
        per_key = 2 + 4 + max(map(len, keys))  # Partition, offset, key.
        assert all(size < 24 + 100 * (per_key + 8) for size in frames)

    with_bucket(work)


def test_large_documents_go_in_several_requests() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(12)
        value = bytes(bucket_many.CHUNK_BYTES // 2)
        await served.bucket.set_many(dict.fromkeys(keys, value))
        found = await served.bucket.get_many(keys)
        assert len(found) == 12 and all(each.value == value for each in found.values())

    with_bucket(work)


def test_what_does_not_fit_into_one_answer_is_asked_for_in_parts() -> None:
    async def work(served: ServedBucket) -> None:
        of_one_node = keys_of([EVEN])
        keys = [next(of_one_node) for _ in range(DOCUMENT_FRAME_BYTES_MAX // VALUE_BYTES_MAX + 8)]
        value = bytes(VALUE_BYTES_MAX)
        await served.bucket.set_many(dict.fromkeys(keys, value))
        found = await served.bucket.get_many(keys)
        assert list(found) == keys and all(each.value == value for each in found.values())

    with_bucket(work)


def test_rows_of_a_partition_that_moved_are_asked_for_there() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(100)
        await served.bucket.set_many(dict.fromkeys(keys, b"1"))
        served.move(EVEN, SECOND)
        await served.bucket.set_many(dict.fromkeys(keys, b"2"))
        found = await served.bucket.get_many(keys)
        assert len(found) == 100 and {each.value for each in found.values()} == {b"2"}

    with_bucket(work)


def test_what_failed_is_told_for_each_document_in_order() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(50)
        served.tell(EVEN, NO_NODE)
        await served.bucket.asker.map.reload()
        with pytest.raises(PartitionUnavailable, match="of 50 documents failed") as raised:
            await served.bucket.set_many(dict.fromkeys(keys, b"1"), timeout_ms=150)
        outcomes = raised.value.outcomes
        failed = [isinstance(each, PartitionUnavailable) for each in outcomes]
        assert failed == [served.bucket.partition_of(key) == EVEN for key in keys]
        assert raised.value.is_definite

    with_bucket(work)


def test_what_may_have_happened_is_told_before_what_did_not() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host(FIRST)
        host.is_everything_safe = False
        served.tell(ODD, NO_NODE)
        await served.bucket.asker.map.reload()
        keys = sorted(some_keys(50), key=lambda key: served.bucket.partition_of(key) != ODD)
        changing = asyncio.create_task(
            served.bucket.set_many(dict.fromkeys(keys, b"1"), durability="majority", timeout_ms=400)
        )
        await until(lambda: bool(host.waits))
        await served.stop(FIRST)
        with pytest.raises(ChangeUnknown) as raised:
            await changing
        assert not raised.value.is_definite
        assert len(raised.value.outcomes) == 50
        kinds = [type(each) for each in raised.value.outcomes]
        assert kinds[0] is PartitionUnavailable and {ChangeUnknown, int} <= set(kinds)

    with_bucket(work)


def test_a_value_that_is_too_large_stops_the_call_before_it_begins() -> None:
    async def work(served: ServedBucket) -> None:
        documents = {b"a": b"1", b"b": bytes(VALUE_BYTES_MAX + 1)}
        with pytest.raises(ValueTooLarge):
            await served.bucket.set_many(documents)
        assert await served.bucket.get_many(documents) == {}

    with_bucket(work)
