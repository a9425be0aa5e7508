"""Performs what a node's core orders, on whatever store and network it is given.

The node process gives it LMDB and sockets; the simulator gives it a simulated disk and network.
It decides nothing: it keeps the order of effects, reads the store for answers that need data, and
reports back to the core.

  I1  A reader never holds up the node: of one stream one batch is read at a time, and between two
      batches everybody else is served.  A filter that lets little through makes no difference.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from millrace.codec.cuts import cut
from millrace.core.effects import (
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
from millrace.core.selections import credit_bytes
from millrace.errors import CorruptBlock
from millrace.server import answers
from millrace.store.contract import Store, StoreFailed
from millrace.types import Block, Lsn, Selection

Release = Callable[[], None]


_STORING = (Write, Fill, Revise)


_Sent = tuple[SendBlocks, Lsn, int]  # An order, how far it was carried out, at what credit.


class Outbox(Protocol):
    """Where a shell's messages go; sessions that are gone swallow them."""

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None: ...

    def push(self, session: int, message: Message, release: Release | None = None) -> None: ...

    def is_writable(self, session: int) -> bool: ...

    def after_others(self, call: Callable[[], None]) -> None:
        """Call when whatever else waits has been served, never from inside this."""


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
        self._stalled: dict[int, list[_Sent]] = {}
        self._turns: deque[_Sent] = deque()  # Streams with more to send, one entry for each.
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
        release: Release | None = scan.release
        if order.selection is not None:
            blocks = _cut_all(blocks, order.selection, order.bytes_max)
            if all(block.is_cut for block in blocks):
                scan.release()  # Nothing of the store is sent: do not hold its pages for long.
                release = None
        message = Blocks(order.stream, order.version, blocks)
        self._outbox.push(order.session, message, release)
        sent = (order, blocks[-1].end, sum(map(credit_bytes, blocks)))
        if not self._outbox.is_writable(order.session):
            self._stalled.setdefault(order.session, []).append(sent)
        elif blocks[-1].end < order.end:
            self._wait_turn(sent)
        else:
            self.perform(self.core.sent(*sent))

    def _wait_turn(self, sent: _Sent) -> None:
        """Keeps I1.  The core hears of it at the stream's next turn, and decides by what it knows
        then: meanwhile the log may be trimmed or sealed and the reader gone."""
        self._turns.append(sent)
        if len(self._turns) == 1:
            self._outbox.after_others(self._next_turn)

    def _next_turn(self) -> None:
        sent = self._turns.popleft()
        if self._turns:
            self._outbox.after_others(self._next_turn)
        self.perform(self.core.sent(*sent))

    def _answer(self, effect: answers.StoreAnswer) -> None:
        message, release = answers.answer(self.store, effect)
        if isinstance(message, Refused) and message.reason is Refusal.CORRUPT:
            self.corrupt_blocks += 1
        self._outbox.answer(*effect.ticket, message, release)

    def _refuse_when_full(self) -> Refusal | None:
        return Refusal.DISK_FULL if self.store.usage().is_full else None


def _cut_all(blocks: Iterable[Block], selection: Selection, bytes_max: int) -> tuple[Block, ...]:
    """As many blocks as the reader has credit for, at least one: a cut may count for more than the
    block that it was made of."""
    cuts: list[Block] = []
    credit = 0
    for block in blocks:
        piece = cut(block, selection)
        credit += credit_bytes(piece)
        if cuts and credit > bytes_max:
            break
        cuts.append(piece)
    return tuple(cuts)
