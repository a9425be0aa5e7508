"""A node's core: routes requests to the chain nodes, sequencers and streams it hosts.

The shell (a process, or the simulator) performs the effects in order and reports back through
`settled`, `store_failed`, `sent`, `broke` and `session_closed`.  A log's state is opened on first
use.

I1  State is kept only of logs that the store holds, that were changed here, or whose sequencer
    was bootstrapped here: asking about log numbers costs no memory.
"""

from collections.abc import Callable

from millrace.core.chain_node import ChainNode
from millrace.core.effects import DropLog, NodeEffect, Reply, RunLearn, SendBlocks, Settle, Ticket
from millrace.core.log_state import LogState
from millrace.core.messages import (
    Admit,
    BeginLearn,
    Bootstrap,
    Describe,
    Drop,
    Dropped,
    Fetch,
    Fill,
    FindSize,
    FindTime,
    Index,
    Learn,
    Message,
    Next,
    Peek,
    Read,
    Refusal,
    Refused,
    Revise,
    Seal,
    Start,
    Stop,
    Trim,
    Weigh,
    Window,
    Write,
)
from millrace.core.selections import complaint
from millrace.core.send_streams import SendStreams
from millrace.core.sequencer import Sequencer
from millrace.types import Ack, Epoch, LogId, Lsn

OpenLog = Callable[[LogId], LogState | None]
_NO_SEQUENCER = Refused(Refusal.NOT_READY, Epoch(0), "no sequencer for this log here")
_DROP_NUMBER = 0  # A drop settles nothing that a chain node tracks.


class NodeCore:
    def __init__(self, open_log: OpenLog) -> None:
        self._open_log = open_log
        self._chains: dict[LogId, ChainNode] = {}
        self._sequencers: dict[LogId, Sequencer] = {}
        self._streams = SendStreams()
        self.refuse_writes: Refusal | None = None  # Kept up to date by the shell.

    def chain(self, log: LogId) -> ChainNode:
        """The log's state here; a blank one that is not kept if there is none (I1)."""
        chain = self._chains.get(log)
        if chain is None:
            state = self._open_log(log)
            chain = ChainNode(log, state)
            if state is not None:
                self._chains[log] = chain
        return chain

    @property
    def logs_kept(self) -> int:
        """How many logs cost memory here (I1)."""
        return len(self._chains.keys() | self._sequencers.keys())

    def handle(self, ticket: Ticket, message: Message) -> list[NodeEffect]:
        match message:
            case Write() | Read() | Fill() | Trim() | Index() | Fetch() | Seal() | Admit():
                return self._chain_step(ticket, message)
            case Next(log, epoch, count):
                sequencer = self._sequencers.get(log)
                issued = _NO_SEQUENCER if sequencer is None else sequencer.next(epoch, count)
                return [Reply(ticket, issued)]
            case Peek(log, epoch, around):
                sequencer = self._sequencers.get(log)
                peeked = _NO_SEQUENCER if sequencer is None else sequencer.peek(epoch, around)
                return [Reply(ticket, peeked)]
            case Window():
                return self._widen(ticket[0], message)
            case Start():
                return self._start(ticket, message)
            case Stop(stream):
                self._streams.stop(ticket[0], stream)
                return []
            case Describe() | FindTime() | FindSize() | Weigh() | BeginLearn() | Revise():
                return self._chain_step(ticket, message)
            case Bootstrap(log, epoch, next_lsn):
                sequencer = self._sequencers.setdefault(log, Sequencer())
                return [Reply(ticket, sequencer.bootstrap(epoch, next_lsn))]
            case Learn(log, epoch, source, others):
                return [RunLearn(ticket, log, epoch, source, others)]
            case Drop(log):
                return self._drop(ticket, log)
        detail = f"a node does not answer {type(message).__name__}"
        return [Reply(ticket, Refused(Refusal.BAD_REQUEST, detail=detail))]

    def settled(self, settle: Settle) -> list[NodeEffect]:
        """The mutations before `settle` are safe: answer, and serve readers that waited."""
        chain = self._chains.get(settle.log)
        if chain is None:
            return [Reply(settle.ticket, settle.message)]
        answer = chain.settled(settle.number, settle.message)
        return [Reply(settle.ticket, answer), *self._streams.advanced(chain)]

    def store_failed(self, settle: Settle, reason: Refusal, detail: str) -> list[NodeEffect]:
        """The mutations before `settle` were not kept: refuse, and go by what the store has."""
        chain = self.chain(settle.log)
        chain.settled(settle.number, settle.message)
        state = self._open_log(settle.log)
        if state is not None:
            chain.reload(state)
        return [Reply(settle.ticket, Refused(reason, chain.fence.epoch, detail))]

    def dirtied(self, log: LogId) -> None:
        """The store lost blocks it had acknowledged from memory, and says so in its state."""
        state = self._open_log(log)
        if log in self._chains and state is not None:
            self._chains[log].reload(state)

    def sent(self, order: SendBlocks, next_lsn: Lsn, sent_bytes: int) -> list[NodeEffect]:
        stream = self._streams.find(order.session, order.stream, order.version)
        if stream is None:
            return []
        return self._streams.sent(stream, next_lsn, sent_bytes, self.chain(order.log))

    def broke(self, order: SendBlocks, detail: str) -> list[NodeEffect]:
        stream = self._streams.find(order.session, order.stream, order.version)
        return [] if stream is None else self._streams.broke(stream, self.chain(order.log), detail)

    def session_closed(self, session: int) -> None:
        self._streams.close_session(session)

    def _chain_step(
        self,
        ticket: Ticket,
        message: Write
        | Read
        | Fill
        | Trim
        | Index
        | Fetch
        | Seal
        | Admit
        | Describe
        | FindTime
        | FindSize
        | Weigh
        | BeginLearn
        | Revise,
    ) -> list[NodeEffect]:
        chain = self.chain(message.log)
        before = chain.fence.epoch
        chain.refuse_writes = self.refuse_writes
        effects = chain.step(ticket, message)
        if message.log not in self._chains and any(type(one) is Settle for one in effects):
            self._chains[message.log] = chain  # It was sealed or changed otherwise.
        if chain.fence.epoch != before:
            effects += self._streams.fenced(chain)
        return effects

    def _start(self, ticket: Ticket, start: Start) -> list[NodeEffect]:
        chain = self.chain(start.log)
        refusal = chain.refuse(start.epoch)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        if start.first < 1 or start.end <= start.first:
            refused = Refused(Refusal.BAD_REQUEST, start.epoch, "an empty range")
            return [Reply(ticket, refused)]
        if start.selection is not None and (wrong := complaint(start.selection)):
            return [Reply(ticket, Refused(Refusal.BAD_REQUEST, start.epoch, wrong))]
        return self._streams.start(ticket, start, chain)

    def _widen(self, session: int, window: Window) -> list[NodeEffect]:
        stream = self._streams.find(session, window.stream, window.version)
        if stream is None:
            return []
        return self._streams.widen(stream, window.credit_bytes, self.chain(stream.log))

    def _drop(self, ticket: Ticket, log: LogId) -> list[NodeEffect]:
        chain = self._chains.pop(log, None)
        ended = [] if chain is None else self._streams.fenced(chain)
        self._sequencers.pop(log, None)
        settle = Settle(log, _DROP_NUMBER, Ack.DISK, ticket, Dropped())
        return [*ended, DropLog(log), settle]
