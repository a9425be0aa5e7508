"""A bucket that left a node and came back is another one: nobody stays with what it was before."""

from millrace.core.documents.document import PartitionState
from millrace.core.messages.documents import PartitionOrder
from tests.support.partition_nodes import DEAD, NUMBER, ONE, TWO, two_nodes

DROPPED = PartitionOrder(NUMBER, PartitionState.DEAD, 2, is_dropped=True)


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
