"""What a node's core orders its shell to do, in order.

`ticket` names the request to be answered: the shell made it and the core hands it back.  A
`Settle` stands behind the mutations it covers: its answer may leave only when they are safe, and
then the shell tells the core (`NodeCore.settled`), which may order more.
"""

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, Marks
from millrace.core.messages import Message, Refusal, Report, StreamBlock, SyncInit
from millrace.core.shipping import Shipper
from millrace.types import Ack, Block, Epoch, LogId, Lsn, NodeId, Placement, Selection, Token

Ticket = tuple[int, int]  # (session, request); the request is 0 for pushes.


class Reply(msgspec.Struct, frozen=True):
    ticket: Ticket
    message: Message


class Push(msgspec.Struct, frozen=True):
    session: int
    message: Message


class StoreBlock(msgspec.Struct, frozen=True):
    block: Block
    placement: Placement
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


class Scatter(msgspec.Struct, frozen=True):
    """The log is a sequenced one: the node holds some of its blocks."""

    log: LogId


class SetMarks(msgspec.Struct, frozen=True):
    log: LogId
    marks: Marks


class DeleteCopies(msgspec.Struct, frozen=True):
    """Remove the blocks that begin at these positions, if they are not of a later wave than the
    one given and were not written by a recovery."""

    log: LogId
    copies: tuple[tuple[Lsn, int], ...]


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


class AmendCopies(msgspec.Struct, frozen=True):
    """Change placements, and answer with what is missing when that is durable."""

    ticket: Ticket
    log: LogId
    changes: tuple[tuple[Lsn, Placement], ...]


class AnswerCopies(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn
    trim_end: Lsn


class AnswerInspection(msgspec.Struct, frozen=True):
    """Tell which copies are held, with those blocks that can be read."""

    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn
    bytes_max: int


class AnswerToken(msgspec.Struct, frozen=True):
    """Look in the index for the block that this writer appended.  `otherwise` is the answer when
    not finding it proves nothing."""

    ticket: Ticket
    log: LogId
    token: Token
    first: Lsn
    end: Lsn
    otherwise: Refusal | None = None


class AnswerSequenced(msgspec.Struct, frozen=True):
    """Describe what the node holds of a sequenced log."""

    ticket: Ticket
    log: LogId


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


class AnswerRuns(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn


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


class ShipBlocks(msgspec.Struct, frozen=True):
    """As SendBlocks, of a sequenced log: the blocks that the shipper chooses.  Push them with the
    position up to which all was looked at, then tell the core (`NodeCore.sent`)."""

    session: int
    log: LogId
    stream: int
    version: int
    first: Lsn
    end: Lsn
    bytes_max: int
    shipper: Shipper
    selection: Selection | None = None
    is_first: bool = False  # What began below `first` and is about it is to be sent as well.


class RunPurge(msgspec.Struct, frozen=True):
    """Find out which blocks of epochs `closed..until - 1`, above what is good, were outvoted while
    the node was away; then tell the core (`NodeCore.purged`)."""

    log: LogId
    closed: Epoch
    until: Epoch
    good: tuple[Lsn, ...]


class RunLearn(msgspec.Struct, frozen=True):
    ticket: Ticket
    log: LogId
    epoch: Epoch
    source: NodeId
    others: tuple[NodeId, ...] = ()


# -- Streams of commit logs: `log` is the stream's, unless it says otherwise ----------------------


class CommitRuns(msgspec.Struct, frozen=True):
    """Runs and context are one transaction; a context of None says that the replica is not whole.
    Without runs the context alone is replaced, with the next transaction that happens anyway."""

    log: LogId
    context: CommitContext | None
    runs: tuple[StreamCommit, ...]


class Uncommit(msgspec.Struct, frozen=True):
    """Forget context and runs, keep the blocks."""

    log: LogId


class TruncateLog(msgspec.Struct, frozen=True):
    """Remove the blocks that reach above `end`."""

    log: LogId
    end: Lsn


class TrimCommitted(msgspec.Struct, frozen=True):
    """Remove what lies below this position of the commit log."""

    log: LogId
    end: Lsn


class AnswerPage(msgspec.Struct, frozen=True):
    """Of [first, end) of a stream, which is committed up to `high`."""

    ticket: Ticket
    log: LogId
    first: Lsn
    end: Lsn
    bytes_max: int
    high: Lsn


class AnswerStreamToken(msgspec.Struct, frozen=True):
    """Look for the writer's block in [first, end) of a stream."""

    ticket: Ticket
    log: LogId
    token: Token
    first: Lsn
    end: Lsn


class ShipCommitted(msgspec.Struct, frozen=True):
    """As ShipBlocks, of a commit log: all that these of its streams have."""

    session: int
    log: LogId  # The commit log.
    stream: int
    version: int
    first: Lsn
    end: Lsn
    bytes_max: int
    streams: tuple[LogId, ...]
    selection: Selection | None = None


class AskReplicate(msgspec.Struct, frozen=True):
    """Of the primary; what comes of it is told with `NodeCore.replicated`, once."""

    log: LogId
    node: NodeId
    attempt: int
    message: StreamBlock
    timeout_ms: int


class StreamTroubled(msgspec.Struct, frozen=True):
    """A backup does not take what the primary sends: the committer is to know."""

    log: LogId
    node: NodeId
    why: str


class AskCommitter(msgspec.Struct, frozen=True):
    """What comes of it is told with `NodeCore.reported`, once, with the node that was asked: if
    none is given the shell finds out who is the log's committer."""

    log: LogId  # The commit log.
    node: NodeId
    message: Report
    timeout_ms: int


class ReportSoon(msgspec.Struct, frozen=True):
    """Tell with `NodeCore.report_due` when the others that wait for the same have been told: what
    became safe at one moment is reported at once."""

    log: LogId  # The commit log.


class SetStreamTimer(msgspec.Struct, frozen=True):
    """Tell with `NodeCore.stream_timer_fired`.  With a node it is about what a stream's primary
    sends there, else about the reports of a commit log."""

    log: LogId
    node: NodeId
    number: int
    ms: int


class RunSync(msgspec.Struct, frozen=True):
    """Bring the destination's replica of the stream to where this node's is, and answer."""

    ticket: Ticket
    offer: SyncInit
    destination: NodeId


# What is beyond the node's own store and sessions.
OutwardEffect = AskReplicate | StreamTroubled | AskCommitter | ReportSoon | SetStreamTimer | RunSync

NodeEffect = (
    Reply
    | Push
    | StoreBlock
    | SetFence
    | TrimLog
    | RemoveBlocks
    | Scatter
    | SetMarks
    | DeleteCopies
    | AmendCopies
    | DropLog
    | Settle
    | AnswerWritten
    | AnswerBlock
    | AnswerIndex
    | AnswerCopies
    | AnswerInspection
    | AnswerSequenced
    | AnswerToken
    | AnswerFetch
    | AnswerFind
    | AnswerWeigh
    | AnswerRuns
    | AnswerDescribe
    | SendBlocks
    | ShipBlocks
    | RunLearn
    | RunPurge
    | CommitRuns
    | Uncommit
    | TruncateLog
    | TrimCommitted
    | AnswerPage
    | AnswerStreamToken
    | ShipCommitted
    | AskReplicate
    | StreamTroubled
    | AskCommitter
    | ReportSoon
    | SetStreamTimer
    | RunSync
)
