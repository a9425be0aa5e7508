"""The seed's walk through a cluster, with processes: a master dies with changes that nobody else
has, a replica takes its place, and the one that returns rolls back and repairs (seed 001, "UPR in
action on a Cluster"; the scenario file `documents_walkthrough.txt` has it seq by seq).

The node that hosts the repository cannot be killed, so it is D, which gets the partition last.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from millrace.client import Client
from millrace.client.bucket import Bucket
from millrace.client.bucket_admin import begin_rebalance, watch_rebalance
from millrace.client.bucket_results import Changed
from millrace.core.documents.document import (
    NO_SEQ,
    SEQ_MAX,
    Document,
    FailoverId,
    PartitionId,
    Seq,
)
from millrace.core.documents.failover_log import FailoverEntry
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.rebalance import RebalanceState
from millrace.core.messages.documents import BucketsDescribed, DescribeBuckets, HostedPartition
from millrace.errors import HistoryChanged
from millrace.local import LocalCluster
from millrace.store.documents.lmdb_documents import open_documents
from millrace.types import NO_NODE, NodeId
from tests.support.clusters import (
    MakeCluster,
    answer_of,
    connected,
    eventually,
    kill,
    run,
    start,
)

PARTITION = PartitionId(0)
D = NodeId(1)
OTHERS = (2, 3, 4)
SHARED, OF_MAJORITY, OF_A, OF_B = 20, 10, 5, 5  # How many documents each part of the story writes.
LEASE_TTL_MS = 3_000  # While A is alone, nothing may take its place for want of processor time.


class Story(msgspec.Struct):
    """Who is who, and what each key must hold in the end."""

    cluster: LocalCluster
    client: Client
    bucket: Bucket
    a: NodeId
    b: NodeId
    c: NodeId
    first_id: FailoverId
    expected: dict[bytes, bytes] = msgspec.field(default_factory=dict)

    async def write(self, keys: Iterable[str], value: bytes, durability: str | None) -> Changed:
        """The last of the changes."""
        for key in keys:
            name = key.encode()
            changed = await self.bucket.set(name, value, durability=durability, timeout_ms=30_000)
            self.expected[name] = value
        return changed

    async def read(self) -> dict[bytes, bytes]:
        found = await self.bucket.get_many(self.expected, timeout_ms=30_000)
        return {key: each.value for key, each in found.items()}


def test_a_master_dies_another_goes_on_and_the_first_comes_back(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> tuple[dict[bytes, bytes], BucketRecord]:
        async with connected(cluster) as client:
            story = await begun(cluster, client)
            lost = await only_a_has_them(story)
            await b_takes_over(story)
            with pytest.raises(HistoryChanged):
                await story.bucket.wait(lost.token, timeout_ms=10_000)
            await a_returns(story)
            await d_joins(story)
            return await story.read(), await record_of(story.client, story.bucket)

    cluster = make_cluster(4, lease_ttl_ms=LEASE_TTL_MS)
    found, record = run(body(cluster))
    cluster.stop_all()
    held = {node: on_disk(cluster, record.id, node) for node in record.seat(PARTITION).holders}
    assert D in held
    assert len(held) == 3
    assert {key: document.value for key, document in held[D].items()} == found
    assert all(documents == held[D] for documents in held.values())


async def begun(cluster: LocalCluster, client: Client) -> Story:
    """Initialization, and the first mutations.  A partition that was moved in order still has the
    one failover id that it began with."""
    await eventually(lambda: live_nodes(client), {D, *OTHERS}.__eq__, what="four live nodes")
    bucket = await client.create_bucket("story", partitions=1, replicas=2)
    await rebalanced(client, bucket, OTHERS)
    seat = await seat_of(client, bucket)
    b, c = seat.replicas
    story = Story(cluster, client, bucket, seat.active, b, c, seat.id)
    last = await story.write((f"k{n}" for n in range(SHARED)), b"shared", "persist_to_majority")
    assert last.token.seq == SHARED
    await all_level(story)
    logs = [(await copy_on(story, node)).log for node in (story.a, story.b, story.c)]
    assert [log.entries for log in logs] == [(FailoverEntry(story.first_id, NO_SEQ),)] * 3
    return story


async def only_a_has_them(story: Story) -> Changed:
    """C stops, then B: what A and B have is acknowledged by a majority, the rest by A alone."""
    await kill(story.cluster, story.c)
    await story.write((f"m{n}" for n in range(OF_MAJORITY)), b"majority", "persist_to_majority")
    await kill(story.cluster, story.b)
    alone = [*(f"u{n}" for n in range(OF_A)), "k0", "k1"]
    last = await story.write(alone, b"only A", None)
    await story.bucket.wait(last.token, persisted=True, timeout_ms=30_000)
    await kill(story.cluster, story.a)
    return last


async def b_takes_over(story: Story) -> None:
    """Its entry is at its last complete snapshot; the next seq means something else on A."""
    await start(story.cluster, story.b, story.c)
    seat = await eventually(
        lambda: seat_of(story.client, story.bucket),
        lambda seat: seat.active not in (NO_NODE, story.a),
        what="another master",
    )
    assert seat.active == story.b, "C lacks what B has"
    first = await story.write(["k1"], b"B's own", "majority")
    assert first.token.seq == SHARED + OF_MAJORITY + 1
    assert first.token.id == seat.id != story.first_id
    await story.write((f"n{n}" for n in range(OF_B)), b"after A", "majority")
    log = (await copy_on(story, story.b)).log
    at = Seq(SHARED + OF_MAJORITY)
    assert log.entries == (FailoverEntry(seat.id, at), FailoverEntry(story.first_id, NO_SEQ))


async def a_returns(story: Story) -> None:
    """What A alone had is taken by B as new changes, but for the key that B has changed since."""
    before = (await copy_on(story, story.b)).high
    await start(story.cluster, story.a)
    await all_level(story)
    after = await copy_on(story, story.b)
    assert after.high == before + OF_A + 1, "u0 to u4, and k0"
    for node in (story.a, story.c):
        assert (await copy_on(story, node)).log == after.log
    assert await story.read() == story.expected
    assert story.expected[b"k0"] == b"only A"
    assert story.expected[b"k1"] == b"B's own"


async def d_joins(story: Story) -> None:
    """It gets everything from 0, and the log with it; A is not needed any more."""
    log = (await copy_on(story, story.b)).log
    await rebalanced(story.client, story.bucket, (D, story.b, story.c))
    await story.write(["end"], b"of the story", "persist_to_majority")
    await all_level(story)
    assert (await copy_on(story, D)).log == log


# -- Looking --------------------------------------------------------------------------------------


async def rebalanced(client: Client, bucket: Bucket, nodes: Iterable[int]) -> None:
    await begin_rebalance(client, bucket.name, nodes)
    ended = await watch_rebalance(client, bucket.name, lambda _: None)
    assert ended.state is RebalanceState.DONE, ended
    assert set((await seat_of(client, bucket)).holders) == set(nodes)


async def live_nodes(client: Client) -> frozenset[NodeId]:
    return (await client.directory.view()).live


async def record_of(client: Client, bucket: Bucket) -> BucketRecord:
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    return record


async def seat_of(client: Client, bucket: Bucket) -> Seat:
    return (await record_of(client, bucket)).seat(PARTITION)


async def find_copy(story: Story, node: NodeId) -> HostedPartition | None:
    record = await record_of(story.client, story.bucket)
    answer = await answer_of(story.client, node, DescribeBuckets(record.id))
    if not isinstance(answer, BucketsDescribed):
        return None
    return next((copy for each in answer.buckets for copy in each.partitions), None)


async def copy_on(story: Story, node: NodeId) -> HostedPartition:
    copy = await find_copy(story, node)
    assert copy is not None
    return copy


async def all_level(story: Story) -> None:
    """Every holder has all the master has, in complete snapshots and on disk."""

    async def standings() -> list[tuple[FailoverId, Seq, Seq, bool] | None]:
        seat = await seat_of(story.client, story.bucket)
        copies = [await find_copy(story, node) for node in seat.holders]
        return [
            copy and (copy.log.newest, copy.complete, copy.persisted, copy.has_undo)
            for copy in copies
        ]

    def are_level(found: list[tuple[FailoverId, Seq, Seq, bool] | None]) -> bool:
        first = found[0]
        is_settled = first is not None and first[1] == first[2] and not first[3]
        return is_settled and len(found) == 3 and all(each == first for each in found)

    await eventually(standings, are_level, what="copies that are level")


def on_disk(cluster: LocalCluster, bucket: int, node: NodeId) -> dict[bytes, Document]:
    """What a node that was stopped holds; tombstones are not needed in this story."""
    folder = Path(cluster.node(node).folder) / "data" / "documents"
    store = open_documents(folder, lambda call: None)
    try:
        view = store.view(bucket, PARTITION)
        documents = view.scan(NO_SEQ, SEQ_MAX, 1_000, 1 << 30)
        view.close()
    finally:
        store.close()
    return {document.key: document for document in documents}
