"""Performs what a node's core orders, on whatever store and network it is given.

The node process gives it LMDB and sockets; the simulator gives it a simulated disk and network.
It decides nothing: it keeps the order of effects, reads the store for answers that need data, and
reports back to the core.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from millrace.core.effects import (
    AnswerBlock,
    AnswerDescribe,
    AnswerFetch,
    AnswerFind,
    AnswerIndex,
    AnswerWritten,
    DropLog,
    NodeEffect,
    Push,
    RemoveBlocks,
    Reply,
    RunLearn,
    SendBlocks,
    SetFence,
    Settle,
    StoreBlock,
    TrimLog,
)
from millrace.core.messages import Blocks, Fill, Message, Refusal, Refused, Revise, Write
from millrace.core.node import NodeCore
from millrace.errors import CorruptBlock
from millrace.server import answers
from millrace.store.contract import Store, StoreFailed
from millrace.types import Lsn

Release = Callable[[], None]


_STORING = (Write, Fill, Revise)


class Outbox(Protocol):
    """Where a shell's messages go; sessions that are gone swallow them."""

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None: ...

    def push(self, session: int, message: Message, release: Release | None = None) -> None: ...

    def is_writable(self, session: int) -> bool: ...


class NodeShell:
    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        run_learn: Callable[[RunLearn], None],
        refuse_writes: Callable[[], Refusal | None] | None = None,
    ) -> None:
        self.core = NodeCore(store.state)
        self.store = store
        self._outbox = outbox
        self._run_learn = run_learn
        self._refuse_writes = refuse_writes or self._refuse_when_full
        self._stalled: dict[int, list[tuple[SendBlocks, Lsn, int]]] = {}
        self.corrupt_blocks = 0

    def handle(self, session: int, request: int, message: Message) -> None:
        if isinstance(message, _STORING):
            self.core.refuse_writes = self._refuse_writes()
        self.perform(self.core.handle((session, request), message))

    def writable(self, session: int) -> None:
        """The session takes data again: go on with the streams that waited for it."""
        for order, next_lsn, size in self._stalled.pop(session, []):
            self.perform(self.core.sent(order, next_lsn, size))

    def session_closed(self, session: int) -> None:
        self._stalled.pop(session, None)
        self.core.session_closed(session)

    def perform(self, effects: list[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case Reply(ticket, message):
                    self._outbox.answer(*ticket, message)
                case StoreBlock(block, copyset, ack):
                    self.store.put(block, copyset, ack)
                case Settle():
                    self.store.barrier(effect.ack, partial(self._settled, effect))
                case SendBlocks():
                    self._send(effect)
                case Push(session, message):
                    self._outbox.push(session, message)
                case SetFence(log, fence):
                    self.store.set_fence(log, fence)
                case TrimLog(log, end):
                    self.store.trim(log, end)
                case RemoveBlocks(log, firsts):
                    self.store.remove(log, firsts)
                case DropLog(log):
                    self.store.drop(log)
                case RunLearn():
                    self._run_learn(effect)
                case _:
                    self._answer(effect)

    def _settled(self, settle: Settle, failed: StoreFailed | None) -> None:
        if failed is None:
            self.perform(self.core.settled(settle))
        else:
            self.perform(self.core.store_failed(settle, failed.reason, failed.detail))

    def _send(self, order: SendBlocks) -> None:
        try:
            scan = self.store.scan(order.log, order.first, order.end, order.bytes_max)
        except CorruptBlock as error:
            self.corrupt_blocks += 1
            self.perform(self.core.broke(order, str(error)))
            return
        blocks = tuple(scan.blocks)
        assert blocks, f"readable positions {order.first}..{order.end - 1} are not in the store"
        size = sum(block.size for block in blocks)
        message = Blocks(order.stream, order.version, blocks)
        self._outbox.push(order.session, message, scan.release)
        next_lsn = blocks[-1].end
        if self._outbox.is_writable(order.session):
            self.perform(self.core.sent(order, next_lsn, size))
        else:
            self._stalled.setdefault(order.session, []).append((order, next_lsn, size))

    def _answer(
        self,
        effect: AnswerBlock
        | AnswerWritten
        | AnswerIndex
        | AnswerFetch
        | AnswerFind
        | AnswerDescribe,
    ) -> None:
        message, release = answers.answer(self.store, effect)
        if isinstance(message, Refused) and message.reason is Refusal.CORRUPT:
            self.corrupt_blocks += 1
        self._outbox.answer(*effect.ticket, message, release)

    def _refuse_when_full(self) -> Refusal | None:
        return Refusal.DISK_FULL if self.store.usage().is_full else None
