"""Blocks, projections and a driver for procedures, shared by the tests of the core."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from millrace.codec import blocks
from millrace.core import procedure as p
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import Standing
from millrace.core.projection import Projection
from millrace.types import (
    NO_TOKEN,
    Block,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    NodeInfo,
    Role,
    Token,
)

LOG = LogId(1)
SEQUENCER = NodeId(9)
CHAIN = (NodeId(1), NodeId(2), NodeId(3))
MINE = Token(5, 1)
OTHER = Token(6, 1)


def block(first: int, count: int = 1, token: Token = MINE, value: bytes = b"x") -> Block:
    body = blocks.draft([value] * count, timestamps_us=0, compress=False)
    return blocks.place(body, LOG, Epoch(1), Lsn(first), token)


def hole(first: int, count: int = 1) -> Block:
    return blocks.junk(LOG, Lsn(first), count, EntryKind.HOLE)


def extent(first: int, count: int = 1, token: Token = MINE, value: bytes = b"x") -> Extent:
    return block(first, count, token, value).extent()


def projection(
    epoch: int = 1, chain: Sequence[int] = CHAIN, previous: int = 0, **fields: Any
) -> Projection:
    nodes = tuple(NodeId(node) for node in chain)
    fields = {"sequencer": SEQUENCER, "replication": 3} | fields
    return Projection(LOG, Epoch(epoch), nodes, previous=Epoch(previous), **fields)


def state(
    epoch: int = 1,
    contiguous_end: int = 1,
    sparse: Sequence[Extent] = (),
    trim_end: int = 1,
    standing: Standing = Standing.MEMBER,
) -> LogState:
    end = Lsn(sparse[-1].last + 1) if sparse else Lsn(contiguous_end)
    fence = Fence(Epoch(epoch), NO_TOKEN, standing)
    return LogState(fence, Lsn(trim_end), Lsn(contiguous_end), end, list(sparse), 0, 0)


def node_info(node: int, location: str = "", roles: tuple[Role, ...] | None = None) -> NodeInfo:
    return NodeInfo(NodeId(node), f"host{node}:1", location, roles or (Role.STORAGE,))


FAILED = p.Failure(p.FailureKind.CONNECT)
TIMED_OUT = p.Failure(p.FailureKind.TIMED_OUT)
DEADLINE = p.DeadlinePassed()
Reply = Any


class Run:
    """A procedure and what it did: `effects` without notes, `notes`, and `result` at its end."""

    def __init__(self, running: Generator[p.Effect, Any, Any]) -> None:
        self.effects: list[p.Effect] = []
        self.notes: list[str] = []
        self.result: Any = None
        self.is_done = False
        self._running = running
        self._go(lambda: next(running))

    def answer(self, *answers: Reply) -> "Run":
        """Feed answers one after the other; an exception is thrown in."""
        for answer in answers:
            assert not self.is_done, f"it had returned {self.result}"
            if isinstance(answer, BaseException):
                self._go(lambda thrown=answer: self._running.throw(thrown))  # type: ignore[misc]
            else:
                self._go(lambda sent=answer: self._running.send(sent))  # type: ignore[misc]
        return self

    @property
    def last(self) -> p.Effect:
        return self.effects[-1]

    def asked(self) -> list[tuple[int, str]]:
        """(node, message) of every request so far."""
        found = []
        for effect in self.effects:
            asks = effect.asks if isinstance(effect, p.AskAll) else [effect]
            found += [
                (ask.node, type(ask.message).__name__) for ask in asks if isinstance(ask, p.Ask)
            ]
        return found

    def _go(self, resume: Callable[[], p.Effect]) -> None:
        try:
            effect = resume()
            while isinstance(effect, p.Note):
                self.notes.append(effect.event)
                effect = self._running.send(None)
        except StopIteration as stop:
            self.result, self.is_done = stop.value, True
        else:
            self.effects.append(effect)
