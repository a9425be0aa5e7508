"""What a node does with the keeper's orders: all or nothing, durable before it is answered."""

import asyncio

import pytest

from millrace.core.documents.document import Cas, PartitionId, PartitionState, Seq
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import NOT_MY_PARTITION, TEMPORARY_FAILURE, Command, Verb
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.messages.documents import (
    BucketsDescribed,
    CasMismatch,
    DescribeBuckets,
    PartitionOrder,
    PartitionsSet,
    SetPartitions,
)
from millrace.server.documents.carrying_out import carry_out, carry_out_anywhere
from millrace.server.documents.flushing import flush
from millrace.server.partitions.front import BucketFront
from millrace.store.contract import StoreFailed
from millrace.types import NodeId
from tests.support.partition_nodes import (
    BUCKET,
    CAFE,
    DEAD,
    NAME,
    NUMBER,
    ONE,
    THREE,
    TWO,
    Node,
    World,
    only,
    two_nodes,
)

ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA


def alone() -> tuple[World, Node]:
    world = World()
    return world, Node(world, ONE)


async def nobody_is_asked(node: NodeId, message: Message, timeout_ms: int) -> Message:
    raise AssertionError("this node is the master")


def test_an_order_with_another_cas_does_nothing() -> None:
    _, node = alone()
    node.lead()
    order = PartitionOrder(NUMBER, REPLICA, 2, master=TWO)
    mismatch = only(node.order(order, cas=node.bucket.cas + 1), CasMismatch)
    assert mismatch.cas == node.bucket.cas
    assert node.partition.state is ACTIVE


def test_every_order_changes_the_cas() -> None:
    _, node = alone()
    seen = set()
    for term in (1, 2, 3):
        node.lead(term=term)
        seen.add(node.bucket.cas)
    assert len(seen) == 3


def test_a_restart_changes_the_cas() -> None:
    _, node = alone()
    node.lead()
    before = node.bucket.cas
    node.crash()
    node.start()
    assert node.bucket.cas != before


def test_one_order_of_a_lower_term_keeps_all_of_them_from_being_carried_out() -> None:
    _, node = alone()
    node.lead(term=3)
    fine = PartitionOrder(PartitionId(1), ACTIVE, 1, CAFE)
    late = PartitionOrder(NUMBER, REPLICA, 2, master=TWO)
    refused = only(node.order(fine, late), Refused)
    assert refused.reason is Refusal.EPOCH
    assert set(node.bucket.held) == {NUMBER}
    assert node.partition.state is ACTIVE


def test_an_order_is_answered_when_the_row_is_on_disk() -> None:
    world, node = alone()
    answers = node.order(PartitionOrder(NUMBER, ACTIVE, 1, CAFE))
    assert not answers
    world.until(lambda: bool(answers))
    only(answers, PartitionsSet)
    row = node.disk.partitions[BUCKET, NUMBER].row
    assert (row.state, row.term, row.log.newest) == (ACTIVE, 1, CAFE)


def test_a_master_serves_only_when_its_row_is_on_disk() -> None:
    world, node = alone()
    answers = node.order(PartitionOrder(NUMBER, ACTIVE, 1, CAFE))
    assert node.bucket.active(NUMBER) is None
    world.until(lambda: bool(answers))
    assert node.bucket.active(NUMBER) is node.partition


def test_a_replica_that_is_promoted_serves_only_when_that_is_on_disk() -> None:
    world, _, replica = two_nodes()
    answers = replica.order(PartitionOrder(NUMBER, ACTIVE, 2, DEAD))
    assert replica.partition.state is ACTIVE
    assert replica.bucket.active(NUMBER) is None
    world.until(lambda: bool(answers))
    assert replica.bucket.active(NUMBER) is replica.partition


def test_a_master_of_before_the_start_serves_nobody_until_it_is_named() -> None:
    world, node = alone()
    node.lead()
    node.put(b"k")
    world.pass_ms(10)
    node.crash()
    node.start()
    assert node.partition.state is ACTIVE
    assert node.bucket.active(NUMBER) is None
    assert node.bucket.partition(NUMBER) is None, "nor is it streamed"
    node.lead(term=2, id=DEAD)
    assert node.bucket.active(NUMBER) is node.partition


def test_nobody_is_served_without_a_lease() -> None:
    _, node = alone()
    node.lead()
    assert node.bucket.is_serving
    node.around.lease = 0
    assert not node.bucket.is_serving


