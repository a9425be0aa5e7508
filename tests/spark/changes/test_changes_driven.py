"""What Spark asks of the change source, asked here without Spark: offsets, limits, restarts."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace import sync
from millrace.core.documents.document import PartitionId
from millrace.errors import UsageError
from millrace.local import LocalCluster
from millrace.spark.changes.options import parse
from millrace.spark.changes.ring import Ring
from millrace.spark.workers import client as worker_client
from millrace.spark.workers import run
from tests.spark.changes.changed_buckets import stored
from tests.spark.changes.driven_query import DrivenQuery
from tests.support.clusters import soon

KEYS = [b"key-%d" % at for at in range(500)]


def seqs(offset: dict[str, object]) -> dict[str, int]:
    partitions = offset["partitions"]
    assert isinstance(partitions, dict)
    return {number: place["seq"] for number, place in partitions.items()}


def test_an_offset_says_where_a_query_stands_and_is_read_from(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    query.run_once()
    bucket.set_many(dict.fromkeys(KEYS[:50], b"2"))
    query.run_once()
    first, second = query.offsets
    assert list(second) == ["bucket", "cluster", "partitions", "ring"]
    for number, place in second["partitions"].items():
        before = place.get("from", place)
        assert before["seq"] == before["first"] == before["last"]  # Whole snapshots were read.
        assert before["seq"] == seqs(first)[number]
        assert list(place) == sorted(place)
    assert sum(seqs(second).values()) == 550


def test_a_micro_batch_that_comes_again_brings_the_same_or_newer(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    assert len(query.run_once(dies_before_commit=True)) == 500
    bucket.set_many(dict.fromkeys(KEYS[:50], b"2"))
    assert len(query.run_once()) >= 500
    assert query.run_once() == []
    assert query.documents() == stored(bucket, KEYS)


def test_a_document_that_never_rests_comes_in_every_batch(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    """It changes between the plan and the read; what were cut there would miss it for ever."""
    query = DrivenQuery(calm_cluster, bucket.name)
    reader = query.reader()
    start = reader.initialOffset()
    bucket.set(b"busy", b"1")
    end = reader.latestOffset(start, ReadAllAvailable())
    bucket.set(b"busy", b"2")
    rows = [row for task in reader.partitions(start, end) for row in reader.read(task)]
    assert [row.column("value").to_pylist() for row in rows] == [[b"2"]]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def test_a_limit_cuts_batches_and_all_comes_once(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name, maxChangesPerTrigger=100)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    reader = query.reader()
    start, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(100))) != start:
        tasks = reader.partitions(start, end)
        counts.append(sum(batch.num_rows for task in tasks for batch in reader.read(task)))
        start = json.loads(json.dumps(end))
    reader.stop()
    assert sum(counts) == 500
    assert max(counts) <= 108


def test_latest_begins_with_what_comes_after(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    bucket.set_many(dict.fromkeys(KEYS, b"before"))
    reader = DrivenQuery(calm_cluster, bucket.name, startingOffsets="latest").reader()
    start = reader.initialOffset()
    bucket.set(b"after", b"1")
    end = reader.latestOffset(start, ReadAllAvailable())
    (task,) = reader.partitions(start, end)
    assert [batch.column("key").to_pylist() for batch in reader.read(task)] == [[b"after"]]
    reader.stop()


def test_a_query_begins_where_another_stands(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    first = DrivenQuery(calm_cluster, bucket.name)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    first.run_once()
    bucket.set_many(dict.fromkeys(KEYS[:7], b"2"))
    place = json.dumps(first.offsets[-1])
    second = DrivenQuery(calm_cluster, bucket.name, startingOffsets=place)
    second.run_once()
    assert second.documents() == dict.fromkeys(KEYS[:7], b"2")


def test_latest_mode_gives_the_last_of_each_key(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name, mode="latest", keyPrefix="key-1")
    for value in (b"1", b"2", b"3"):
        bucket.set_many(dict.fromkeys(KEYS, value))
    rows = query.run_once()
    wanted = {key for key in KEYS if key.startswith(b"key-1")}
    assert [row["value"] for row in rows] == [b"3"] * len(wanted)
    assert {row["key"] for row in rows} == wanted


def test_a_ring_keeps_as_many_keys_as_asked_for(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name, rollbackKeys=100)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    query.run_once()
    ring = Ring(worker_client(",".join(calm_cluster.addresses)), query.offsets[-1]["ring"]["log"])

    def kept() -> int:
        found = [run(ring.parts(PartitionId(at), 1)) for at in range(8)]
        return sum(len(part.entries) for parts in found for part in parts)

    assert 100 <= kept() <= 108
    for round in range(8):
        bucket.set_many(dict.fromkeys(KEYS[:100], b"%d" % round))
        query.run_once()
    assert 100 <= soon(kept, lambda count: count <= 500) <= 500


def delete_ring(cluster: LocalCluster, query: DrivenQuery) -> str:
    name: str = query.offsets[-1]["ring"]["log"]
    with sync.connect(cluster.addresses) as client:
        client.delete_log(name)
    return name


def test_a_query_whose_ring_is_gone_reads_again_what_is_in_doubt_and_goes_on(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name)
    for value in (b"1", b"2", b"3"):
        bucket.set_many(dict.fromkeys(KEYS, value))
        query.run_once()
    gone = delete_ring(calm_cluster, query)
    bucket.set_many(dict.fromkeys(KEYS[:50], b"4"))
    again = query.run_once()
    assert {row["key"] for row in again} == set(KEYS)
    assert query.documents() == stored(bucket, KEYS)
    bucket.set_many(dict.fromkeys(KEYS[:50], b"5"))
    assert {row["key"] for row in query.run_once()} == set(KEYS[:50])
    assert query.documents() == stored(bucket, KEYS)
    assert query.run_once() == []
    ring = query.offsets[-1]["ring"]
    assert ring["log"] != gone
    assert not any(place.get("doubtful") for place in query.offsets[-1]["partitions"].values())


def test_a_micro_batch_that_was_planned_before_its_ring_was_gone_is_read(
    calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    query = DrivenQuery(calm_cluster, bucket.name)
    bucket.set_many(dict.fromkeys(KEYS, b"1"))
    query.run_once()
    bucket.set_many(dict.fromkeys(KEYS[:50], b"2"))
    query.run_once(dies_before_commit=True)
    delete_ring(calm_cluster, query)
    query.run_once()
    assert query.documents() == stored(bucket, KEYS)
    versions = [query.table[key]["_commit_version"] for key in KEYS[:50]]
    bucket.set_many(dict.fromkeys(KEYS[:50], b"3"))
    query.run_once()
    assert query.documents() == stored(bucket, KEYS)
    newer = [query.table[key]["_commit_version"] for key in KEYS[:50]]
    assert all(old < new for old, new in zip(versions, newer, strict=True))


def test_a_checkpoint_of_another_bucket_or_of_one_made_again_is_refused(
    calm_cluster: LocalCluster, client: sync.SyncClient, bucket: sync.SyncBucket
) -> None:
    bucket.set(b"a", b"1")
    query = DrivenQuery(calm_cluster, bucket.name)
    query.run_once()
    other = client.create_bucket(f"{bucket.name}-other", partitions=8, replicas=1)
    with pytest.raises(UsageError, match="belongs to the bucket"):
        query.gone_on(calm_cluster, other.name).run_once()
    client.delete_bucket(bucket.name)
    with pytest.raises(UsageError, match=bucket.name):
        query.run_once()
    again = client.create_bucket(bucket.name, partitions=4, replicas=1)
    again.set(b"b", b"2")
    with pytest.raises(UsageError, match="was deleted and made again"):
        query.run_once()
    tolerant = query.gone_on(calm_cluster, bucket.name, failOnDataLoss=False)
    tolerant.run_once()
    assert tolerant.documents() == {b"b": b"2"}
    assert tolerant.table[b"b"]["_commit_version"] >> 48 == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the option bucket is missing"),
        ({"bucket": "b", "mode": "newest"}, "give history or latest"),
        ({"bucket": "b", "format": "avro"}, "give rows or debezium"),
        ({"bucket": "b", "rollbackkey": "1"}, "did you mean rollbackKeys"),
        ({"bucket": "b", "startingOffsets": "7"}, "startingOffsets cannot be '7'"),
        ({"bucket": "b", "partitionsPerTask": "0"}, "above 0"),
        ({"bucket": "b", "keyPrefix": "k" * 251}, "250 bytes"),
    ],
    ids=["no bucket", "mode", "format", "a typo", "a number", "no partitions", "a long prefix"],
)
def test_bad_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse({"cluster": "127.0.0.1:1", **options})
