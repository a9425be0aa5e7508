"""What a task of a copy does to two buckets, and what a copy can be asked for, without Spark."""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.bucket import Bucket
from millrace.client.loop_thread import run
from millrace.core.documents.document import Cas, Document, FailoverId, Seq
from millrace.core.documents.revisions import Revision
from millrace.errors import UsageError
from millrace.spark.pipelines.copy import CopySettings, offering
from millrace.spark.pipelines.copy.job import passing_reason
from millrace.spark.pipelines.copy.offering import Counts, Offering, Place, Work
from tests.support.served_bucket import served_bucket

NOWHERE = Place("nowhere", "none")
WORK = Work(NOWHERE, NOWHERE, None, True)
ONE_WAY = Work(NOWHERE, NOWHERE, None, False)
K = b"k"


class Pair:
    """A bucket here and one there."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.served = [run(stack.enter_async_context(served_bucket())) for _ in range(2)]
        self.here, self.there = (served.bucket for served in self.served)
        self._history: list[Document] = []

    def close(self) -> None:
        run(self._stack.aclose())

    def lose(self, seq: int) -> None:
        """A failover here: of the key's partition only what is up to `seq` is left."""
        served = self.served[0]
        served.fail_over(self.here.partition_of(K), Seq(seq), FailoverId(0xDEAD), self._history)

    def set_here(self, value: bytes | None) -> Revision:
        """A change that a failover may go back to, or lose."""
        run(self.here.delete(K) if value is None else self.here.set(K, value))
        self._history.append(self.served[0].partition_of(K).table[K])
        return held(self.here)[K]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(AsyncExitStack())
    yield pair
    pair.close()


def row(revision: Revision, cause: str = "mutation") -> dict[str, Any]:
    """As `millrace-changes` gives it."""
    is_gone = revision.value is None
    return {
        "key": revision.key,
        "value": revision.value,
        "_change_type": "delete" if is_gone else "update_postimage",
        "cas": revision.cas,
        "cause": cause,
        "flags": revision.flags,
        "expiry": revision.expiry_s,
        "datatype": revision.datatype,
    }


SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("_change_type", pa.string()),
        ("cas", pa.int64()),
        ("cause", pa.string()),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("datatype", pa.int32()),
    ]
)


def offer(source: Bucket, target: Bucket, *rows: dict[str, Any], work: Work = WORK) -> Counts:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
    return Offering(work, source, target).take([batch])


def held(bucket: Bucket, *keys: bytes) -> dict[bytes, Revision]:
    return run(bucket.read_revisions(keys or (K,)))


# -- Offering -----------------------------------------------------------------------------------


def test_changes_and_deletions_keep_their_cas_flags_expiry_and_datatype(pair: Pair) -> None:
    revisions = [Revision(b"a", b"1", Cas(5), 7, 2**31, 3), Revision(b"b", None, Cas(6))]
    counts = offer(pair.here, pair.there, *map(row, revisions))
    assert counts == Counts(offered=2, written=2)
    assert list(held(pair.there, b"a", b"b").values()) == revisions


def test_what_comes_back_ends_there(pair: Pair) -> None:
    run(pair.here.set(K, b"mine"))
    mine = held(pair.here)[K]
    assert offer(pair.here, pair.there, row(mine)).written == 1
    assert offer(pair.there, pair.here, row(held(pair.there)[K])).written == 0
    assert offer(pair.here, pair.there, row(mine)).written == 0, "and again"


def test_only_keys_that_match_are_offered(pair: Pair) -> None:
    keys = [b"user:1", b"order:1", b"user:22", b"\xffuser:3"]
    rows = [row(Revision(key, b"v", Cas(5))) for key in keys]
    work = Work(NOWHERE, NOWHERE, None, True, rb"^user:\d+$")
    assert offer(pair.here, pair.there, *rows, work=work).offered == 2
    assert set(held(pair.there, *keys)) == {b"user:1", b"user:22"}


def test_large_values_go_in_pieces(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "PIECE_BYTES", 100)
    monkeypatch.setattr(offering, "PIECE_ROWS", 7)
    revisions = [Revision(b"k%d" % at, bytes(at), Cas(5)) for at in range(60)]
    assert offer(pair.here, pair.there, *map(row, revisions)).written == 60


WRITES = st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), st.booleans()))


