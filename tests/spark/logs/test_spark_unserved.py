"""Clusters that go away, or are replaced, while a query runs: an error, never silence."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace import sync
from millrace.core.messages import Issued, Next
from millrace.errors import Unavailable
from millrace.local import LocalCluster
from millrace.local.cluster import free_ports
from millrace.spark import options, task, workers
from millrace.spark.batch import BatchReader
from millrace.spark.columns import default_schema
from millrace.spark.stream import StreamReader
from tests.spark.filled_logs import fill
from tests.support.clusters import MakeCluster, soon


def options_of(cluster: LocalCluster, **more: str) -> options.Options:
    return options.parse(
        {
            "cluster": ",".join(cluster.addresses),
            "log": "events",
            "fetchOffset.numRetries": "0",
            **more,
        }
    )


def filled(cluster: LocalCluster) -> None:
    with sync.connect(cluster.addresses) as client:
        fill(client.create_log("events", replication=1, write_path="chain"), 100)


def test_a_stream_says_that_nobody_serves_its_log(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.ends.STALL_S", 1)
    cluster = make_cluster(1)
    filled(cluster)
    parsed = options_of(cluster, startingOffsets="earliest", maxWaitMs="50")
    reader = StreamReader(parsed, default_schema(parsed))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    cluster.kill(1)

    def failure() -> str:
        try:
            reader.latestOffset(start, ReadAllAvailable())
        except Unavailable as error:
            return str(error)
        return ""

    assert "has not been served for 1 s" in soon(failure, what="an error")
    reader.stop()


def test_a_sealed_log_that_was_read_needs_nobody(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.ends.STALL_S", 0)
    cluster = make_cluster(1)
    filled(cluster)
    with sync.connect(cluster.addresses) as client:
        client.log("events").seal()
    parsed = options_of(cluster, startingOffsets="earliest", maxWaitMs="50")
    reader = StreamReader(parsed, default_schema(parsed))
    start, in_peace = reader.initialOffset(), 0

    def is_left_in_peace() -> bool:
        """Looked at some times in turn.  Until its watch has ended one may come too early."""
        nonlocal start, in_peace
        try:
            before, start = start, reader.latestOffset(start, ReadAllAvailable())
        except Unavailable:
            in_peace = 0
        else:
            in_peace = in_peace + 1 if before == start else 0
        return in_peace == 5

    soon(is_left_in_peace, what="the end")
    assert start["logs"]["events"]["next"] == 101
    reader.stop()


@pytest.mark.alone
def test_a_task_says_that_nobody_serves_it(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.task.STALL_MS", 200)
    monkeypatch.setattr("millrace.spark.task.STALLS_MAX", 2)
    cluster = make_cluster(1)
    filled(cluster)
    parsed = options_of(cluster)
    reader = BatchReader(parsed, default_schema(parsed))
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 100
    cluster.kill(1)
    with pytest.raises(Unavailable, match="nothing came for"):
        list(task.read(partition, default_schema(parsed)))


def test_another_cluster_at_the_same_addresses_is_connected_to_anew(
    make_cluster: MakeCluster,
) -> None:
    (port,) = free_ports(1)
    old = make_cluster(1, first_port=port)
    filled(old)
    addresses = ",".join(old.addresses)
    first = workers.client(addresses)
    assert workers.client(addresses, first.id) is first
    old.destroy()
    new = make_cluster(1, first_port=port)
    assert new.addresses == old.addresses
    filled(new)
    with sync.connect(new.addresses) as client:
        new_id = client._client.id
    second = workers.client(addresses, new_id)
    assert second.id == new_id != first.id


def take_positions(cluster: LocalCluster, count: int) -> None:
    """Given to a writer that never writes: readers wait for them while their sequencer lives."""
    client = workers.client(",".join(cluster.addresses))

    async def take() -> None:
        log = await client.log("events")
        projection = log.projection
        request = Next(log.info.id, projection.epoch, count)
        assert isinstance(await client.ask_node(projection.sequencer, request, 5_000), Issued)

    workers.run(take())


@pytest.mark.alone
def test_positions_lost_with_their_sequencer_are_the_end_of_a_batch(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.task.STALL_MS", 1_000)
    cluster = make_cluster(1)
    filled(cluster)
    take_positions(cluster, 1_000)
    parsed = options_of(cluster)
    reader = BatchReader(parsed, default_schema(parsed))
    (partition,) = reader.partitions()
    assert partition.value.end == 1_101
    cluster.kill(1)
    cluster.start([1])
    assert sum(batch.num_rows for batch in reader.read(partition)) == 100


def test_positions_lost_with_their_sequencer_do_not_hold_up_available_now(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.stream.AVAILABLE_NOW_PATIENCE_S", 1)
    cluster = make_cluster(1)
    filled(cluster)
    take_positions(cluster, 1_000)
    parsed = options_of(cluster, startingOffsets="earliest", maxWaitMs="50")
    reader = StreamReader(parsed, default_schema(parsed))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, ReadAllAvailable())
    cluster.kill(1)
    cluster.start([1])
    last = reader.latestOffset(first, ReadAllAvailable())
    assert last == reader.latestOffset(last, ReadAllAvailable())
    reader.stop()
