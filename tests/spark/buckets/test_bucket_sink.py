"""Spark writes buckets: batches and streams, again after a crash, and rows that no bucket takes."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace import sync
from millrace.client.sync_bucket import SyncBucket
from millrace.local import LocalCluster

STREAM_TIMEOUT_S = 120


@pytest.fixture
def bucket(client: sync.SyncClient) -> SyncBucket:
    """Empty, and this test's own."""
    return client.create_bucket(f"bucket-{secrets.token_hex(4)}", partitions=8, replicas=1)


@pytest.fixture
def write(calm_cluster: LocalCluster, bucket: SyncBucket) -> Callable[..., None]:
    def write(frame: DataFrame, **options: str) -> None:
        given = {"cluster": ",".join(calm_cluster.addresses), "bucket": bucket.name, **options}
        frame.write.format("millrace-bucket").options(**given).mode("append").save()

    return write


def test_rows_become_documents_and_deletions(
    spark: SparkSession, bucket: SyncBucket, write: Callable[..., None]
) -> None:
    bucket.set_many({b"k%d" % at: b"before" for at in range(0, 5_000, 2)})
    frame = spark.range(5_000).selectExpr(
        "concat('k', id) AS key", "IF(id % 5 = 0, NULL, string(id)) AS value", "int(7) AS flags"
    )
    write(frame, durability="majority")
    found = bucket.get_many([b"k%d" % at for at in range(5_000)])
    assert {key: (each.value, each.flags) for key, each in found.items()} == {
        b"k%d" % at: (b"%d" % at, 7) for at in range(5_000) if at % 5
    }


def test_a_row_with_a_cas_stays_if_it_is_the_higher_revision(
    spark: SparkSession, bucket: SyncBucket, write: Callable[..., None]
) -> None:
    mine = bucket.set(b"newer", b"mine").cas
    rows = [("newer", "theirs", mine - 1), ("older", "theirs", mine - 1), ("gone", None, mine)]
    frame = spark.createDataFrame(rows, "key string, value string, cas bigint")
    for _ in range(2):  # Again, as a task that is repeated would.
        write(frame, conflict="revision")
    found = bucket.read_revisions([b"newer", b"older", b"gone"])
    told = {key: (each.value, each.cas) for key, each in found.items()}
    assert told == {
        b"newer": (b"mine", mine),
        b"older": (b"theirs", mine - 1),
        b"gone": (None, mine),
    }


def test_a_micro_batch_that_comes_again_changes_nothing(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: SyncBucket, tmp_path: Path
) -> None:
    """The rows of one key go in the order of their versions, in the batch and when it is repeated
    because nobody noted its end."""
    changes = [
        (f"k{at}", None if version == 2 and at % 3 == 0 else f"{version}", version)
        for version in (2, 1)
        for at in range(300)
    ]
    frame = spark.createDataFrame(changes, "key string, value string, _commit_version bigint")
    frame.coalesce(1).write.parquet(str(tmp_path / "changes"))

    def follow() -> None:
        query = (
            spark.readStream.schema(frame.schema)
            .parquet(str(tmp_path / "changes"))
            .writeStream.format("millrace-bucket")
            .option("cluster", ",".join(calm_cluster.addresses))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(bucket.name)
        )
        assert query.awaitTermination(STREAM_TIMEOUT_S)

    wanted = {b"k%d" % at: b"2" for at in range(300) if at % 3}
    keys = [b"k%d" % at for at in range(300)]
    for _ in range(2):
        follow()
        assert {key: each.value for key, each in bucket.get_many(keys).items()} == wanted
        shutil.rmtree(tmp_path / "checkpoint" / "commits")


def test_bad_rows_are_named_or_left_out(
    spark: SparkSession, bucket: SyncBucket, write: Callable[..., None]
) -> None:
    rows = [("good", "v"), (None, "v"), ("x" * 251, "v")]
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
    with pytest.raises(PySparkException, match=r"row 2 of partition 0 has no key.*onError=skip"):
        write(frame)
    write(frame, onError="skip")
    found = bucket.get(b"good")
    assert found is not None and found.value == b"v"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        pytest.param(
            lambda frame, options: frame.write.mode("append").options(**options),
            r"no bucket 'nowhere': `millrace --cluster \S+ bucket create nowhere`",
            id="no such bucket",
        ),
        pytest.param(
            lambda frame, options: frame.write.mode("overwrite").options(**options),
            r'use .mode\("append"\)',
            id="mode overwrite",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, calm_cluster: LocalCluster, work: Callable[..., object], words: str
) -> None:
    frame = spark.createDataFrame([("k", "v")], "key string, value string")
    writer = work(frame, {"cluster": ",".join(calm_cluster.addresses)})
    with pytest.raises(PySparkException, match=words):
        writer.format("millrace-bucket").save("nowhere")  # type: ignore[attr-defined]


def test_it_is_read_by_another_source(spark: SparkSession, calm_cluster: LocalCluster) -> None:
    reader = spark.read.format("millrace-bucket").option(
        "cluster", ",".join(calm_cluster.addresses)
    )
    with pytest.raises(PySparkException, match="millrace-changes"):
        reader.load("any")
