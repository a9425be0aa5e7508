"""Versions with the CAS they have elsewhere: what `Bucket` makes of them."""

import asyncio

import pytest

from millrace.core.documents.document import Cas, PartitionId
from millrace.core.documents.revisions import Revision
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import BadKey, DurabilityUnknown, MillraceError, UsageError, ValueTooLarge
from tests.support.document_backend import keys_of
from tests.support.served_bucket import (
    NODES,
    VALUE_BYTES_MAX,
    ServedBucket,
    end_waits,
    with_bucket,
)

FIRST, SECOND = NODES
EVEN = PartitionId(0)


def some_keys(count: int) -> list[bytes]:
    keys = keys_of(range(8))
    return [next(keys) for _ in range(count)]


def test_what_was_written_is_read_deletions_included() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(300)
        rows = [Revision(key, None if at % 3 else b"v", Cas(at + 1)) for at, key in enumerate(keys)]
        assert await served.bucket.write_revisions(rows) == [True] * 300
        found = await served.bucket.read_revisions([*keys, b"never"])
        assert list(found.values()) == rows
        assert set(await served.bucket.get_many(keys)) == set(keys[::3])

    with_bucket(work)


def test_of_each_it_is_told_whether_it_won() -> None:
    async def work(served: ServedBucket) -> None:
        changed = await served.bucket.set(b"a", b"mine", flags=3)
        older = Revision(b"a", b"theirs", Cas(changed.cas - 1))
        newer = Revision(b"b", b"theirs", changed.cas)
        assert await served.bucket.write_revisions([older, newer, newer]) == [False, True, False]
        found = await served.bucket.read_revisions([b"a", b"b"])
        assert found == {b"a": Revision(b"a", b"mine", changed.cas, 3), b"b": newer}

    with_bucket(work)


def test_a_bucket_that_gets_back_what_it_gave_changes_nothing() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(50)
        await served.bucket.set_many(dict.fromkeys(keys, b"v"))
        await served.bucket.delete_many(keys[:10])
        found = await served.bucket.read_revisions(keys)
        assert await served.bucket.write_revisions(list(found.values())) == [False] * 50

    with_bucket(work)


def test_nothing_asks_for_nothing() -> None:
    async def work(served: ServedBucket) -> None:
        assert await served.bucket.write_revisions([]) == []
        assert await served.bucket.read_revisions([]) == {}

    with_bucket(work)


def test_rows_of_a_partition_that_moved_go_there() -> None:
    async def work(served: ServedBucket) -> None:
        keys = some_keys(100)
        served.move(EVEN, SECOND)
        rows = [Revision(key, b"v", Cas(5)) for key in keys]
        assert await served.bucket.write_revisions(rows) == [True] * 100
        served.move(EVEN, FIRST)
        assert len(await served.bucket.read_revisions(keys)) == 100

    with_bucket(work)


def test_what_the_copies_did_not_confirm_is_offered_again() -> None:
    async def work(served: ServedBucket) -> None:
        host = served.host_of(b"a")
        host.is_everything_safe = False
        writing = asyncio.create_task(
            served.bucket.write_revisions([Revision(b"a", b"v", Cas(5))], durability="majority")
        )
        await end_waits(host, (WaitOutcome.WRONG_ID, WaitOutcome.OK))
        assert await writing == [False], "the first offer had written it"

    with_bucket(work)


def test_what_is_never_confirmed_is_told() -> None:
    async def work(served: ServedBucket) -> None:
        served.host_of(b"a").wait_outcome = WaitOutcome.TIMED_OUT
        with pytest.raises(DurabilityUnknown, match="did not confirm"):
            await served.bucket.write_revisions(
                [Revision(b"a", b"v", Cas(5))], durability="majority", timeout_ms=100
            )

    with_bucket(work)


@pytest.mark.parametrize(
    ("revision", "error", "words"),
    [
        pytest.param(Revision(b"", b"v", Cas(1)), BadKey, "1 to 250 bytes", id="no key"),
        pytest.param(Revision(b"k" * 251, b"v", Cas(1)), BadKey, "not 251", id="long key"),
        pytest.param(
            Revision(b"k", bytes(VALUE_BYTES_MAX + 1), Cas(1)), ValueTooLarge, "takes", id="large"
        ),
        pytest.param(Revision(b"k", b"v", Cas(0)), UsageError, "cas=0", id="no cas"),
        pytest.param(Revision(b"k", b"v", Cas(2**63)), UsageError, "cas=9", id="a cas too large"),
        pytest.param(Revision(b"k", b"v", Cas(2**63 - 1)), UsageError, "clocks", id="far ahead"),
        pytest.param(Revision(b"k", b"v", Cas(1), -1), UsageError, "flags=-1", id="flags"),
        pytest.param(Revision(b"k", b"v", Cas(1), 0, 2**32), UsageError, "expiry_s", id="expiry"),
        pytest.param(Revision(b"k", b"v", Cas(1), 0, 0, 256), UsageError, "datatype", id="type"),
    ],
)
def test_what_cannot_be_is_refused(
    revision: Revision, error: type[MillraceError], words: str
) -> None:
    async def work(served: ServedBucket) -> None:
        with pytest.raises(error, match=words):
            await served.bucket.write_revisions([revision])

    with_bucket(work)
