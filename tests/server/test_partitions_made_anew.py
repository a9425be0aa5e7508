"""A bucket that left a node and came back is another one: nobody stays with what it was before.  So
is one of the same name: nobody takes it for the one that was deleted."""

from millrace.core.documents.document import FailoverId, PartitionState
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.core.messages import Message
from millrace.core.messages.documents import PartitionOrder, PartitionsSet, SetPartitions
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.following import DIAL_MS_MAX
from millrace.types import NodeId
from tests.support.partition_nodes import (
    BUCKET,
    CAFE,
    DEAD,
    NAME,
    NUMBER,
    ONE,
    TWO,
    Node,
    World,
    only,
    two_nodes,
)

DROPPED = PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True)
NEXT_BUCKET = BUCKET + 1
ATTRIBUTES = BucketAttributes(partitions=4, replicas=1)


def test_whoever_followed_what_was_dropped_follows_what_is_made_anew() -> None:
    world, master, replica = two_nodes()
    master.put(b"before")
    world.until(lambda: replica.values() == {b"before": b"value"})
    master.order(DROPPED)
    assert not master.hosted.buckets
    master.lead(TWO, term=3, id=DEAD)
    replica.follow(ONE, term=3)
    master.put(b"after")
    world.until(lambda: replica.values() == {b"after": b"value"})


# -- Another bucket of the same name --------------------------------------------------------------


def order_next(world: World, node: Node, order: PartitionOrder) -> BucketPartitions:
    """The keeper makes a bucket of the same name."""
    answers: list[Message] = []
    message = SetPartitions(NEXT_BUCKET, NAME, ATTRIBUTES, 0, (order,))
    node.hosted.order(message, answers.append)
    world.until(lambda: bool(answers))
    only(answers, PartitionsSet)
    return node.hosted.buckets[NEXT_BUCKET]


def lead_next(
    world: World, node: Node, *replicas: NodeId, id: FailoverId = DEAD
) -> BucketPartitions:
    order = PartitionOrder(
        NUMBER, PartitionState.ACTIVE, 1, id, replicas=replicas, copies=1 + len(replicas)
    )
    return order_next(world, node, order)


def store(world: World, node: Node, bucket: BucketPartitions, key: bytes) -> list[WaitOutcome]:
    """What a write that wants a majority is answered with."""
    partition = bucket.held[NUMBER].partition
    document = partition.store(key, b"value", 0, 0, node.around.now_us())
    outcomes: list[WaitOutcome] = []
    token = MutationToken(NUMBER, partition.log.newest, document.seq, document.cas)
    bucket.wait(token, Durability.PERSIST_TO_MAJORITY, 2_000, outcomes.append)
    world.until(lambda: bool(outcomes))
    return outcomes


def test_a_copy_of_a_deleted_bucket_is_no_copy_of_the_next_one_of_its_name() -> None:
    """Its node was away when the keeper dropped what was deleted; it went on with the next bucket,
    and writes were acknowledged as on a majority that had one copy."""
    world, master, replica = two_nodes()
    master.put(b"old")
    world.until(lambda: replica.values() == {b"old": b"value"})
    next = lead_next(world, master, TWO)
    master.order(DROPPED)
    world.pass_ms(3 * DIAL_MS_MAX)
    assert store(world, master, next, b"new") == [WaitOutcome.TIMED_OUT]
    assert not next.sessions
    assert replica.values() == {b"old": b"value"}
    assert replica.partition.log.newest == CAFE
    explained = replica.bucket.explain_following(NUMBER)
    assert "nothing of the bucket" in explained
    order_next(world, replica, PartitionOrder(NUMBER, PartitionState.REPLICA, 1, master=ONE))
    assert store(world, master, next, b"newer") == [WaitOutcome.OK]


def test_a_copy_of_a_bucket_follows_nothing_of_a_deleted_one_of_its_name() -> None:
    """Its master still has the deleted one, and has not heard of the next."""
    world = World()
    master, replica = Node(world, ONE), Node(world, TWO)
    master.lead()
    master.put(b"old")
    order = PartitionOrder(NUMBER, PartitionState.REPLICA, 1, master=ONE)
    copy = order_next(world, replica, order).held[NUMBER].partition
    world.pass_ms(3 * DIAL_MS_MAX)
    assert not copy.table
    next = lead_next(world, master, TWO)
    assert store(world, master, next, b"new") == [WaitOutcome.OK]
    assert set(copy.table) == {b"new"}


def test_a_master_without_the_bucket_is_asked_again_ever_more_rarely() -> None:
    world, master, replica = two_nodes()
    world.pass_ms(100)
    lead_next(world, master, TWO)
    master.order(DROPPED)
    world.pass_ms(10 * DIAL_MS_MAX)
    before = len(replica.dialled)
    world.pass_ms(10 * DIAL_MS_MAX)
    assert 5 <= len(replica.dialled) - before <= 10