def test_who_asks_a_master_whose_lease_is_over_is_to_try_again() -> None:
    """It was told that another node had the partition, and the map named this one."""
    _, node = alone()
    node.lead()
    node.put(b"k", b"v")
    record = BucketRecord(BUCKET, NAME, BucketAttributes(1, 0), (Seat(1, CAFE, ONE),))
    front = BucketFront(record, node.store, node.around, nobody_is_asked, lambda _: "")
    front.here = node.bucket
    commands = [Command(Verb.GET, b"k"), Command(Verb.SET, b"k", b"w"), Command(Verb.DELETE, b"k")]
    node.around.lease = 0
    for command in commands:
        assert carry_out(front, NUMBER, command) == TEMPORARY_FAILURE
        assert carry_out_anywhere(front, command) == TEMPORARY_FAILURE
    assert not asyncio.run(flush(front))
    assert node.values() == {b"k": b"v"}
    node.around.lease = 2  # Meanwhile somebody else may have become the master.
    for command in commands:
        assert carry_out(front, NUMBER, command) == NOT_MY_PARTITION


def test_a_master_with_another_lease_serves_when_it_was_told_again() -> None:
    """While it had none, somebody else may have become the master."""
    _, node = alone()
    node.lead()
    node.around.lease = 2
    assert node.bucket.active(NUMBER) is None
    (told,) = node.bucket.describe().partitions
    assert told.is_ordered and not told.is_confirmed
    node.lead()
    assert node.bucket.active(NUMBER) is node.partition
    (told,) = node.bucket.describe().partitions
    assert told.is_confirmed


def test_a_failing_disk_keeps_an_order_unanswered_until_it_works_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, node = alone()
    node.lead()
    failure = StoreFailed(Refusal.UNAVAILABLE, "the disk does not answer")
    monkeypatch.setattr(node.disk, "write", lambda batches: failure)
    node.put(b"k")
    answers = node.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE))
    world.pass_ms(2_000)
    assert not answers
    monkeypatch.undo()
    world.until(lambda: bool(answers))
    only(answers, PartitionsSet)


def test_a_full_disk_keeps_no_order_from_being_carried_out() -> None:
    """A master that was told of a new replica served nobody any more, not even reads."""
    world, node = alone()
    node.lead()
    node.disk.capacity_bytes = 0
    node.put(b"k")
    answers = node.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE, replicas=(TWO,)))
    assert node.bucket.active(NUMBER) is None
    world.until(lambda: bool(answers), within_ms=1_000)
    only(answers, PartitionsSet)
    assert node.bucket.active(NUMBER) is node.partition
    assert node.disk.partitions[BUCKET, NUMBER].row.term == 2
    node.crash()
    node.start()
    assert (node.partition.term, node.partition.high) == (2, 0)


def test_who_must_undo_is_not_promoted() -> None:
    _, node = alone()
    node.follow(TWO)
    node.partition.begin_undo(node.partition.seen)
    refused = only(node.order(PartitionOrder(NUMBER, ACTIVE, 2, DEAD)), Refused)
    assert refused.reason is Refusal.CONFLICT


def test_an_id_of_before_is_for_takeovers_alone() -> None:
    world, master, replica = two_nodes()
    master.put(b"k")
    world.until(lambda: replica.partition.complete == 1)
    refused = only(replica.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE)), Refused)
    assert refused.reason is Refusal.CONFLICT
    taken = replica.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE, is_takeover=True))
    world.until(lambda: bool(taken))
    only(taken, PartitionsSet)
    assert len(replica.partition.log.entries) == 1


def test_a_dropped_partition_leaves_nothing() -> None:
    world, node = alone()
    node.lead()
    node.put(b"k")
    world.pass_ms(10)
    answers = node.order(PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True))
    world.pass_ms(10)
    only(answers, PartitionsSet)
    assert not node.disk.partitions
    assert not node.hosted.buckets


def test_a_partition_dropped_while_the_disk_fails_does_not_come_back() -> None:
    """What failed to be written of it must not be tried again: another one has its number."""
    world, node = alone()
    node.lead()
    node.put(b"old")
    world.until(lambda: node.flusher._is_writing)
    node.disk.capacity_bytes = 0
    other = PartitionOrder(PartitionId(1), ACTIVE, 1, CAFE)
    node.order(other)
    node.order(PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True))
    node.order(PartitionOrder(NUMBER, ACTIVE, 1, DEAD))
    node.put(b"new")
    world.pass_ms(500)
    node.disk.capacity_bytes = 1 << 30
    world.pass_ms(1_000)
    assert node.on_disk == {b"new": 1}
    assert node.disk.partitions[BUCKET, NUMBER].row.log.newest == DEAD


