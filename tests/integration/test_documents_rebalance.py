"""A bucket goes from three nodes to four and back, while it is written, read and followed (R-O)."""

from millrace.client import Client
from millrace.client.bucket import Bucket
from millrace.client.bucket_admin import begin_rebalance, watch_rebalance
from millrace.core.documents.rebalance import RebalanceRecord, RebalanceState
from millrace.core.messages.documents import BucketsDescribed, DescribeBuckets
from millrace.local import LocalCluster
from millrace.types import NodeId
from tests.support.clusters import MakeCluster, answer_of, connected, eventually, run, start
from tests.support.document_load import Account, Follower, documents_written


def test_three_nodes_become_four_and_three_again_under_load(make_cluster: MakeCluster) -> None:
    async def body(cluster: LocalCluster) -> None:
        async with connected(cluster) as client:
            bucket = await client.create_bucket("moving", partitions=16, replicas=1)
            account = Account()
            async with Follower(bucket, "follower:1") as follower:
                async with documents_written(bucket, account):
                    await account.grown_by(500)
                    newcomer = cluster.add_node()
                    await start(cluster, newcomer.id)
                    await rebalanced(client, bucket, (1, 2, 3, 4))
                    await account.grown_by(200)
                    await rebalanced(client, bucket, (1, 2, 3))
                    await account.grown_by(200)
                held = await account.assert_kept(bucket)
                await follower.holds(held)
            await empties(client, bucket, NodeId(newcomer.id))
            assert not account.unknown, "a move leaves nobody in doubt"

    run(body(make_cluster(3)))


async def rebalanced(client: Client, bucket: Bucket, nodes: tuple[int, ...]) -> None:
    """All of these hold as much as the others, and nobody else anything; progress was shown."""
    steps: list[RebalanceRecord] = []
    planned = await begin_rebalance(client, bucket.name, nodes)
    ended = await watch_rebalance(client, bucket.name, steps.append)
    assert ended.state is RebalanceState.DONE, ended
    assert ended.done == ended.moves == len(planned.moves) > 0
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert len(set(done)) > 2, "how far it is was shown in between"
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    masters = [seat.active for seat in record.seats]
    assert set(masters) == set(nodes)
    fair = len(masters) / len(nodes)
    assert all(abs(masters.count(NodeId(node)) - fair) <= 1 for node in nodes)
    assert all(len(seat.replicas) == 1 for seat in record.seats)


async def empties(client: Client, bucket: Bucket, node: NodeId) -> None:
    """The node forgets what it had of the bucket."""
    record, _ = await client.directory.read_bucket(bucket.name)
    assert record is not None
    question = DescribeBuckets(record.id)

    async def has_nothing() -> bool:
        answer = await answer_of(client, node, question)
        assert isinstance(answer, BucketsDescribed)
        return not any(each.partitions for each in answer.buckets)

    await eventually(has_nothing, what=f"node {node} without partitions")
