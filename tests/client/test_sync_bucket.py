"""The same bucket without `await`."""

import inspect
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from millrace.client.bucket import Bucket
from millrace.client.loop_thread import run
from millrace.client.sync_bucket import SyncBucket
from millrace.errors import CasMismatch, TimedOut
from tests.support.served_bucket import served_bucket


@pytest.fixture
def bucket() -> Iterator[SyncBucket]:
    stack = AsyncExitStack()
    served = run(stack.enter_async_context(served_bucket()))
    yield SyncBucket(served.bucket)
    run(stack.aclose())


def test_documents_are_set_and_read(bucket: SyncBucket) -> None:
    changed = bucket.set(b"a", b"1", durability="majority")
    found = bucket.get(b"a")
    assert found is not None and (found.value, found.cas) == (b"1", changed.cas)
    bucket.wait(changed.token)


def test_many_documents_at_once(bucket: SyncBucket) -> None:
    bucket.set_many({b"a": b"1", b"b": b"2"})
    assert bucket.delete_many([b"a", b"c"]) == [b"a"]
    assert list(bucket.get_many([b"a", b"b"])) == [b"b"]


def test_errors_come_through(bucket: SyncBucket) -> None:
    bucket.set(b"a", b"1")
    with pytest.raises(CasMismatch):
        bucket.replace(b"a", b"2", cas=1)


def test_changes_are_taken_until_a_finite_consumer_ends(bucket: SyncBucket) -> None:
    documents = {b"k%d" % number: b"1" for number in range(20)}
    bucket.set_many(documents)
    with bucket.changes("test:1", is_finite=True) as changes:
        taken = {each.key: each.value for batch in changes for each in batch.documents}
        assert taken == documents
        assert sum(offset.seq for offset in changes.offsets.values()) == 20
        assert all(lag.changes == 0 for lag in changes.lag().values())


def test_a_wait_for_changes_that_was_given_up_loses_none(bucket: SyncBucket) -> None:
    with bucket.changes("test:1") as changes:
        with pytest.raises(TimedOut):
            changes.take(timeout_ms=1)
        bucket.set(b"a", b"1")
        batch = changes.take()
        assert batch is not None and [each.key for each in batch.documents] == [b"a"]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, member in inspect.getmembers(Bucket, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "change"
    ],
)
def test_every_operation_is_there_with_the_same_arguments(name: str) -> None:
    of_bucket = inspect.signature(getattr(Bucket, name))
    of_sync = inspect.signature(getattr(SyncBucket, name))
    assert of_sync == of_bucket
