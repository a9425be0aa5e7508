"""What the bucket sink takes, and how a task writes it, without Spark's Java."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.client.bucket import Bucket
from millrace.client.loop_thread import run
from millrace.core.documents.revisions import Revision
from millrace.core.documents.waits import WaitOutcome
from millrace.errors import DurabilityUnknown, UsageError
from millrace.spark.buckets import writing
from millrace.spark.buckets.columns import Change, Rows, check_schema
from millrace.spark.buckets.options import BucketOptions, Conflict, OnError, parse
from millrace.spark.buckets.writing import Writing
from tests.spark.served_documents import ending_waits, served
from tests.support.served_bucket import ServedBucket

__all__ = ["served"]

HERE = {"cluster": "127.0.0.1:7701", "bucket": "users"}
OVERWRITE = BucketOptions("here", "users")
REVISION = BucketOptions("here", "users", Conflict.REVISION)
SKIP = BucketOptions("here", "users", on_error=OnError.SKIP)
VALUE_BYTES_MAX = 100


# -- Options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        pytest.param({"path": "users"}, "bucket", "users", id="the name given to save"),
        pytest.param({"conflict": "Revision"}, "conflict", Conflict.REVISION, id="conflict"),
        pytest.param({"durability": "none"}, "durability", None, id="no durability"),
        pytest.param(
            {"durability": "persist_majority"}, "durability", "persist_to_majority", id="disks"
        ),
        pytest.param({"onError": "skip"}, "on_error", OnError.SKIP, id="onError"),
        pytest.param({"timeoutMs": "5"}, "timeout_ms", 5, id="timeoutMs"),
    ],
)
def test_an_option_is_taken(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parse({**HERE, **given}), field) == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"cluster": "here:1"}, "which bucket", id="no bucket"),
        pytest.param({"bucket": "users"}, "option cluster is missing", id="no cluster"),
        pytest.param({**HERE, "conflict": "mine"}, "overwrite or revision", id="conflict"),
        pytest.param({**HERE, "durability": "much"}, "give one of none, majority", id="durability"),
        pytest.param({**HERE, "onError": "cry"}, "fail or skip", id="onError"),
        pytest.param({**HERE, "timeoutMs": "9999999"}, "an hour", id="timeoutMs"),
        pytest.param({**HERE, "durabilty": "none"}, "did you mean durability", id="a typo"),
    ],
)
def test_a_senseless_option_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(given)


# -- Columns ------------------------------------------------------------------------------------


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "struct": StructType([StructField("a", LongType())]),
}


def schema(columns: str) -> StructType:
    """Spark would need its Java to read this."""
    pairs = (column.split() for column in columns.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        pytest.param("key string, value string", OVERWRITE, id="texts"),
        pytest.param("key binary, _change_type string", OVERWRITE, id="deletions alone"),
        pytest.param("key binary, value binary, flags int, expiry bigint", OVERWRITE, id="numbers"),
        pytest.param(
            "key binary, value binary, _change_type string, _commit_version bigint, "
            "_commit_timestamp timestamp, partition int, seq bigint, cas bigint, cause string, "
            "flags bigint, expiry bigint, datatype int",
            REVISION,
            id="what millrace-changes gives",
        ),
    ],
)
def test_a_frame_that_fits(columns: str, options: BucketOptions) -> None:
    check_schema(schema(columns), options)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        pytest.param("value binary", OVERWRITE, "no column key", id="no key"),
        pytest.param("key binary", OVERWRITE, "no column value", id="no value"),
        pytest.param("key binary, value binary", REVISION, "needs the column cas", id="no cas"),
        pytest.param("key int, value binary", OVERWRITE, "key is int", id="a number as key"),
        pytest.param("key string, value struct", OVERWRITE, r"to_json\(value\)", id="a struct"),
        pytest.param("key string, value string, flags string", OVERWRITE, "flags is", id="flags"),
        pytest.param("key string, value string, age int", OVERWRITE, "drop.'age'", id="another"),
    ],
)
def test_a_frame_that_does_not_fit(columns: str, options: BucketOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_schema(schema(columns), options)


# -- Rows ---------------------------------------------------------------------------------------


def changes(rows: Rows, *given: dict[str, Any]) -> list[Change]:
    return list(rows.changes(pa.RecordBatch.from_pylist(list(given))))


@pytest.mark.parametrize(
    ("row", "change"),
    [
        pytest.param({"key": "k", "value": "é"}, Change(b"k", "é".encode()), id="texts"),
        pytest.param({"key": b"k", "value": b""}, Change(b"k", b""), id="an empty value"),
        pytest.param({"key": b"k", "value": None}, Change(b"k", None), id="null deletes"),
        pytest.param(
            {"key": b"k", "value": b"v", "_change_type": "delete"}, Change(b"k", None), id="delete"
        ),
        pytest.param(
            {"key": b"k", "value": b"v", "_change_type": "insert"}, Change(b"k", b"v"), id="insert"
        ),
        pytest.param(
            {
                "key": b"k",
                "value": b"v",
                "flags": 7,
                "expiry": 8,
                "cas": 9,
                "_commit_version": 3,
                "datatype": 1,
            },
            Change(b"k", b"v", 7, 8, 9, 3, 1),
            id="numbers",
        ),
        pytest.param(
            {"key": b"k", "value": b"v", "flags": None, "expiry": None, "cas": None},
            Change(b"k", b"v"),
            id="numbers that are not known",
        ),
    ],
)
def test_a_row_is_a_change(row: dict[str, Any], change: Change) -> None:
    assert changes(Rows(OVERWRITE, VALUE_BYTES_MAX, 0), row) == [change]


def test_the_image_of_before_is_no_change() -> None:
    row = {"key": b"k", "value": b"old", "_change_type": "update_preimage"}
    assert changes(Rows(OVERWRITE, VALUE_BYTES_MAX, 0), row) == []


def test_that_a_key_is_nowhere_is_no_revision() -> None:
    """So `millrace-changes` tells a rollback that took the only version of a key back."""
    row = {"key": b"k", "value": None, "_change_type": "delete", "cas": 0}
    rows = Rows(REVISION, VALUE_BYTES_MAX, 0)
    assert changes(rows, row) == [] and not rows.bad
    assert changes(Rows(OVERWRITE, VALUE_BYTES_MAX, 0), row) == [Change(b"k", None)]


BAD = [
    pytest.param({"key": None, "value": b"v"}, OVERWRITE, "has no key", id="null key"),
    pytest.param({"key": b"", "value": b"v"}, OVERWRITE, "key of 0 bytes", id="empty key"),
    pytest.param({"key": "ß" * 126, "value": b""}, OVERWRITE, "key of 252 bytes", id="long key"),
    pytest.param({"key": b"k", "value": bytes(101)}, OVERWRITE, "'users' takes 100", id="large"),
    pytest.param(
        {"key": b"k", "value": b"", "_change_type": "upsert"},
        OVERWRITE,
        "_change_type 'upsert'",
        id="change type",
    ),
    pytest.param({"key": b"k", "value": b"", "flags": -1}, OVERWRITE, "flags -1", id="flags"),
    pytest.param({"key": b"k", "value": b"", "expiry": 2**32}, OVERWRITE, "expiry", id="expiry"),
    pytest.param({"key": b"k", "value": b"", "datatype": 256}, OVERWRITE, "type 256", id="type"),
    pytest.param({"key": b"k", "value": b"", "cas": 0}, REVISION, "cas 0", id="no revision"),
    pytest.param(
        {"key": b"k", "value": None, "_change_type": "delete", "cas": None},
        REVISION,
        "cas None",
        id="a deletion of which no revision is known",
    ),
]


@pytest.mark.parametrize(("row", "options", "words"), BAD)
def test_a_bad_row_is_named(row: dict[str, Any], options: BucketOptions, words: str) -> None:
    rows = Rows(options, VALUE_BYTES_MAX, 4)
    changes(rows, {"key": b"good", "value": b"v", "cas": 1})
    with pytest.raises(UsageError, match=f"row 2 of partition 4.*{words}.*onError=skip"):
        changes(rows, row)


def test_bad_rows_are_counted_if_asked_for() -> None:
    rows = Rows(SKIP, VALUE_BYTES_MAX, 0)
    long = [{"key": b"x" * 251, "value": b"v"}] * 20
    assert changes(rows, {"key": b"a", "value": b"v"}, {"key": None, "value": b"v"}, *long) == [
        Change(b"a", b"v")
    ]
    assert rows.bad == 21
    assert rows.bad_keys[0] == "NULL" and len(rows.bad_keys) == 10


# -- Writing ------------------------------------------------------------------------------------


def write(bucket: Bucket, options: BucketOptions, *pieces: list[Change]) -> Writing:
    work = Writing(bucket, options)
    for piece in pieces:
        work.add(piece)
    work.finish()
    return work


def values(bucket: Bucket, *keys: bytes) -> list[bytes | None]:
    found = run(bucket.get_many(keys))
    return [found[key].value if key in found else None for key in keys]


V1, V2, V3 = (Change(b"k", b"%d" % at, version=at) for at in (1, 2, 3))


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([[V1, V2, V3]], id="in order"),
        pytest.param([[V3, V1, V2]], id="out of order"),
        pytest.param([[V3], [V1], [V2]], id="over several batches"),
    ],
)
@pytest.mark.parametrize("piece_rows", [1, 100], ids=["written one by one", "written together"])
def test_the_highest_version_of_a_key_stays(
    served: ServedBucket,
    pieces: list[list[Change]],
    piece_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "PIECE_ROWS", piece_rows)
    write(served.bucket, OVERWRITE, *pieces)
    assert values(served.bucket, b"k") == [b"3"]


def test_without_versions_the_last_row_stays(served: ServedBucket) -> None:
    write(served.bucket, OVERWRITE, [Change(b"k", b"1"), Change(b"k", b"2")])
    assert values(served.bucket, b"k") == [b"2"]


def test_sets_and_deletions_of_a_piece_are_all_written(served: ServedBucket) -> None:
    run(served.bucket.set_many({b"b": b"old", b"c": b"old"}))
    piece = [Change(b"a", b"1", 7), Change(b"b", None), Change(b"never", None)]
    assert write(served.bucket, OVERWRITE, piece).written == 3
    assert values(served.bucket, b"a", b"b", b"c") == [b"1", None, b"old"]
    found = run(served.bucket.get(b"a"))
    assert found is not None and found.flags == 7


def test_a_revision_stays_if_it_is_the_higher_one(served: ServedBucket) -> None:
    held = run(served.bucket.set(b"a", b"mine")).cas
    work = [
        Change(b"a", b"old", cas=held - 1),
        Change(b"b", b"new", cas=5),
        Change(b"c", None, cas=6),
    ]
    write(served.bucket, REVISION, work)
    write(served.bucket, REVISION, work)
    found = run(served.bucket.read_revisions([b"a", b"b", b"c"]))
    assert list(found.values()) == [
        Revision(b"a", b"mine", held),
        Revision(b"b", b"new", 5),
        Revision(b"c", None, 6),
    ]


@pytest.mark.parametrize(
    "options", [OVERWRITE, REVISION], ids=lambda options: options.conflict.value
)
def test_a_datatype_is_written(served: ServedBucket, options: BucketOptions) -> None:
    """A compressed document without it is another document."""
    changes = [Change(b"a", b"packed", 7, cas=5, datatype=3), Change(b"b", b"plain", cas=5)]
    write(served.bucket, options, changes)
    found = run(served.bucket.read_revisions([b"a", b"b"]))
    assert [(each.value, each.flags, each.datatype) for each in found.values()] == [
        (b"packed", 7, 3),
        (b"plain", 0, 0),
    ]


@pytest.mark.parametrize("conflict", Conflict, ids=lambda conflict: conflict.value)
def test_what_may_be_lost_is_written_again(served: ServedBucket, conflict: Conflict) -> None:
    options = BucketOptions("here", "users", conflict, durability="majority")
    host = served.host_of(b"k")
    ending = ending_waits(host, (WaitOutcome.WRONG_ID, WaitOutcome.OK))
    write(served.bucket, options, [Change(b"k", b"v", cas=5)])
    assert ending.done()
    assert values(served.bucket, b"k") == [b"v"]


def test_what_stays_unsure_is_told(served: ServedBucket) -> None:
    served.host_of(b"k").wait_outcome = WaitOutcome.TIMED_OUT
    options = BucketOptions("here", "users", durability="majority", timeout_ms=300)
    with pytest.raises(DurabilityUnknown):
        write(served.bucket, options, [Change(b"k", b"v")])
