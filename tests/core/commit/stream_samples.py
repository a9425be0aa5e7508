"""A replica of a stream and what it orders, for tests of commit logs."""

from typing import TypeVar

from millrace.codec import blocks
from millrace.core import effects as e
from millrace.core import messages as m
from millrace.core.commit.record import CommitContext, StreamCommit, stream_log_of
from millrace.core.commit.replica import StreamReplica
from millrace.core.log_state import Fence, LogState
from millrace.types import (
    FIRST_LSN,
    Ack,
    Block,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    StreamId,
    Token,
    Version,
)

LOG = LogId(7)
STREAM = StreamId(3)
STREAM_LOG = stream_log_of(LOG, STREAM)
ME, SECOND, THIRD = NodeId(1), NodeId(2), NodeId(3)
TICKET = (1, 2)
MINE = Token(5, 1)
G1, G2, G3 = Epoch(1), Epoch(2), Epoch(3)

T = TypeVar("T")


def draft(count: int = 1, token: Token = MINE, value: bytes = b"x") -> Block:
    """As a client sends it: of the log, without a place."""
    body = blocks.draft([value] * count, timestamps_us=0, compress=False)
    return blocks.place(body, LOG, Epoch(0), FIRST_LSN, token)


def entry(
    first: int,
    count: int = 1,
    generation: int = 1,
    token: Token = MINE,
    value: bytes = b"x",
) -> Block:
    """As a primary places it."""
    return blocks.move(draft(count, token, value), Epoch(generation), Lsn(first), STREAM_LOG)


def sent(block: Block, generation: int | None = None, ack: Ack = Ack.DISK) -> m.StreamBlock:
    by = block.epoch if generation is None else Epoch(generation)
    return m.StreamBlock(LOG, STREAM, by, block, ack)


def seal(generation: int) -> m.SealStream:
    return m.SealStream(LOG, STREAM, Epoch(generation))


def opening(
    generation: int, end: int = 1, replicas: tuple[NodeId, ...] = (SECOND, ME)
) -> m.OpenStream:
    return m.OpenStream(LOG, STREAM, Epoch(generation), replicas, Lsn(end))


def commits(*runs: tuple[int, int, int, int], generation: int = 1) -> m.StreamCommits:
    """Runs are (version, local, first, count)."""
    made = tuple(StreamCommit(Version(v), Lsn(at), Lsn(first), n) for v, at, first, n in runs)
    return m.StreamCommits(STREAM, Epoch(generation), made)


def state(
    generation: int = 1,
    opened: int = 1,
    entries: tuple[int, int] = (1, 1),
    context: CommitContext | None = None,
    runs: tuple[StreamCommit, ...] = (),
    standing: m.Standing = m.Standing.MEMBER,
) -> LogState:
    """`entries` is half-open and begins at the trim point."""
    fence = Fence(Epoch(generation), Token(opened, 0), standing)
    first, end = Lsn(entries[0]), Lsn(entries[1])
    found = LogState(fence, first, end, end, [], 0, 0)
    found.context = context
    if runs:
        found.first_run, found.last_run = runs[0], runs[-1]
    return found


def of(effects: list[e.NodeEffect], kind: type[T]) -> list[T]:
    return [each for each in effects if isinstance(each, kind)]


def reply(effects: list[e.NodeEffect]) -> m.Message:
    (answer,) = of(effects, e.Reply)
    return answer.message


def refusal(effects: list[e.NodeEffect]) -> m.Refusal:
    refused = reply(effects)
    assert isinstance(refused, m.Refused), refused
    return refused.reason


def settle(replica: StreamReplica, effects: list[e.NodeEffect]) -> m.Message:
    """All that was ordered is safe; what is answered then."""
    return [replica.settled(each) for each in of(effects, e.Settle)][-1]


def backup(*entries: Block) -> StreamReplica:
    """Open in generation 1, with these entries, all of them safe."""
    replica = StreamReplica(STREAM_LOG, None, ME)
    settle(replica, replica.seal(TICKET, seal(1)))
    settle(replica, replica.open(TICKET, opening(1)))
    for each in entries:
        settle(replica, replica.take(TICKET, sent(each)))
    return replica


def take_commit(
    replica: StreamReplica,
    told: m.StreamCommits,
    version: int,
    high_watermark: int,
    trim_end: int = 1,
    settle: int = 1_000,
    first: int = 0,
) -> tuple[list[e.NodeEffect], tuple[StreamCommit, ...]]:
    marks = Version(version), Lsn(high_watermark), Lsn(trim_end)
    return replica.commit(told, *marks, settle, Lsn(first))[:2]
