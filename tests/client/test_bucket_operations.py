"""What operations on documents give back, and what they raise."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.client.bucket import Bucket
from millrace.client.bucket_results import Found
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import (
    BadKey,
    CasMismatch,
    DocumentExists,
    DocumentMissing,
    DurabilityUnknown,
    MillraceError,
    NotACounter,
    UsageError,
    ValueTooLarge,
)
from tests.support.document_backend import keys_of
from tests.support.served_bucket import NODES, VALUE_BYTES_MAX, ServedBucket, until, with_bucket

KEY = b"ann"


def test_a_document_is_read_as_it_was_set() -> None:
    async def work(served: ServedBucket) -> None:
        changed = await served.bucket.set(KEY, b"1", flags=7)
        assert await served.bucket.get(KEY) == Found(b"1", changed.cas, 7)

    with_bucket(work)


def test_a_document_that_is_not_there_is_none() -> None:
    async def work(served: ServedBucket) -> None:
        assert await served.bucket.get(KEY) is None
        assert await served.bucket.get_and_touch(KEY, 60) is None
        assert await served.bucket.delete(KEY) is None
        assert not await served.bucket.touch(KEY, 60)

    with_bucket(work)


def test_keys_of_every_partition_find_their_node() -> None:
    async def work(served: ServedBucket) -> None:
        keys = keys_of(range(8))
        for key in [next(keys) for _ in range(50)]:
            await served.bucket.set(key, key)
            assert served.partition_of(key).peek(key) is not None

    with_bucket(work)


def test_the_token_names_the_change() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(KEY, b"1")
        changed = await served.bucket.set(KEY, b"2")
        partition = served.partition_of(KEY)
        token = changed.token
        assert (token.partition, token.id) == (partition.number, partition.log.newest)
        assert (token.seq, token.cas) == (partition.high, changed.cas)

    with_bucket(work)


def test_append_and_prepend_go_around_what_is_there() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(KEY, b"b")
        await served.bucket.append(KEY, b"c")
        await served.bucket.prepend(KEY, b"a")
        found = await served.bucket.get(KEY)
        assert found is not None and found.value == b"abc"

    with_bucket(work)


def test_a_counter_begins_where_it_is_told_and_stops_at_zero() -> None:
    async def work(served: ServedBucket) -> None:
        assert (await served.bucket.increment(KEY, 5, initial=10)).number == 10
        assert (await served.bucket.increment(KEY, 5)).number == 15
        counted = await served.bucket.decrement(KEY, 100)
        assert (counted.number, counted.token.cas) == (0, counted.cas)

    with_bucket(work)


def test_a_document_expires_when_its_time_is_over() -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(KEY, b"1", expiry_s=100)
        await served.bucket.touch(KEY, 1_000)
        for node in NODES:
            served.host(node).now_offset_us = 500 * 1_000_000
        assert await served.bucket.get(KEY) is not None
        for node in NODES:
            served.host(node).now_offset_us = 1_500 * 1_000_000
        assert await served.bucket.get(KEY) is None

    with_bucket(work)


Operation = Callable[[Bucket], Awaitable[object]]


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        pytest.param(lambda b: b.replace(KEY, b"1"), DocumentMissing, id="replace"),
        pytest.param(lambda b: b.append(KEY, b"1"), DocumentMissing, id="append"),
        pytest.param(lambda b: b.prepend(KEY, b"1"), DocumentMissing, id="prepend"),
        pytest.param(lambda b: b.increment(KEY), DocumentMissing, id="increment"),
        pytest.param(lambda b: b.set(KEY, b"1", cas=7), CasMismatch, id="set-with-cas"),
        pytest.param(lambda b: b.delete(KEY, cas=7), CasMismatch, id="delete-with-cas"),
    ],
)
def test_nothing_is_changed_where_nothing_is(
    operation: Operation, error: type[MillraceError]
) -> None:
    async def work(served: ServedBucket) -> None:
        with pytest.raises(error) as raised:
            await operation(served.bucket)
        assert raised.value.is_definite
        assert served.partition_of(KEY).high == 0

    with_bucket(work)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        pytest.param(lambda b: b.add(KEY, b"1"), DocumentExists, id="add"),
        pytest.param(lambda b: b.set(KEY, b"1", cas=7), CasMismatch, id="set"),
        pytest.param(lambda b: b.replace(KEY, b"1", cas=7), CasMismatch, id="replace"),
        pytest.param(lambda b: b.append(KEY, b"1", cas=7), CasMismatch, id="append"),
        pytest.param(lambda b: b.delete(KEY, cas=7), CasMismatch, id="delete"),
        pytest.param(lambda b: b.increment(KEY), NotACounter, id="increment"),
        pytest.param(
            lambda b: b.set(KEY, bytes(VALUE_BYTES_MAX + 1)), ValueTooLarge, id="too-large"
        ),
        pytest.param(
            lambda b: b.append(KEY, bytes(VALUE_BYTES_MAX)), ValueTooLarge, id="grown-too-large"
        ),
    ],
)
def test_a_refused_change_leaves_the_document(
    operation: Operation, error: type[MillraceError]
) -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set(KEY, b"ann")
        with pytest.raises(error) as raised:
            await operation(served.bucket)
        assert raised.value.is_definite
        found = await served.bucket.get(KEY)
        assert found is not None and found.value == b"ann"

    with_bucket(work)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        pytest.param(lambda b: b.get(b""), BadKey, id="empty-key"),
        pytest.param(lambda b: b.get(bytes(251)), BadKey, id="long-key"),
        pytest.param(lambda b: b.get("ann"), BadKey, id="text-key"),
        pytest.param(lambda b: b.set(KEY, "1"), UsageError, id="text-value"),
        pytest.param(lambda b: b.set(KEY, b"", expiry_s=-1), UsageError, id="negative-expiry"),
        pytest.param(lambda b: b.set(KEY, b"", flags=2**32), UsageError, id="large-flags"),
        pytest.param(lambda b: b.increment(KEY, -1), UsageError, id="negative-delta"),
        pytest.param(lambda b: b.set(KEY, b"", cas=-1), UsageError, id="negative-cas"),
        pytest.param(lambda b: b.delete(KEY, cas=2**64), UsageError, id="large-cas"),
        pytest.param(lambda b: b.set(KEY, b"", durability="most"), UsageError, id="durability"),
        pytest.param(lambda b: b.get_many([KEY, b""]), BadKey, id="key-of-many"),
        pytest.param(lambda b: b.set_many({b"": b""}), BadKey, id="set-many"),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    operation: Operation, error: type[MillraceError]
) -> None:
    async def work(served: ServedBucket) -> None:
        with pytest.raises(error):
            await operation(served.bucket)
        assert all(front.counts.read_bytes == 0 for front in served.fronts.values())

    with_bucket(work)


@pytest.mark.parametrize(
    "level", ["majority", "majority_and_persist_on_master", "persist_to_majority"]
)
def test_a_durable_change_is_answered_when_the_node_says_it_is_safe(level: str) -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host_of(KEY)
        host.is_everything_safe = False
        setting = asyncio.create_task(served.bucket.set(KEY, b"1", durability=level))
        await until(lambda: bool(host.waits))
        assert not setting.done()
        _, condition, future = host.waits[0]
        assert condition.name == level.upper()
        future.set_result(WaitOutcome.OK)
        assert (await setting).token.seq == 1

    with_bucket(work)


def test_others_are_served_while_a_change_waits_to_be_safe() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host_of(KEY)
        host.is_everything_safe = False
        setting = asyncio.create_task(served.bucket.set(KEY, b"1", durability="majority"))
        await until(lambda: bool(host.waits))
        found = await served.bucket.get(KEY)
        assert found is not None and not setting.done()
        setting.cancel()

    with_bucket(work)


def test_a_change_that_may_not_last_says_so() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host_of(KEY)
        host.is_everything_safe = False
        setting = asyncio.create_task(served.bucket.set(KEY, b"1", durability="majority"))
        await until(lambda: bool(host.waits))
        host.waits[0][2].set_result(WaitOutcome.TIMED_OUT)
        with pytest.raises(DurabilityUnknown) as raised:
            await setting
        assert not raised.value.is_definite

    with_bucket(work)
