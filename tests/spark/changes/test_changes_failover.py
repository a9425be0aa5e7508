"""Queries of changes through failovers that take history back: with processes and SIGKILL, and
queries that are stopped and started again in between.

Node 1 hosts the repository and stays.  A partition whose master is node 2 and whose replica is node
3 loses what is written while node 3 is away, once node 2 is killed and node 3 comes back.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import sync
from millrace.client.bucket_describing import describe_bucket
from millrace.local import LocalCluster
from millrace.types import NO_NODE, NodeId
from tests.spark.changes.changed_buckets import WAIT_S, MergedQuery, stored
from tests.spark.changes.driven_query import DrivenQuery
from tests.support.clusters import MakeCluster, connected, run, soon

KEYS = [b"key-%d" % at for at in range(400)]
NEW = [b"new-%d" % at for at in range(40)]
CHANGED, DELETED = slice(0, 10), slice(10, 14)  # Of the keys that are to be lost.

AnyQuery = DrivenQuery | MergedQuery


class Story:
    """A cluster and a bucket whose documents every copy has, to begin with."""

    def __init__(self, cluster: LocalCluster, client: sync.SyncClient) -> None:
        self.cluster = cluster
        self.client = client
        self.bucket = client.create_bucket("story", partitions=12, replicas=1)
        shared = dict.fromkeys(KEYS, b"shared")
        self.bucket.set_many(shared, durability="persist_to_majority", timeout_ms=60_000)
        self.old, self.new = self._doomed(KEYS), self._doomed(NEW)
        assert len(self.old) > 14
        assert self.new

    def _seats(self) -> list[tuple[NodeId, tuple[NodeId, ...]]]:
        (record,) = self.client.buckets()
        return [(seat.active, seat.replicas) for seat in record.seats]

    def _doomed(self, keys: list[bytes]) -> list[bytes]:
        """Those of partitions that go from node 2 to node 3."""
        seats = self._seats()
        return [key for key in keys if seats[self.bucket.partition_of(key)] == (2, (3,))]

    def masters_without(self, node: int) -> None:
        gone = {NodeId(node), NO_NODE}
        soon(
            lambda: {active for active, _ in self._seats()},
            lambda found: not found & gone,
            what=f"other masters than {node}",
            timeout_s=WAIT_S,
        )

    def copies_are_whole(self) -> None:
        """Any one node may go from here on: each partition has another that can be its master."""

        async def lacking() -> list[str]:
            async with connected(self.cluster) as client:
                found = await describe_bucket(client, "story")
            copies = [copy for each in found.partitions for copy in each.copies]
            behind = [f"{copy.node} is {copy.behind} behind" for copy in copies if copy.behind != 0]
            return [each.problem for each in found.troubled] + behind

        soon(lambda: run(lacking()), lambda found: not found, timeout_s=WAIT_S)

    def documents(self) -> dict[bytes, bytes]:
        return stored(self.bucket, [*KEYS, *NEW])

    def write_anew(self, documents: dict[bytes, bytes]) -> None:
        """By a client that has no connection to a node that does not answer."""
        with sync.connect(self.cluster.addresses) as client:
            client.bucket("story").set_many(documents, timeout_ms=60_000)

    def change_where_it_will_be_lost(self) -> None:
        self.cluster.kill(3)
        changed = dict.fromkeys([*self.old[CHANGED], *self.new], b"lost")
        self.bucket.set_many(changed, timeout_ms=60_000)
        for key in self.old[DELETED]:
            self.bucket.delete(key, timeout_ms=60_000)

    def lose(self) -> None:
        self.cluster.kill(2)
        self.cluster.start([3])
        self.masters_without(2)

    def lost_is_read_and_lost(self, query: AnyQuery) -> None:
        query.run_once()
        self.change_where_it_will_be_lost()
        query.run_once()
        found = query.documents()
        assert {found.get(key) for key in [*self.old[CHANGED], *self.new]} == {b"lost"}
        assert not {*self.old[DELETED]} & found.keys()
        self.lose()


@pytest.fixture
def story(make_cluster: MakeCluster) -> Iterator[Story]:
    cluster = make_cluster(3, lease_ttl_ms=3_000)
    with sync.connect(cluster.addresses) as client:
        yield Story(cluster, client)


def test_lost_changes_are_taken_back_and_nothing_else_is_touched(story: Story) -> None:
    query = DrivenQuery(story.cluster, "story")
    story.lost_is_read_and_lost(query)
    rows = query.run_once()
    assert query.documents() == story.documents() == dict.fromkeys(KEYS, b"shared")
    taken_back = [row for row in rows if row["cause"] == "rollback"]
    assert {row["key"] for row in taken_back} == {
        *story.old[CHANGED],
        *story.old[DELETED],
        *story.new,
    }
    assert {row["_commit_version"] >> 48 for row in taken_back} == {1}
    gone = {row["key"] for row in taken_back if row["_change_type"] == "delete"}
    assert gone == set(story.new)
    # The one that returns brings what the new master lacks, as new changes (U7).
    story.cluster.start([2])
    soon(lambda: any(key in story.documents() for key in story.new), timeout_s=WAIT_S)
    converges(story, query)


def test_what_a_batch_handed_out_before_it_was_lost_is_taken_back_when_it_comes_again(
    story: Story,
) -> None:
    """The query dies with a batch that nobody committed, and its rows are of a history that is
    over when the batch is read again."""
    query = DrivenQuery(story.cluster, "story")
    query.run_once()
    story.change_where_it_will_be_lost()
    query.run_once(dies_before_commit=True)
    assert set(story.new) <= query.documents().keys()
    story.lose()
    query.run_once()
    assert query.documents() == story.documents() == dict.fromkeys(KEYS, b"shared")


def test_below_the_ring_the_partition_is_read_again(story: Story) -> None:
    """Nothing says which keys were made and lost: they stay, as the documentation has it."""
    query = DrivenQuery(story.cluster, "story", rollbackKeys=0)
    story.lost_is_read_and_lost(query)
    rows = query.run_once()
    again = {row["partition"] for row in rows if row["_commit_version"] >> 48 == 1}
    assert again == {story.bucket.partition_of(key) for key in story.old}
    assert {row["cause"] for row in rows if row["partition"] in again} == {"rollback"}
    found = {key: value for key, value in query.documents().items() if key not in story.new}
    assert found == story.documents()


def test_in_spark_with_a_stale_master_and_queries_that_stop_and_start_in_between(
    story: Story, spark: SparkSession, tmp_path: Path
) -> None:
    query = MergedQuery(
        spark, story.cluster, tmp_path, bucket="story", maxChangesPerTrigger=150, maxWaitMs=100
    )
    running = query.start()
    try:
        soon(query.documents, lambda found: len(found) >= 100, timeout_s=WAIT_S)
    finally:
        running.stop()
    story.lost_is_read_and_lost(query)
    story.cluster.start([2])
    running = query.start()
    try:
        story.bucket.set_many(dict.fromkeys(KEYS[:50], b"after"), timeout_ms=60_000)
        story.copies_are_whole()
        story.cluster.pause(3)
        story.masters_without(3)
        story.write_anew(dict.fromkeys(KEYS[50:100], b"meanwhile"))
        story.cluster.resume(3)  # A master of before, that knows nothing of the others.
    finally:
        running.stop()
    converges(story, query)


def converges(story: Story, query: AnyQuery) -> None:
    """Run it until it has what the masters have: copies may still be brought back meanwhile."""

    def differing() -> set[tuple[bytes, bytes]]:
        query.run_once()
        return set(query.documents().items()) ^ set(story.documents().items())

    soon(differing, lambda found: not found, what="the same documents", timeout_s=WAIT_S)
