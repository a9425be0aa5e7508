"""Performs what a node's core orders, on whatever store and network it is given.

The node process gives it LMDB and sockets; the simulator gives it a simulated disk and network.
It decides nothing: it keeps the order of effects, reads the store for answers that need data, and
reports back to the core.

  I1  A reader never holds up the node: of one stream one batch is read at a time, and between two
      batches everybody else is served.  A filter that lets little through makes no difference.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from millrace.codec.blocks import move
from millrace.codec.cuts import cut
from millrace.core.effects import (
    AmendCopies,
    AskCommitter,
    AskReplicate,
    CommitRuns,
    DeleteCopies,
    DropLog,
    NodeEffect,
    OutwardEffect,
    Push,
    RemoveBlocks,
    Reply,
    ReportSoon,
    RunLearn,
    RunPurge,
    RunSync,
    Scatter,
    SendBlocks,
    SetFence,
    SetMarks,
    SetStreamTimer,
    Settle,
    ShipBlocks,
    ShipCommitted,
    StoreBlock,
    StreamTroubled,
    TrimCommitted,
    TrimLog,
    TruncateLog,
    Uncommit,
)
from millrace.core.messages import (
    Amended,
    AppendStream,
    Blocks,
    Fill,
    Message,
    Rebuild,
    Refusal,
    Refused,
    Revise,
    Store,
    StreamBlock,
    SyncReplicate,
    Write,
)
from millrace.core.node import NodeCore
from millrace.core.selections import credit_bytes
from millrace.core.statuses import StatusBoard
from millrace.errors import CorruptBlock
from millrace.limits import SHIP_ENTRIES_MAX
from millrace.server import answers, stream_changes
from millrace.server.answers import StoreAnswer
from millrace.store.contract import Shipment, StoreFailed
from millrace.store.contract import Store as BlockStore
from millrace.types import NO_NODE, Ack, Block, LogId, Lsn, NodeId, Selection

Release = Callable[[], None]


_STORING = frozenset(
    {Write, Store, StreamBlock, AppendStream, SyncReplicate, Fill, Revise, Rebuild}
)


# An order, how far it was carried out, at what credit.
_Sent = tuple[SendBlocks | ShipBlocks | ShipCommitted, Lsn, int]


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
        store: BlockStore,
        outbox: Outbox,
        run_learn: Callable[[RunLearn], None],
        refuse_writes: Callable[[], Refusal | None] | None = None,
        me: NodeId = NO_NODE,
        locations: Mapping[NodeId, str] | None = None,
        board: StatusBoard | None = None,
        run_purge: Callable[[RunPurge], None] = lambda order: None,
    ) -> None:
        self.core = NodeCore(store.state, me, locations, board, move)
        self.store = store
        self._outbox = outbox
        self._run_learn = run_learn
        self._run_purge = run_purge
        self._refuse_writes = refuse_writes or self._refuse_when_full
        self._stalled: dict[int, list[_Sent]] = {}
        self._turns: deque[_Sent] = deque()  # Streams with more to send, one entry for each.
        self._outward: Callable[[OutwardEffect], None] = lambda effect: None
        self.corrupt_blocks = 0

    def begin_streams(self, outward: Callable[[OutwardEffect], None]) -> None:
        """Serve the replicas of streams that the store holds.  `outward` carries out what they
        order of other nodes (`streams.py`)."""
        self._outward = outward
        self.perform(self.core.find_streams(self.store.logs()))

    def handle(self, session: int, request: int, message: Message) -> None:
        if type(message) in _STORING:
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
                case StoreBlock(block, placement, ack):
                    self.store.put(block, placement, ack)
                case Settle():
                    self.store.barrier(effect.ack, partial(self._settled, effect))
                case SetMarks(log, marks):
                    self.store.set_marks(log, marks)
                case SendBlocks():
                    self._send(effect)
                case Push(session, message):
                    self._outbox.push(session, message)
                case ShipBlocks() | ShipCommitted():
                    self._ship(effect)
                case CommitRuns(log, context, runs):
                    self.store.commit(log, context, runs)
                case AskReplicate() | AskCommitter() | ReportSoon() | SetStreamTimer() | RunSync():
                    self._outward(effect)
                case SetFence(log, fence):
                    self.store.set_fence(log, fence)
                case TrimLog(log, end):
                    self.store.trim(log, end)
                case RemoveBlocks(log, firsts):
                    self.store.remove(log, firsts)
                case TruncateLog(log, end):
                    stream_changes.truncate(self.store, log, end)
                case TrimCommitted(log, end):
                    stream_changes.trim(self.store, log, end)
                case Uncommit(log):
                    self.store.uncommit(log)
                case StreamTroubled():
                    self._outward(effect)
                case DropLog(log):
                    self.store.drop(log)
                case Scatter(log):
                    self.store.scatter(log)
                case DeleteCopies():
                    self._delete(effect)
                case AmendCopies():
                    self._amend(effect)
                case RunLearn():
                    self._run_learn(effect)
                case RunPurge():
                    self._run_purge(effect)
                case _:
                    self._answer(effect)

    def purged(self, order: RunPurge, firsts: tuple[Lsn, ...] | None) -> None:
        """What came of an order to purge."""
        self.perform(self.core.purged(order, firsts))

    def dirtied(self, log: LogId) -> None:
        """The store lost blocks of the log that it had acknowledged from memory."""
        self.perform(self.core.dirtied(log))

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

    def _ship(self, order: ShipBlocks | ShipCommitted) -> None:
        try:
            shipment = self._shipment(order)
        except CorruptBlock:
            self._skip_damaged(order)
            return
        blocks = (*self._bridge_over(order), *shipment.blocks)
        next_lsn, release = shipment.next_lsn, shipment.release
        if order.selection is not None and blocks:
            cuts = _cut_all(blocks, order.selection, order.bytes_max)
            if len(cuts) < len(blocks):  # A bridge that began below may be all that fits.
                next_lsn = max(order.first, cuts[-1].end)
            blocks = cuts
        if blocks:
            next_lsn = max(next_lsn, blocks[-1].end)  # It may reach beyond the window.
        firsts = tuple(each.first for each in blocks) if type(order) is ShipCommitted else ()
        self._outbox.push(
            order.session, Blocks(order.stream, order.version, blocks, next_lsn, firsts), release
        )
        sent = (order, next_lsn, sum(map(credit_bytes, blocks)))
        if not self._outbox.is_writable(order.session):
            self._stalled.setdefault(order.session, []).append(sent)
        elif next_lsn < order.end:
            self._wait_turn(sent)
        else:
            self.perform(self.core.sent(*sent))

    def _shipment(self, order: ShipBlocks | ShipCommitted) -> Shipment:
        place = order.first, order.end, order.bytes_max
        if isinstance(order, ShipBlocks):
            return self.store.ship(order.log, *place, order.shipper.ships)
        return self.store.ship_committed(order.streams, *place)

    def _bridge_over(self, order: ShipBlocks | ShipCommitted) -> tuple[Block, ...]:
        """Where a stream begins, behind the last block of an epoch."""
        if not isinstance(order, ShipBlocks) or not order.is_first:
            return ()
        bridge = self.store.bridge_over(order.log, order.first)
        return () if bridge is None else (bridge,)

    def _skip_damaged(self, order: ShipBlocks | ShipCommitted) -> None:
        """The first block to send is damaged: find out where it lies."""
        self.corrupt_blocks += 1
        if isinstance(order, ShipBlocks):
            copies = self.store.copies(order.log, order.first, order.end, SHIP_ENTRIES_MAX)
            extent = next(each.extent for each in copies if order.shipper.ships(each))
        else:
            (extent,) = self.store.index_committed(order.streams, order.first, order.end, 1)
        next_lsn = Lsn(min(extent.last + 1, order.end))
        self.perform(self.core.damaged(order, extent.first, next_lsn))

    def _delete(self, order: DeleteCopies) -> None:
        firsts: list[Lsn] = []
        for first, wave in order.copies:
            held = self.store.copies(order.log, first, Lsn(first + 1), 1)
            placement = held[0].placement if held and held[0].extent.first == first else None
            if placement is not None and not placement.recovery and placement.wave <= wave:
                firsts.append(first)
        self.store.remove(order.log, firsts)

    def _amend(self, order: AmendCopies) -> None:
        amended = Amended(tuple(self.store.amend(order.log, order.changes)))

        def durable(failed: StoreFailed | None) -> None:
            answer = amended if failed is None else Refused(failed.reason, detail=failed.detail)
            self._outbox.answer(*order.ticket, answer)

        self.store.barrier(Ack.DISK, durable)

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

    def _answer(self, effect: StoreAnswer) -> None:
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
