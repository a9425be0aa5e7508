"""Between two batches of a stream the node serves everybody else, however little a filter sends."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from millrace.codec.blocks import draft, place
from millrace.core import messages as m
from millrace.core import send_streams
from millrace.core.log_state import Fence
from millrace.scenario.memory_store import MemoryStore
from millrace.server.shell import NodeShell
from millrace.types import (
    LSN_MAX,
    NO_TOKEN,
    Ack,
    Block,
    Epoch,
    GapKind,
    LogId,
    Lsn,
    Placement,
    Selection,
    Token,
)

LOG, ONE = LogId(1), Epoch(1)
RECORDS, BLOCKS = 100, 1_500  # More blocks than Python allows calls inside each other.
NO_SUCH_KEY = Selection(keys=(b"nobody",))
CREDIT_BYTES = 2**40


class Turns:
    """A node whose outbox keeps what was pushed, and what is to be called after others."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, Any]] = []
        self.answered: list[m.Message] = []
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_clogged = False
        self.store = MemoryStore()
        self.store.set_fence(LOG, Fence(ONE, NO_TOKEN, m.Standing.MEMBER))
        for at in range(BLOCKS):
            self.store.put(_block(1 + at * RECORDS), Placement(()), Ack.DISK)
        self.store.flush()
        self.shell = NodeShell(self.store, self, lambda order: None)

    def answer(self, session: int, request: int, message: m.Message, release: Any = None) -> None:
        self.answered.append(message)

    def push(self, session: int, message: m.Message, release: Any = None) -> None:
        self.pushed.append((session, message))

    def is_writable(self, session: int) -> bool:
        return not self.is_clogged

    def after_others(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def start(self, session: int, selection: Selection | None, end: Lsn = LSN_MAX) -> None:
        start = m.Start(LOG, ONE, session, 1, Lsn(1), end, CREDIT_BYTES, selection)
        self.shell.handle(session, 1, start)

    def turn(self) -> None:
        self.waiting.popleft()()

    def run(self) -> int:
        """Until nothing waits; how many turns that took."""
        turns = 0
        while self.waiting:
            self.turn()
            turns += 1
        return turns

    def blocks(self, session: int) -> list[Block]:
        sent = [message for to, message in self.pushed if to == session]
        return [block for one in sent if isinstance(one, m.Blocks) for block in one.blocks]


def _block(first: int) -> Block:
    values = [b"%0500d" % (first + at) for at in range(RECORDS)]
    body = draft(values, keys=[b"somebody"] * RECORDS, timestamps_us=first, compress=False)
    return place(body, LOG, ONE, Lsn(first), Token(1, first))


@pytest.fixture(scope="module")
def full_node() -> Turns:
    return Turns()


@pytest.fixture
def node(full_node: Turns) -> Turns:
    """Its store is filled once; trims and seals of one test are not seen by the next."""
    full_node.pushed, full_node.answered, full_node.is_clogged = [], [], False
    full_node.waiting.clear()
    full_node.store.crash()
    full_node.shell = NodeShell(full_node.store, full_node, lambda order: None)
    return full_node


@pytest.mark.parametrize("selection", [None, NO_SUCH_KEY], ids=["plain", "selective"])
def test_a_long_log_is_sent_turn_by_turn(node: Turns, selection: Selection | None) -> None:
    node.start(1, selection)
    looked_at = len(node.blocks(1))
    assert 0 < looked_at * 50_000 < 5_000_000  # Records of 500 bytes, 100 in a block.
    assert len(node.waiting) == 1
    turns = node.run()
    assert turns >= BLOCKS // looked_at - 1
    sent = node.blocks(1)
    assert [block.first for block in sent] == list(range(1, BLOCKS * RECORDS, RECORDS))
    assert all(block.is_cut == (selection is not None) for block in sent)
    assert isinstance(node.pushed[-1][1], m.CaughtUp)


def test_small_batches_do_not_pile_up_calls(node: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_streams, "READ_BATCH_BYTES", 1)
    node.start(1, None)
    assert node.run() == BLOCKS - 1


def test_streams_take_turns(node: Turns) -> None:
    for session in (1, 2, 3):
        node.start(session, NO_SUCH_KEY)
    node.pushed.clear()
    for _ in range(9):
        node.turn()
    assert [session for session, _ in node.pushed] == [1, 2, 3] * 3


def test_requests_are_answered_between_turns(node: Turns) -> None:
    node.start(1, NO_SUCH_KEY)
    node.turn()
    node.answered.clear()
    node.shell.handle(2, 7, m.Read(LOG, ONE, Lsn(5)))
    assert isinstance(node.answered[0], m.Found)


def test_a_trim_between_turns_is_a_gap(node: Turns) -> None:
    node.start(1, NO_SUCH_KEY)
    at = node.blocks(1)[-1].end
    node.shell.handle(2, 7, m.Trim(LOG, ONE, Lsn(100_001)))
    node.pushed.clear()
    node.turn()
    gap, blocks = (message for _, message in node.pushed)
    assert gap == m.GapFound(1, 1, GapKind.TRIM, at, Lsn(100_000))
    assert blocks.blocks[0].first == 100_001


@pytest.mark.parametrize("ending", ["closed", "stopped", "sealed", "dropped"])
def test_a_stream_that_is_over_has_no_more_turns(node: Turns, ending: str) -> None:
    node.start(1, NO_SUCH_KEY)
    match ending:
        case "closed":
            node.shell.session_closed(1)
        case "stopped":
            node.shell.handle(1, 0, m.Stop(1))
        case "sealed":
            node.shell.handle(2, 1, m.Seal(LOG, Epoch(2), Token(2, 2)))
        case "dropped":
            node.shell.handle(2, 1, m.Drop(LOG))
    before = len(node.blocks(1))
    assert node.run() == 1
    assert len(node.blocks(1)) == before


def test_a_clogged_session_waits_for_room_and_not_for_its_turn(node: Turns) -> None:
    node.is_clogged = True
    node.start(1, NO_SUCH_KEY)
    assert not node.waiting
    sent = len(node.blocks(1))
    node.is_clogged = False
    node.shell.writable(1)
    assert len(node.blocks(1)) > sent
    assert len(node.waiting) == 1


def test_the_last_batch_is_told_at_once(node: Turns) -> None:
    """A reader at the end of the log learns that it is there without waiting for a turn."""
    node.start(1, None, Lsn(301))
    assert [block.first for block in node.blocks(1)] == [1, 101, 201]
    assert not node.waiting
