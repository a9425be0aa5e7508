"""What stands before a node's partitions, and what looks after them, in virtual time."""

from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import Command, Outcome
from millrace.core.messages import Message
from millrace.core.messages.documents import CarriedOut, CarryOut
from millrace.server.documents.carrying_out import carry_out
from millrace.server.partitions.front import BucketFront
from millrace.server.partitions.upkeep import Upkeep
from millrace.types import NodeId
from tests.support.partition_nodes import BUCKET, CAFE, NAME, NUMBER, ONE, TWO, Node, World

RECORD = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), (Seat(1, CAFE, ONE, (TWO,)),))


class Elsewhere:
    """The other nodes: what each is asked, and says; an error is raised."""

    def __init__(self, *answers: Outcome | Exception) -> None:
        self.asked: list[NodeId] = []
        self._answers = list(answers)

    async def ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        assert isinstance(message, CarryOut)
        self.asked.append(node)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return CarriedOut(answer)


def front_of(node: Node, elsewhere: Elsewhere | None = None) -> BucketFront:
    asked = elsewhere or Elsewhere()
    front = BucketFront(RECORD, node.store, node.around, asked.ask, lambda _: "")
    front.here = node.bucket
    return front


def upkeep_of(node: Node, front: BucketFront | None = None) -> Upkeep:
    fronts = {} if front is None else {NAME: front}
    return Upkeep(node.hosted.buckets, fronts, node.store, node.flusher, node.around)


def rounds(world: World, upkeep: Upkeep, count: int = 4) -> None:
    for _ in range(count):
        upkeep.look()
        world.pass_ms(50)


def done(front: BucketFront, command: Command) -> Outcome:
    outcome = carry_out(front, NUMBER, command)
    assert isinstance(outcome, Outcome)
    return outcome
