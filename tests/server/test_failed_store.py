"""A node whose store failed for good claims nothing of what it acknowledged and lost."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.core import messages as m
from millrace.limits import MIB
from millrace.lsn import first_of
from millrace.server import stream_changes
from millrace.server.shell import NodeShell
from millrace.types import (
    LSN_MAX,
    NO_LSN,
    Ack,
    Block,
    Epoch,
    LogId,
    Lsn,
    Placement,
    Token,
)
from tests.conformance.store_rig import LOG, MEMBER, PLACEMENT, held, make_block
from tests.core.commit import stream_samples as samples
from tests.store.rig import NODE, LmdbRig

EPOCH = Epoch(3)
READER, WRITER = 1, 2  # Sessions.
CREDIT_BYTES = MIB


class Node:
    """A shell on a real store, whose disk fails when it is told to."""

    def __init__(self, path: Path) -> None:
        self.answered: list[m.Message] = []
        self.pushed: list[tuple[int, m.Message]] = []
        self.rig = LmdbRig(path, 64 * MIB)
        self.store = self.rig.store
        self.shell = NodeShell(self.store, self, lambda order: None, me=NODE)

    def answer(self, session: int, request: int, message: m.Message, release: Any = None) -> None:
        self.answered.append(message)

    def push(self, session: int, message: m.Message, release: Any = None) -> None:
        self.pushed.append((session, message))

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        call()

    def ask(self, message: m.Message, session: int = WRITER) -> m.Message:
        before = len(self.answered)
        self.shell.handle(session, 1, message)
        self.rig.run_until(lambda: len(self.answered) > before)
        return self.answered[-1]

    def fail(self, *, is_readable: bool, last: m.Message) -> None:
        """The disk fails at the block of this request, after that was acknowledged."""
        with self.rig.failing_writes("/dev/null", only_meta=not is_readable):
            answer = self.ask(last)
            assert not isinstance(answer, m.Refused), answer
            store = self.store
            self.rig.run_until(lambda: store.failure is not None and not store.unsynced_bytes)
        for log in self.rig.dirty:
            self.shell.dirtied(log)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node")
    yield node
    node.store.close()


def write(first: int) -> m.Write:
    return m.Write(LOG, EPOCH, make_block(first), (NODE,), Ack.MEMORY)


def start(first: int) -> m.Start:
    return m.Start(LOG, EPOCH, 1, 1, Lsn(first), LSN_MAX, CREDIT_BYTES)


READABLE = pytest.mark.parametrize("is_readable", [True, False], ids=["readable", "unreadable"])


@READABLE
def test_a_reader_of_a_chain_log_is_sent_away(node: Node, is_readable: bool) -> None:
    """The block that it wants was acknowledged, and is in no store."""
    node.store.set_fence(LOG, MEMBER)
    assert node.ask(write(1)) == m.Written()
    node.fail(is_readable=is_readable, last=write(2))
    answer = node.ask(start(2), READER)
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.INCOMPLETE
    assert node.pushed == []
    sealed = node.ask(m.Seal(LOG, Epoch(4), Token(2, 2)))
    assert isinstance(sealed, m.Refused)
    for epoch in (EPOCH, Epoch(4)):
        answer = node.ask(m.Read(LOG, epoch, Lsn(2)))
        assert isinstance(answer, m.Refused)
        assert answer.reason in (m.Refusal.INCOMPLETE, m.Refusal.EPOCH)


def test_readers_of_what_cannot_be_read_any_more_are_told_so(node: Node) -> None:
    node.store.set_fence(LOG, MEMBER)
    assert node.ask(write(1)) == m.Written()
    node.ask(start(1), READER)
    node.pushed.clear()
    node.fail(is_readable=False, last=write(2))
    (*_, (session, ended)) = node.pushed
    assert session == READER
    assert isinstance(ended, m.Ended) and ended.reason is m.Refusal.INCOMPLETE


SEQUENCED = LogId(8)


def block_of(number: int) -> Block:
    first = first_of(EPOCH) + number
    return make_block(first, log=SEQUENCED, epoch=EPOCH)


def store(number: int) -> m.Store:
    good = first_of(EPOCH)
    return m.Store(SEQUENCED, EPOCH, block_of(number), Placement((NODE,)), good, NO_LSN, Ack.MEMORY)


def test_a_running_reader_is_told_that_the_node_may_have_had_what_it_lacks(node: Node) -> None:
    """On the stream that it has, what the node passes over would count as never there."""
    assert node.ask(store(1)) == m.Stored()
    first = Lsn(first_of(EPOCH) + 1)
    begin = m.Start(
        SEQUENCED,
        EPOCH,
        1,
        1,
        first,
        LSN_MAX,
        CREDIT_BYTES,
        shipping=m.Shipping(),
        window_last=LSN_MAX,
    )
    assert node.ask(begin, READER) == m.Started(1, 1, begin.first)
    node.pushed.clear()
    node.fail(is_readable=True, last=store(2))
    (*_, (session, ended)) = node.pushed
    assert session == READER
    assert isinstance(ended, m.Ended) and ended.reason is m.Refusal.INCOMPLETE
    assert node.ask(begin, READER) == m.Started(1, 1, begin.first, is_incomplete=True)


def find(number: int) -> m.FindToken:
    block = block_of(number)
    return m.FindToken(SEQUENCED, block.token, first_of(EPOCH), LSN_MAX)


@READABLE
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_no_block_of_a_sequenced_log_is_said_never_to_have_been_there(
    node: Node, is_readable: bool, is_known: bool
) -> None:
    """Neither of a log that the node has not been asked about since it started."""
    assert node.ask(store(1)) == m.Stored()
    if not is_known:
        node.rig.settle()
        node.store.set_fence(LOG, MEMBER)
        assert node.ask(write(1)) == m.Written()
        node.shell = NodeShell(node.store, node, lambda order: None, me=NODE)
    node.fail(is_readable=is_readable, last=store(2) if is_known else write(2))
    answer = node.ask(find(2))
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.INCOMPLETE


@READABLE
def test_a_replica_of_a_stream_is_not_whole_any_more(node: Node, is_readable: bool) -> None:
    node.ask(samples.opening(1))
    first, second = (samples.sent(samples.entry(at), ack=Ack.MEMORY) for at in (1, 2))
    assert node.ask(first) == m.StreamStored(Lsn(2))
    node.fail(is_readable=is_readable, last=second)
    fetch = m.FetchStream(samples.LOG, samples.STREAM, Lsn(1), Lsn(3), CREDIT_BYTES)
    answer = node.ask(fetch)
    assert isinstance(answer, m.Refused) and answer.reason is m.Refusal.INCOMPLETE


def test_truncating_a_log_of_a_failed_store_ends(node: Node) -> None:
    stream_log = samples.STREAM_LOG
    for first in (1, 2):
        node.store.put(make_block(first, log=stream_log), PLACEMENT, Ack.DISK)
    node.rig.settle()
    with node.rig.failing_writes("/dev/null"):
        node.store.put(make_block(3, log=stream_log), PLACEMENT, Ack.DISK)
        assert node.rig.settle() is not None
    stream_changes.truncate(node.store, stream_log, Lsn(1))
    assert held(node.store, stream_log) == [1, 2]
