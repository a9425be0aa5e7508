"""How nodes hear of a log's release: soon where readers wait, elsewhere of many blocks at once."""

from collections.abc import Callable

import pytest

from millrace.codec.blocks import junk, lone_record, move
from millrace.core.effects import Ticket
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AppendBlock, Message, Release, Store, Stored
from millrace.core.procedure import Answer
from millrace.core.replication import Replication
from millrace.core.sequenced.activation import Activated
from millrace.core.sequenced.recovery import Recovered
from millrace.lsn import offset_of
from millrace.server.hosted import RELEASE_PAUSE_MS, RELEASE_QUIET_MS, REPEAT_RELEASE_MS, Hosted
from millrace.types import Ack, Epoch, LogId, NodeId, Token
from tests.support.virtual_surroundings import VirtualSurroundings

LOG = LogId(7)
NODES = tuple(map(NodeId, range(1, 6)))
RECORD = EpochRecord(LOG, Epoch(3), NODES[0], NODES, Replication.of(3), Epoch(1))


class Stage(VirtualSurroundings):
    """All nodes store at once; those of `readers` say that somebody reads there."""

    def __init__(self) -> None:
        super().__init__(NODES, [Activated(RECORD), Recovered(RECORD)])
        self.readers: frozenset[NodeId] = frozenset()
        self.copyset: list[NodeId] = []
        self.told: list[tuple[int, NodeId, int]] = []  # When, whom, up to which offset.
        self.appends = 0

    def draw(self, count: int) -> int:
        return 0

    def disabled(self) -> frozenset[NodeId]:
        return frozenset()

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        assert isinstance(message, Store)
        self.copyset.append(node)
        self.later(0, lambda: done(Stored(node in self.readers)))

    def tell(self, node: NodeId, message: Message) -> None:
        assert isinstance(message, Release)
        self.told.append((self.clock_ms, node, offset_of(message.released)))

    def answer(self, ticket: Ticket, message: Message) -> None:
        pass

    # -- The story ----------------------------------------------------------------------------

    def append(self, hosted: Hosted) -> None:
        self.appends += 1
        block = lone_record(LOG, b"value", Token(1, self.appends))
        request = AppendBlock(LOG, Epoch(0), block, Ack.MEMORY)
        hosted.handle((1, self.appends), request)
        self.pass_ms(0)

    def heard(self) -> dict[NodeId, list[int]]:
        """What each node was told since this was asked last."""
        told, self.told = self.told, []
        nodes = {node for _, node, _ in told}
        return {node: [offset for _, whom, offset in told if whom == node] for node in nodes}


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def hosted(stage: Stage) -> Hosted:
    """It sequences the log, and all is quiet."""
    hosted = Hosted(LOG, NODES[0], stage, move, junk, lambda gone: None)
    stage.append(hosted)
    stage.pass_ms(2 * REPEAT_RELEASE_MS)
    stage.copyset.clear()
    stage.told.clear()
    return hosted


def test_after_a_pause_all_nodes_are_told_at_once(stage: Stage, hosted: Hosted) -> None:
    stage.append(hosted)
    assert stage.heard() == {node: [2] for node in NODES}


def test_of_appends_that_follow_closely_all_nodes_hear_when_it_is_quiet(
    stage: Stage, hosted: Hosted
) -> None:
    stage.append(hosted)
    stage.heard()
    for _ in range(5):
        stage.pass_ms(1)
        stage.append(hosted)
    assert stage.heard() == {}
    stage.pass_ms(2 * RELEASE_QUIET_MS)
    assert stage.heard() == {node: [7] for node in NODES}


def test_of_appends_that_never_pause_all_nodes_hear_now_and_then(
    stage: Stage, hosted: Hosted
) -> None:
    for _ in range(10 * RELEASE_PAUSE_MS):
        stage.append(hosted)
        stage.pass_ms(1)
    heard = stage.heard()
    assert set(heard) == set(NODES)
    assert all(9 <= len(releases) <= 11 for releases in heard.values())


def test_nodes_with_readers_do_not_wait(stage: Stage, hosted: Hosted) -> None:
    stage.append(hosted)
    stage.heard()
    reader = stage.copyset[-1]
    stage.readers = frozenset({reader})
    for expected in (3, 4):
        stage.append(hosted)
        assert stage.heard() == {reader: [expected]}
    stage.readers = frozenset()
    stage.append(hosted)
    assert stage.heard() == {}, "nobody reads there any more"


def test_whoever_reads_is_not_told_twice(stage: Stage, hosted: Hosted) -> None:
    stage.readers = frozenset(NODES)
    stage.append(hosted)
    assert stage.heard() == {node: [2] for node in NODES}


def test_a_sequencer_that_has_ended_tells_nothing(stage: Stage, hosted: Hosted) -> None:
    stage.readers = frozenset(NODES)
    for _ in range(2):
        stage.append(hosted)
    stage.heard()
    hosted.close()
    stage.pass_ms(2 * REPEAT_RELEASE_MS)
    assert stage.heard() == {}
