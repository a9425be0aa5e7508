"""The source `millrace-changes` in Spark, on a cluster to which nothing happens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.changes.changed_buckets import WAIT_S, MergedQuery, stored
from tests.support.clusters import soon

KEYS = [b"key-%d" % at for at in range(500)]


def read(spark: SparkSession, cluster: LocalCluster, **options: object) -> Any:
    words = {name: str(value) for name, value in options.items()}
    words["cluster"] = ",".join(cluster.addresses)
    return spark.read.format("millrace-changes").options(**words).load()


def test_changes_come_once_and_go_on_where_the_query_stopped(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: sync.SyncBucket, tmp_path: Path
) -> None:
    query = MergedQuery(spark, calm_cluster, tmp_path, bucket=bucket.name)
    bucket.set_many(dict.fromkeys(KEYS, b"first"))
    changed = bucket.set(KEYS[0], b"second", flags=7, expiry_s=4_000_000_000)
    bucket.delete(KEYS[1])
    rows = query.run_once()
    assert query.documents() == stored(bucket, KEYS)
    newest = query.table[KEYS[0]]
    assert (newest.cas, newest.seq, newest.partition) == (
        changed.cas,
        changed.token.seq,
        changed.token.partition,
    )
    assert (newest.flags, newest.expiry) == (7, 4_000_000_000)
    assert (newest._change_type, newest.cause) == ("update_postimage", "mutation")
    gone = query.table[KEYS[1]]
    assert (gone._change_type, gone.cause, gone.value) == ("delete", "deletion", None)
    assert len({(row.partition, row.seq) for row in rows}) == len(rows)
    assert query.run_once() == []
    bucket.set_many(dict.fromkeys(KEYS[:10], b"third"))
    assert {bytes(row.key) for row in query.run_once()} == set(KEYS[:10])
    assert query.documents() == stored(bucket, KEYS)


def test_a_running_query_follows_says_where_it_is_and_keeps_to_its_limit(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: sync.SyncBucket, tmp_path: Path
) -> None:
    bucket.set_many(dict.fromkeys(KEYS, b"before"))
    options = {"bucket": bucket.name, "maxChangesPerTrigger": 200, "mode": "latest"}
    query = MergedQuery(spark, calm_cluster, tmp_path, **options)
    running = query.start()
    try:
        soon(query.documents, lambda found: len(found) == len(KEYS), timeout_s=WAIT_S)
        bucket.set_many(dict.fromkeys(KEYS[:50], b"meanwhile"))
        want = stored(bucket, KEYS)
        soon(query.documents, lambda found: found == want, what="all rows", timeout_s=WAIT_S)
        progress = [json.loads(each.json) for each in running.recentProgress]
    finally:
        running.stop()
    counts = [each["numInputRows"] for each in progress if each["numInputRows"]]
    assert len(counts) >= 3
    assert max(counts) <= 250
    places = [each["sources"][0]["endOffset"]["partitions"]["0"]["seq"] for each in progress]
    assert places == sorted(places)


def test_a_batch_read_is_a_snapshot_with_one_row_for_each_document(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    for value in (b"1", b"2"):
        bucket.set_many(dict.fromkeys(KEYS, value))
    bucket.delete(KEYS[3])
    rows = read(spark, calm_cluster, bucket=bucket.name).collect()
    assert len(rows) == len(KEYS) - 1
    assert {bytes(row.key): bytes(row.value) for row in rows} == stored(bucket, KEYS)
    some = read(spark, calm_cluster, bucket=bucket.name, keyPrefix="key-12").collect()
    assert {bytes(row.key) for row in some} == {key for key in KEYS if key.startswith(b"key-12")}


def failing_at_first(frame: DataFrame) -> DataFrame:
    """Its tasks do, after they have read their rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        context = TaskContext.get()
        assert context is not None
        if not context.attemptNumber():
            raise RuntimeError("the first attempt")
        yield from found

    return frame.mapInArrow(work, frame.schema)


def test_a_task_that_fails_is_tried_again_and_reads_the_same(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: sync.SyncBucket, tmp_path: Path
) -> None:
    bucket.set_many(dict.fromkeys(KEYS, b"value"))
    rows = failing_at_first(read(spark, calm_cluster, bucket=bucket.name)).collect()
    assert sorted(bytes(row.key) for row in rows) == sorted(KEYS)
    query = MergedQuery(spark, calm_cluster, tmp_path, failing_at_first, bucket=bucket.name)
    assert sorted(bytes(row.key) for row in query.run_once()) == sorted(KEYS)
    bucket.set_many(dict.fromkeys(KEYS[:50], b"later"))
    assert {bytes(row.key) for row in query.run_once()} == set(KEYS[:50])
    assert query.documents() == stored(bucket, KEYS)


def test_debezium_has_its_columns(
    spark: SparkSession, calm_cluster: LocalCluster, bucket: sync.SyncBucket, tmp_path: Path
) -> None:
    changed = bucket.set(b"a", b"1")
    bucket.set(b"b", b"1")
    bucket.delete(b"b")
    (row,) = read(spark, calm_cluster, bucket=bucket.name, format="debezium").collect()
    assert (row.op, row.before, bytes(row.after), row.ts_ms) == (
        "r",
        None,
        b"1",
        changed.cas // 1000,
    )
    assert (row.source.db, row.source.cas, row.source.snapshot) == (
        bucket.name,
        changed.cas,
        "true",
    )
    options = {"cluster": ",".join(calm_cluster.addresses), "bucket": bucket.name}
    frame = spark.readStream.format("millrace-changes").options(**options, format="debezium")
    found: list[Any] = []
    query = (
        frame.load()
        .writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    assert {(bytes(row.key), row.op) for row in found} == {(b"a", "u"), (b"b", "d")}