@settings(max_examples=15, deadline=None)
@given(WRITES)
def test_two_buckets_that_are_changed_at_once_become_equal(
    writes: Sequence[tuple[bool, bytes, bool]],
) -> None:
    pair = Pair(AsyncExitStack())
    try:
        for number, (is_here, key, is_deletion) in enumerate(writes):
            bucket = pair.here if is_here else pair.there
            run(bucket.delete(key) if is_deletion else bucket.set(key, b"%d" % number))
        keys = (b"a", b"b")
        for source, target in ((pair.here, pair.there), (pair.there, pair.here)):
            offer(source, target, *map(row, held(source, *keys).values()))
        assert held(pair.here, *keys) == held(pair.there, *keys)
    finally:
        pair.close()


# -- After a failover ---------------------------------------------------------------------------


@pytest.mark.parametrize("lost_value", [b"lost", None], ids=["a change", "a deletion"])
def test_what_the_source_lost_comes_back_from_the_target(
    pair: Pair, lost_value: bytes | None
) -> None:
    pair.set_here(b"old")
    lost = pair.set_here(lost_value)
    offer(pair.here, pair.there, row(lost))
    pair.lose(1)
    old = held(pair.here)[K]
    assert old.value == b"old"
    counts = offer(pair.here, pair.there, row(old, "rollback"))
    assert counts == Counts(offered=1, written=0, rolled_back=1, given_back=1)
    assert held(pair.here)[K] == held(pair.there)[K] == lost
    again = offer(pair.here, pair.there, row(old, "rollback"))
    assert again.given_back == 0, "a batch that comes again changes nothing"


def test_a_document_that_the_source_has_no_more_comes_back_too(pair: Pair) -> None:
    lost = pair.set_here(b"lost")
    offer(pair.here, pair.there, row(lost))
    pair.lose(0)
    assert held(pair.here) == {}
    counts = offer(pair.here, pair.there, row(Revision(K, None, Cas(0)), "rollback"))
    assert counts == Counts(offered=0, written=0, rolled_back=1, given_back=1)
    assert held(pair.here)[K] == held(pair.there)[K] == lost


def test_what_the_source_was_told_since_stays(pair: Pair) -> None:
    pair.set_here(b"old")
    lost = pair.set_here(b"lost")
    offer(pair.here, pair.there, row(lost))
    pair.lose(1)
    run(pair.here.set(K, b"new"))
    new = held(pair.here)[K]
    offer(pair.here, pair.there, row(new, "rollback"))
    assert held(pair.here)[K] == held(pair.there)[K] == new


def test_nothing_is_written_to_the_source_if_that_is_not_wanted(pair: Pair) -> None:
    lost = pair.set_here(b"lost")
    offer(pair.here, pair.there, row(lost))
    pair.lose(0)
    counts = offer(pair.here, pair.there, row(Revision(K, None, Cas(0)), "rollback"), work=ONE_WAY)
    assert (counts.rolled_back, counts.given_back) == (1, 0)
    assert held(pair.here) == {} and held(pair.there)[K] == lost


# -- Settings -----------------------------------------------------------------------------------

HERE = {"cluster": "here:1", "bucket": "users", "target_cluster": "there:1"}


def test_the_target_has_the_same_name_if_it_is_not_said() -> None:
    assert CopySettings(**HERE).target_bucket == "users"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"target_cluster": "here:1"}, "is the bucket itself", id="itself"),
        pytest.param({"key_pattern": "("}, "not a regular expression", id="pattern"),
        pytest.param({"key_prefix": "x" * 251}, "at most 250", id="prefix"),
        pytest.param({"durability": "much"}, "give one of none, majority", id="durability"),
        pytest.param({"changes_per_batch": 0}, "at least 1", id="batch"),
        pytest.param({"interval_ms": -1}, "at least 0", id="interval"),
        pytest.param({"rollback_keys": -1}, "at least 0", id="rollback keys"),
    ],
)
def test_what_cannot_be_asked_for(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        CopySettings(**{**HERE, **given})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "at task 3\nmillrace.errors.PartitionUnavailable: nobody served it\n  at x",
            "nobody served it",
            id="a partition without a master",
        ),
        pytest.param(
            "millrace.errors.DurabilityUnknown: copies are away", "copies are away", id="copies"
        ),
        pytest.param(
            "SparkException: Python worker failed to connect back.",
            "Python worker failed to connect back",
            id="a busy machine",
        ),
        pytest.param("millrace.errors.ValueTooLarge: too large", None, id="a value"),
        pytest.param("java.lang.OutOfMemoryError", None, id="something else"),
    ],
)
def test_only_what_passes_is_waited_for(text: str, reason: str | None) -> None:
    assert passing_reason(text) == reason