def damaged(count: int) -> tuple[World, Node]:
    """A node with two partitions, of which the disk does not give back the first `count`."""
    world, node = alone()
    other = PartitionOrder(PartitionId(1), ACTIVE, 1, CAFE)
    node.order(PartitionOrder(NUMBER, ACTIVE, 1, CAFE), other)
    world.pass_ms(100)
    for held in list(node.bucket.held.values()):
        held.partition.store(b"k", b"v", 0, 0, node.around.now_us())
    world.pass_ms(100)
    for number in range(count):
        node.disk.rot(BUCKET, PartitionId(number), b"k")
    node.crash()
    node.start()
    assert len(node.bucket.held) == 2 - count
    return world, node


def drop_all(node: Node, cas: int | None = None) -> list[Message]:
    """As the keeper does with a bucket that it does not know: what the node tells of is dropped."""
    told = node.bucket.describe()
    drops = tuple(
        PartitionOrder(each.number, PartitionState.DEAD, each.term, is_dropped=True)
        for each in told.partitions
    )
    answers: list[Message] = []
    stated = told.cas if cas is None else cas
    node.hosted.order(SetPartitions(BUCKET, "", BucketAttributes(), stated, drops), answers.append)
    return answers


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_a_deleted_bucket_nothing_is_left_whatever_is_damaged(count: int) -> None:
    """What the disk did not give back stayed there, and the bucket came back with each start."""
    world, node = damaged(count)
    mismatch = only(drop_all(node, node.bucket.cas + 1), CasMismatch)
    assert len(node.disk.partitions) == 2
    only(drop_all(node, mismatch.cas), PartitionsSet)
    world.pass_ms(100)
    assert not node.hosted.buckets and not node.disk.partitions


def test_what_is_damaged_of_a_bucket_that_lives_stays_when_the_rest_leaves_the_node() -> None:
    world, node = damaged(1)
    other = PartitionId(1)
    node.order(PartitionOrder(other, PartitionState.DEAD, 1, is_dropped=True))
    world.pass_ms(100)
    assert set(node.disk.partitions) == {(BUCKET, NUMBER)}
    (told,) = only([node.hosted.describe(DescribeBuckets())], BucketsDescribed).buckets
    assert told.id == BUCKET


def test_a_damaged_partition_is_made_anew_without_what_was_there_also_after_a_refusal() -> None:
    """The refusal made the node forget the bucket, and what was damaged."""
    world, node = damaged(2)
    mismatch = only(node.order(cas=node.bucket.cas + 1), CasMismatch)
    node.order(PartitionOrder(NUMBER, ACTIVE, 2, DEAD), cas=mismatch.cas)
    world.pass_ms(100)
    assert node.store.load(BUCKET, NUMBER, Seq(0), 100, True) == []


def test_a_name_that_is_used_again_means_the_newer_bucket() -> None:
    """Until the keeper has the older one dropped, both are here."""
    _, node = alone()
    older = node.hosted.make(8, "again", BucketAttributes())
    newer = node.hosted.make(9, "again", BucketAttributes())
    assert node.hosted.find("again") is newer is not older
    assert node.hosted.find("never") is None


def test_before_everything_is_loaded_nothing_is_told_or_ordered() -> None:
    _, node = alone()
    node.hosted.is_warm = False
    assert isinstance(node.hosted.describe(DescribeBuckets()), Refused)
    refused = only(node.order(PartitionOrder(NUMBER, ACTIVE, 1, CAFE)), Refused)
    assert refused.reason is Refusal.NOT_READY


# -- Shutdown -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_orderly", "is_clean"), [(True, True), (False, False)], ids=["in order", "crash"]
)
def test_a_row_is_clean_after_a_shutdown_in_order(is_orderly: bool, is_clean: bool) -> None:
    world, node = alone()
    node.lead()
    node.put(b"k")
    world.pass_ms(10)
    if is_orderly:
        node.stop()
    else:
        node.crash()
    node.start()
    assert node.bucket.held[NUMBER].was_clean is is_clean


def test_a_crash_still_counts_after_a_shutdown_that_followed_it() -> None:
    """Nobody has ordered the partition in between, so nobody knows of the crash yet."""
    _, node = alone()
    node.lead()
    node.crash()
    node.start()
    node.stop()
    node.start()
    assert not node.bucket.held[NUMBER].was_clean


def test_a_node_that_is_stopping_obeys_nobody() -> None:
    """An order would be one more change after the last."""
    world, node = alone()
    node.lead()
    done: list[None] = []
    node.bucket.close(lambda: done.append(None))
    refused = only(node.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE)), Refused)
    assert refused.reason is Refusal.NOT_READY
    world.until(lambda: bool(done))
    assert node.disk.partitions[BUCKET, NUMBER].row.is_clean


