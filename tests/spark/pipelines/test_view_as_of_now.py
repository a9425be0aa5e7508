"""A view that runs, asked as of now: it has every change that was acknowledged before, also when
masters die and what they alone had is taken back."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace import sync
from millrace.local import LocalCluster
from millrace.spark.pipelines import Context
from millrace.spark.pipelines.view import ViewSettings, query_view, run_view
from tests.spark.pipelines import view_functions
from tests.support.clusters import MakeCluster, soon

PATIENCE_MS = 120_000
KEYS = [b"key-%d" % at for at in range(60)]
BUCKET = "orders"


def test_it_has_every_change_that_was_acknowledged_before(
    make_cluster: MakeCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = make_cluster(3)
    with sync.connect(cluster.addresses) as client:
        bucket = client.create_bucket(BUCKET, partitions=12, replicas=1)
        bucket.set_many({key: order("york", 1) for key in KEYS}, durability="persist_to_majority")
        with running_view(cluster, spark, tmp_path / "home"):
            assert sums(tmp_path) == {"york": len(KEYS)}
            for round in range(1, 4):
                bucket.set(KEYS[round], order("york", 100 * round))
                bucket.delete(KEYS[-round])
                assert sums(tmp_path) == sums_of(bucket), f"in round {round}"

            key = key_of(client, bucket, master=2, replica=3)
            cluster.kill(3)
            bucket.set(key, order("lost", 7), timeout_ms=30_000)
            assert sums(tmp_path)["lost"] == 7, "the master acknowledged it"
            cluster.kill(2)
            cluster.start([3])
            seat_is(client, bucket, key, active=3)
            seen = sums(tmp_path)
            assert "lost" not in seen, "its master died before anybody else had it"
            assert seen == sums_of(bucket)
            # The one that returns brings what the new master lacks, as a new change (U7).
            cluster.start([2])
            soon(
                lambda: sums(tmp_path).get("lost") == 7,
                what="its return",
                timeout_s=PATIENCE_MS / 1000,
            )
            assert sums(tmp_path) == sums_of(bucket)


@contextlib.contextmanager
def running_view(cluster: LocalCluster, spark: SparkSession, home: Path) -> Iterator[None]:
    """In a thread, as a pipeline runs in its process; what it raises is raised here."""
    context = Context.at(home, spark)
    settings = ViewSettings(
        cluster=",".join(cluster.addresses),
        bucket=BUCKET,
        map=f"{view_functions.__file__}:by_city",
        reduce="sum",
        shards=2,
    )
    context.state.mkdir(exist_ok=True)  # So that it can be asked from now on.
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run_view(settings, context)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="view")
    thread.start()
    try:
        yield
    finally:
        context.stop()
        thread.join(PATIENCE_MS / 1000)
    assert not raised, raised


def order(city: str, amount: int) -> bytes:
    return json.dumps({"city": city, "amount": amount}).encode()


def sums(folder: Path) -> dict[Any, Any]:
    answer = query_view(folder / "home", as_of_now=True, timeout_ms=PATIENCE_MS)
    return {row.key: row.value for row in answer.rows}


def sums_of(bucket: sync.SyncBucket) -> dict[Any, Any]:
    """By the documents as they are."""
    found: dict[str, int] = {}
    for document in bucket.get_many(KEYS, timeout_ms=30_000).values():
        given = json.loads(document.value)
        found[given["city"]] = found.get(given["city"], 0) + given["amount"]
    return found


def key_of(client: sync.SyncClient, bucket: sync.SyncBucket, *, master: int, replica: int) -> bytes:
    seats = seats_of(client, bucket)
    return next(
        key
        for key in KEYS[:50]
        if (seats[bucket.partition_of(key)].active, seats[bucket.partition_of(key)].replicas)
        == (master, (replica,))
    )


def seat_is(client: sync.SyncClient, bucket: sync.SyncBucket, key: bytes, *, active: int) -> None:
    soon(
        lambda: seats_of(client, bucket)[bucket.partition_of(key)].active,
        lambda found: found == active,
        what=f"node {active} as the master",
        timeout_s=PATIENCE_MS / 1000,
    )


def seats_of(client: sync.SyncClient, bucket: sync.SyncBucket) -> Any:
    return next(record for record in client.buckets() if record.name == bucket.name).seats
