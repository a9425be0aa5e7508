"""What a node's core orders its shell to do, in order.

`ticket` names the request to be answered: the shell made it and the core hands it back.  A
`Settle` stands behind the mutations it covers: its answer may leave only when they are safe, and
then the shell tells the core (`NodeCore.settled`), which may order more.
"""

import msgspec

from millrace.core.log_state import Fence
from millrace.core.messages import Message
from millrace.types import Ack, Block, Epoch, LogId, Lsn, NodeId, Selection

Ticket = tuple[int, int]  # (session, request); the request is 0 for pushes.


class Reply(msgspec.Struct, frozen=True):
    ticket: Ticket
    message: Message


class Push(msgspec.Struct, frozen=True):
    session: int
    message: Message


class StoreBlock(msgspec.Struct, frozen=True):
    block: Block
    copyset: tuple[NodeId, ...]
    ack: Ack


class SetFence(msgspec.Struct, frozen=True):
    log: LogId
    fence: Fence


class TrimLog(msgspec.Struct, frozen=True):
    log: LogId
    end: Lsn


class RemoveBlocks(msgspec.Struct, frozen=True):
    log: LogId
    firsts: tuple[Lsn, ...]


class DropLog(msgspec.Struct, frozen=True):
    log: LogId


class Settle(msgspec.Struct, frozen=True):
    """Wait until all mutations so far are safe; `number` identifies it to the core."""

    log: LogId
    number: int
    ack: Ack
    ticket: Ticket
    message: Message


class AnswerWritten(msgspec.Struct, frozen=True):
    """Refuse as written, with the blocks that intersect [first, end)."""

    ticket: Ticket
    log: LogId
    epoch: Epoch
    first: Lsn
    end: Lsn


class AnswerBlock(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    epoch: Epoch
    lsn: Lsn


class AnswerIndex(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn
    trim_end: Lsn
    readable_end: Lsn


class AnswerFetch(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    epoch: Epoch
    first: Lsn
    end: Lsn
    bytes_max: int


class AnswerFind(msgspec.Struct, frozen=True):
    """Exactly one of `timestamp_us` and `bytes_kept` is set."""

    ticket: Ticket
    log: LogId
    timestamp_us: int | None
    bytes_kept: int | None


class AnswerWeigh(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn
    pieces: int


class AnswerDescribe(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    epoch: Epoch
    readable_end: Lsn


class SendBlocks(msgspec.Struct, frozen=True):
    """Push what the store holds of [first, end), cut to the `selection` if there is one.  Look
    at no more than about `bytes_max` of it, then tell the core (`NodeCore.sent`)."""

    session: int
    log: LogId
    stream: int
    version: int
    first: Lsn
    end: Lsn
    bytes_max: int
    selection: Selection | None = None


class RunLearn(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    epoch: Epoch
    source: NodeId
    others: tuple[NodeId, ...] = ()


NodeEffect = (
    Reply
    | Push
    | StoreBlock
    | SetFence
    | TrimLog
    | RemoveBlocks
    | DropLog
    | Settle
    | AnswerWritten
    | AnswerBlock
    | AnswerIndex
    | AnswerFetch
    | AnswerFind
    | AnswerWeigh
    | AnswerDescribe
    | SendBlocks
    | RunLearn
)
