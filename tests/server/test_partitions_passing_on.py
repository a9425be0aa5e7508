"""A command for a partition whose master is elsewhere; what people are told of one that is here."""

import asyncio

import pytest

from millrace.core.documents.document import PartitionState
from millrace.core.documents.operations import (
    AMBIGUOUS,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.errors import ConnectionLost, NotConnected
from millrace.server.partitions.front import BucketFront
from tests.support.partition_fronts import RECORD, Elsewhere, front_of
from tests.support.partition_nodes import NUMBER, ONE, TWO, Node, World, two_nodes

OK = Outcome(OperationStatus.OK)
SET = Command(Verb.SET, b"k", b"v")
GET = Command(Verb.GET, b"k")


@pytest.mark.parametrize(
    ("command", "answers", "outcome", "times"),
    [
        (SET, [OK], OK, 1),
        (SET, [NOT_MY_PARTITION, OK], OK, 2),
        (SET, [NOT_MY_PARTITION, NOT_MY_PARTITION], TEMPORARY_FAILURE, 2),
        (SET, [NotConnected("away")], TEMPORARY_FAILURE, 1),
        (SET, [ConnectionLost("gone")], AMBIGUOUS, 1),
        (GET, [ConnectionLost("gone")], TEMPORARY_FAILURE, 1),
    ],
    ids=[
        "to the master",
        "to the master of a newer map",
        "nobody is the master",
        "not sent",
        "sent, but not answered",
        "a read does no harm",
    ],
)
def test_a_command_is_passed_on_to_the_master(
    command: Command, answers: list[Outcome | Exception], outcome: Outcome, times: int
) -> None:
    world = World()
    node = Node(world, TWO)
    node.order()
    elsewhere = Elsewhere(*answers)
    reloads: list[None] = []

    async def reload() -> None:
        reloads.append(None)

    front = BucketFront(RECORD, node.store, node.around, elsewhere.ask, lambda _: "", reload)
    assert asyncio.run(front.forward(NUMBER, command)) == outcome
    assert elsewhere.asked == [ONE] * times
    assert len(reloads) == times - 1


def test_a_partition_that_is_being_moved_here_is_a_temporary_failure() -> None:
    """The map says that this node is the master, which does not know yet."""
    world = World()
    node = Node(world, ONE)
    node.order()
    elsewhere = Elsewhere()
    front = BucketFront(RECORD, node.store, node.around, elsewhere.ask, lambda _: "")
    assert asyncio.run(front.forward(NUMBER, SET)) == TEMPORARY_FAILURE
    assert not elsewhere.asked


def test_the_state_of_a_partition_is_told_to_people() -> None:
    world, master, _ = two_nodes()
    master.put(b"k")
    world.pass_ms(100)
    stats = dict(front_of(master).stats("partitions") or ())
    assert stats["state:0"] == PartitionState.ACTIVE.value
    assert stats["high_seq:0"] == stats["persisted_seq:0"] == "1"