def test_who_asks_for_all_buckets_is_told_them_without_partitions() -> None:
    _, node = alone()
    node.lead()
    for bucket, count in ((0, 0), (BUCKET, 1), (BUCKET + 1, None)):
        told = node.hosted.describe(DescribeBuckets(bucket))
        assert isinstance(told, BucketsDescribed)
        assert [len(each.partitions) for each in told.buckets] == [count] * (count is not None)


# -- Waits --------------------------------------------------------------------------------------


def waiting(node: Node, condition: Durability, wait_ms: int = 5_000) -> list[WaitOutcome]:
    document = node.put(b"k")
    token = MutationToken(NUMBER, node.partition.log.newest, document.seq, document.cas)
    outcomes: list[WaitOutcome] = []
    node.bucket.wait(token, condition, wait_ms, outcomes.append)
    return outcomes


def test_a_wait_for_the_disk_ends_with_the_flush() -> None:
    world, node = alone()
    node.lead()
    outcomes = waiting(node, Durability.PERSISTED)
    assert not outcomes
    world.until(lambda: bool(outcomes))
    assert outcomes == [WaitOutcome.OK]
    assert b"k" in node.on_disk


def test_a_wait_for_a_majority_ends_with_the_replicas_word() -> None:
    world, master, replica = two_nodes()
    outcomes = waiting(master, Durability.PERSIST_TO_MAJORITY)
    world.until(lambda: bool(outcomes))
    assert outcomes == [WaitOutcome.OK]
    assert b"k" in replica.on_disk


def test_the_word_of_a_node_that_is_no_replica_counts_for_nothing() -> None:
    world = World()
    master, stranger = Node(world, ONE), Node(world, TWO)
    master.lead(THREE)
    stranger.follow(ONE)
    outcomes = waiting(master, Durability.MAJORITY, 1_000)
    world.until(lambda: stranger.values() == master.values())
    world.pass_ms(500)
    assert not outcomes
    world.pass_ms(1_000)
    assert outcomes == [WaitOutcome.TIMED_OUT]


def test_what_a_node_said_before_it_was_a_replica_counts_when_it_is_one() -> None:
    world = World()
    master, newcomer = Node(world, ONE), Node(world, TWO)
    master.lead(THREE)
    newcomer.follow(ONE)
    outcomes = waiting(master, Durability.MAJORITY)
    world.until(lambda: newcomer.values() == master.values())
    world.pass_ms(100)
    assert not outcomes
    master.order(PartitionOrder(NUMBER, ACTIVE, 2, CAFE, replicas=(TWO,), is_takeover=True))
    world.until(lambda: bool(outcomes), within_ms=1_000)
    assert outcomes == [WaitOutcome.OK]


def test_a_majority_is_of_as_many_copies_as_the_order_says() -> None:
    world, master, _ = two_nodes()
    order = PartitionOrder(NUMBER, ACTIVE, 2, CAFE, replicas=(TWO, THREE), copies=5)
    master.order(order)
    world.pass_ms(10)
    outcomes = waiting(master, Durability.MAJORITY, 1_000)
    world.pass_ms(900)
    assert not outcomes, "two copies are no majority of five"


@pytest.mark.parametrize(
    ("order", "outcome"),
    [
        (PartitionOrder(NUMBER, REPLICA, 2, master=TWO), WaitOutcome.NOT_MY_PARTITION),
        (PartitionOrder(NUMBER, PartitionState.DEAD, 2), WaitOutcome.NOT_MY_PARTITION),
        (
            PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True),
            WaitOutcome.NOT_MY_PARTITION,
        ),
    ],
    ids=["a replica now", "dead", "dropped"],
)
def test_waits_end_when_the_partition_becomes_something_else(
    order: PartitionOrder, outcome: WaitOutcome
) -> None:
    world, node = alone()
    node.lead(TWO)
    outcomes = waiting(node, Durability.MAJORITY, 60_000)
    world.pass_ms(100)
    assert not outcomes
    node.order(order)
    world.pass_ms(100)
    assert outcomes == [outcome]


def test_a_wait_on_a_partition_that_is_not_here_ends_at_once() -> None:
    world, node = alone()
    node.lead()
    outcomes: list[WaitOutcome] = []
    elsewhere = MutationToken(PartitionId(3), CAFE, Seq(1), Cas(1))
    node.bucket.wait(elsewhere, Durability.PERSISTED, 0, outcomes.append)
    assert not outcomes, "never from inside the call"
    world.pass_ms(1)
    assert outcomes == [WaitOutcome.NOT_MY_PARTITION]
