"""Where a node that sequences a log puts the copies of what is appended to it."""

from collections.abc import Callable

from millrace.codec.blocks import junk, lone_record, move
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AppendBlock, BlockAppended, Message, Store, Stored
from millrace.core.procedure import Answer
from millrace.core.replication import Replication
from millrace.core.sequenced.activation import Activated
from millrace.core.sequenced.recovery import Recovered
from millrace.core.sequenced.settings import SequencerSettings
from millrace.server.hosted import Hosted
from millrace.types import Ack, Epoch, LogId, NodeId, Token
from tests.support.virtual_surroundings import VirtualSurroundings

LOG, ME, APPENDS = LogId(7), NodeId(9), 20
NODES = tuple(map(NodeId, range(1, 31)))
RECORD = EpochRecord(
    LOG,
    Epoch(3),
    ME,
    NODES,
    Replication.of(3),
    Epoch(1),
    settings=SequencerSettings(sticky_bytes=1),  # Another copyset each time.
)


class Stage(VirtualSurroundings):
    """All nodes store what they are sent."""

    def __init__(self) -> None:
        super().__init__(NODES, [Activated(RECORD), Recovered(RECORD)])
        self.stored: list[NodeId] = []
        self.answered = 0

    def draw(self, count: int) -> int:
        return next(self.order) % count

    def disabled(self) -> frozenset[NodeId]:
        return frozenset()

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        assert isinstance(message, Store)
        self.stored.append(node)
        self.later(1, lambda: done(Stored()))

    def tell(self, node: NodeId, message: Message) -> None:
        pass

    def answer(self, ticket: tuple[int, int], message: Message) -> None:
        assert isinstance(message, BlockAppended), message
        self.answered += 1


def test_appends_that_come_one_at_a_time_have_a_copy_on_their_sequencers_own_node() -> None:
    stage = Stage()
    hosted = Hosted(LOG, ME, stage, move, junk, lambda gone: None)
    for number in range(1, APPENDS + 1):
        block = lone_record(LOG, b"value", Token(1, number))
        hosted.handle((1, number), AppendBlock(LOG, Epoch(0), block, Ack.MEMORY))
        stage.pass_ms(100)
    assert stage.answered == APPENDS
    assert stage.stored.count(ME) == APPENDS
    assert len(set(stage.stored)) > 3, "other copysets were drawn"
