"""Appends that dead nodes hold back go on soon after those are back, however long their pause."""

from collections.abc import Callable

import pytest

from millrace.codec.blocks import junk, lone_record, move
from millrace.core.effects import Ticket
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    AppendBlock,
    BlockAppended,
    EpochsSealed,
    Message,
    Refusal,
    Refused,
    SealEpochs,
    Standing,
    Store,
    Stored,
)
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.core.replication import Replication
from millrace.core.sequenced.activation import Activated
from millrace.core.sequenced.recovery import Recovered
from millrace.server.hosted import Hosted
from millrace.types import NO_LSN, Ack, Epoch, LogId, Lsn, NodeId, Token
from tests.support.virtual_surroundings import VirtualSurroundings

LOG = LogId(7)
NODES = tuple(map(NodeId, range(1, 6)))
DEAD = frozenset(NODES[2:])
RECORD = EpochRecord(LOG, Epoch(3), NODES[0], NODES, Replication.of(3), Epoch(1))
AWAY = Failure(FailureKind.CONNECT, "it is dead")
SEALED = EpochsSealed(Standing.MEMBER, Lsn(1), NO_LSN, (), Lsn(1))
LONG_MS = 40_000  # By then the pause of a block is half a minute.
SOON_MS = 1_000


class Stage(VirtualSurroundings):
    """Nodes are dead, or take no copies yet."""

    def __init__(self) -> None:
        super().__init__(NODES, [Activated(RECORD), Recovered(RECORD)])
        self.dead = DEAD
        self.starting: frozenset[NodeId] = frozenset()
        self.drained: frozenset[NodeId] = frozenset()
        self.asked: list[Message] = []
        self.appended: list[int] = []  # Tickets, as they were answered.

    def draw(self, count: int) -> int:
        return next(self.order) % count

    def disabled(self) -> frozenset[NodeId]:
        return self.drained

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        self.asked.append(message)
        answer = self._answer_of(node, message)
        self.later(1, lambda: done(answer))

    def _answer_of(self, node: NodeId, message: Message) -> Answer:
        if node in self.dead:
            return AWAY
        if node in self.starting:
            return Refused(Refusal.UNAVAILABLE, detail="the node is starting")
        match message:
            case Store():
                return Refused(Refusal.NOT_READY) if node in self.drained else Stored()
            case SealEpochs():
                return SEALED
        raise AssertionError(f"nobody asks {message}")

    def tell(self, node: NodeId, message: Message) -> None:
        pass

    def answer(self, ticket: Ticket, message: Message) -> None:
        assert isinstance(message, BlockAppended), message
        self.appended.append(ticket[1])

    # -- The story ----------------------------------------------------------------------------

    def count(self, kind: type[Message]) -> int:
        """How many such requests there were since this was asked last."""
        asked, self.asked = self.asked, []
        return sum(isinstance(each, kind) for each in asked)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def hosted(stage: Stage) -> Hosted:
    """Three of five nodes are dead, and two appends have waited for long."""
    hosted = Hosted(LOG, NODES[0], stage, move, junk, lambda gone: None)
    for number in (1, 2):
        block = lone_record(LOG, b"value", Token(1, number))
        hosted.handle((1, number), AppendBlock(LOG, Epoch(0), block, Ack.MEMORY))
    stage.pass_ms(LONG_MS)
    assert stage.appended == []
    return hosted


@pytest.mark.parametrize("back", sorted(DEAD))
def test_one_node_that_is_back_is_enough(stage: Stage, hosted: Hosted, back: NodeId) -> None:
    stage.dead = DEAD - {back}
    stage.pass_ms(SOON_MS)
    assert sorted(stage.appended) == [1, 2]


def test_also_when_it_takes_no_copies_yet_at_first(stage: Stage, hosted: Hosted) -> None:
    stage.dead, stage.starting = DEAD - {NODES[2]}, frozenset({NODES[2]})
    stage.pass_ms(5 * SOON_MS)
    assert stage.appended == []
    stage.starting = frozenset()
    stage.pass_ms(SOON_MS)
    assert sorted(stage.appended) == [1, 2]


def test_and_when_a_drain_is_cancelled(stage: Stage, hosted: Hosted) -> None:
    """Drained nodes decide for themselves when there are no others: they are asked seldom."""
    stage.dead, stage.drained = frozenset(), DEAD
    stage.count(SealEpochs)
    stage.pass_ms(LONG_MS)
    assert stage.appended == []
    assert stage.count(SealEpochs) <= 10 * len(DEAD)
    stage.drained = frozenset()
    stage.pass_ms(SOON_MS)
    assert sorted(stage.appended) == [1, 2]


def test_whom_nothing_waits_for_is_not_asked(stage: Stage, hosted: Hosted) -> None:
    stage.count(SealEpochs)
    stage.pass_ms(SOON_MS)
    assert stage.count(SealEpochs) >= len(DEAD)
    stage.dead = DEAD - {NODES[2]}
    stage.pass_ms(SOON_MS)
    stage.count(SealEpochs)
    stage.pass_ms(LONG_MS)
    assert stage.count(SealEpochs) == 0


def test_a_sequencer_that_has_ended_asks_nobody(stage: Stage, hosted: Hosted) -> None:
    stage.answer = lambda ticket, message: None  # type: ignore[method-assign]
    hosted.close()
    stage.count(SealEpochs)
    stage.pass_ms(LONG_MS)
    assert stage.count(SealEpochs) == 0
