"""Said about commit logs: between clients and primaries, replicas and the committer, two replicas.

Whatever concerns a stream carries its generation: a replica that was sealed for a later one refuses
it (`Refusal.EPOCH`), and the refusal carries the later generation.  What a committer says carries
its term in the same way.
"""

from enum import Enum

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.messages.root import Message
from millrace.types import Ack, Block, Epoch, LogId, Lsn, NodeId, StreamId, Token, Version

# -- Clients -------------------------------------------------------------------------------------


class AppendStream(Message, frozen=True):
    """Append the records of a block, which has its writer's token and no position yet (it says 1).
    `is_repeated`: it may have been taken already, but not below local position `searched`.
    Answered with StreamAppended when the records have their place in the log, or AppendUnsettled:
    then only the stream can tell (FindStreamToken)."""

    log: LogId
    stream: StreamId
    generation: Epoch
    block: Block
    ack: Ack = Ack.DISK
    is_repeated: bool = False
    searched: Lsn = Lsn(0)


class StreamAppended(Message, frozen=True):
    first: Lsn
    last: Lsn
    local: Lsn


class FetchStream(Message, frozen=True):
    """Blocks that intersect the local positions [first, end), of those that are committed; any
    replica answers, with StreamPage."""

    log: LogId
    stream: StreamId
    first: Lsn
    end: Lsn
    bytes_max: int


class StreamPage(Message, frozen=True):
    """`low` is where the stream begins, `high` the end of its committed part, as the node knows it;
    block i begins at `firsts[i]` of the log, and `versions[i]` or an earlier one put it there."""

    low: Lsn
    high: Lsn
    blocks: tuple[Block, ...]
    firsts: tuple[Lsn, ...]
    versions: tuple[Version, ...] = ()


class FindStreamToken(Message, frozen=True):
    """Where is the block of this writer's token, committed or not, at local position `since` or
    above?  The replica must be open in `generation` or a later one.  Answered with
    StreamTokenFound."""

    log: LogId
    stream: StreamId
    generation: Epoch
    token: Token
    since: Lsn


class StreamTokenFound(Message, frozen=True):
    """`count` is 0 if the stream has no such block below local position `end`; `first` is 0 while
    it is not committed."""

    local: Lsn
    count: int
    first: Lsn
    end: Lsn = Lsn(0)


# -- Replication ---------------------------------------------------------------------------------


class StreamBlock(Message, frozen=True):
    """From the primary to a backup, in local order.  Answered with StreamStored when it is safe."""

    log: LogId
    stream: StreamId
    generation: Epoch
    block: Block
    ack: Ack = Ack.DISK


class StreamStored(Message, frozen=True):
    end: Lsn  # Local; all below is held.


# -- Reporting and committing --------------------------------------------------------------------


class ReplicaState(Enum):
    OPEN = "open"
    SEALED = "sealed"  # Fenced for a generation that is not open here yet.
    LEARNING = "learning"
    QUARANTINED = "quarantined"  # What is on disk does not fit together, or something was lost.


class StreamReport(msgspec.Struct, frozen=True, array_like=True):
    """Written and not committed: `count` entries from local position `local` on.  Zeros (`local` is
    0) of a replica that cannot tell (5.1); `why` is for people.  `suspects` do not take what the
    primary sends them."""

    stream: StreamId
    generation: Epoch
    state: ReplicaState
    version: Version = Version(0)
    local: Lsn = Lsn(0)
    count: int = 0
    why: str = ""
    suspects: tuple[NodeId, ...] = ()

    @property
    def end(self) -> Lsn:
        return Lsn(self.local + self.count)


class ActivateCommitter(Message, frozen=True):
    """Become the committer of the log unless it has a better one; as Activate."""

    log: LogId
    suspects: tuple[NodeId, ...] = ()


class Report(Message, frozen=True):
    """All that a node holds of the log.  Answered with Reported, or Redirected by a node that is
    not the committer."""

    log: LogId
    term: Epoch
    node: NodeId
    reports: tuple[StreamReport, ...]


class Reported(Message, frozen=True):
    """`strangers` are streams that the node has nothing to do with any more."""

    term: Epoch
    strangers: tuple[StreamId, ...] = ()


class StreamCommits(msgspec.Struct, frozen=True, array_like=True):
    """All commits of a stream that the node may not have taken yet, in order; none if there are
    only empty ones.  With them all below local position `end` is committed: a replica that does not
    come to that has forgotten some (0: nobody knows)."""

    stream: StreamId
    generation: Epoch
    commits: tuple[StreamCommit, ...]
    end: Lsn = Lsn(0)


class Commit(Message, frozen=True):
    """The log is at this version, whose positions begin at `first`: the place of an empty commit
    (M2; 0 if it is not known).  Answered with CommitTaken."""

    log: LogId
    term: Epoch
    committer: NodeId
    version: Version
    high_watermark: Lsn
    trim_end: Lsn
    streams: tuple[StreamCommits, ...]
    first: Lsn = Lsn(0)


class CommitVerdict(Enum):
    """What became of what the committer said about a stream."""

    TAKEN = "taken"
    KNOWN = "known"  # It says nothing new.
    OLD = "old"  # A later version is known here.
    WRONG_GENERATION = "wrong_generation"
    NOT_VALID = "not_valid"
    NO_REPLICA = "no_replica"
    GAP = "gap"  # It does not begin where what is committed here ends.
    TOO_LONG = "too_long"  # More than this replica holds.
    IMPOSSIBLE = "impossible"  # No log can be so: it would end below what it holds.


class RefusedCommit(msgspec.Struct, frozen=True, array_like=True):
    stream: StreamId
    verdict: CommitVerdict


class CommitTaken(Message, frozen=True):
    """What the node reports now, and which streams it left as they were: those will be told again,
    or reformed."""

    reports: tuple[StreamReport, ...]
    refused: tuple[RefusedCommit, ...] = ()


# -- Operators, to the committer -------------------------------------------------------------------


class AddStream(Message, frozen=True):
    """On nodes of the committer's choice; answered with CommitsChanged."""

    log: LogId


class SetStreamOpen(Message, frozen=True):
    """Take appends to the stream, or no more."""

    log: LogId
    stream: StreamId
    is_open: bool


class GiveUpStream(Message, frozen=True):
    """What none of the stream's replicas has any more is lost for good: go on with what is left."""

    log: LogId
    stream: StreamId


class MoveReplica(Message, frozen=True):
    """A replica of the stream is to be on `destination` instead of `source`; with source 0 beside
    the others, and with destination 0 nowhere."""

    log: LogId
    stream: StreamId
    source: NodeId
    destination: NodeId


class TrimCommits(Message, frozen=True):
    """Forget what lies below `end`."""

    log: LogId
    end: Lsn


class SealCommits(Message, frozen=True):
    """Take no more appends, for ever."""

    log: LogId


class CommitsChanged(Message, frozen=True):
    """What was asked for is in the record, or under way.  `high_watermark` is the log's last
    position."""

    term: Epoch
    high_watermark: Lsn


class DescribeCommits(Message, frozen=True):
    """Answered with CommitsDescribed."""

    log: LogId


class CommitsDescribed(Message, frozen=True):
    """`explanation` is JSON, for people: who is silent and why, which streams are reformed."""

    term: Epoch
    explanation: str


# -- Reform --------------------------------------------------------------------------------------


class SealStream(Message, frozen=True):
    """Take nothing of an earlier generation any more.  A node that has no replica of the stream
    makes an empty one.  Answered with StreamSealed."""

    log: LogId
    stream: StreamId
    generation: Epoch


class StreamSealed(Message, frozen=True):
    """What the replica holds: committed up to `local_end`, written up to `end`.  `opened` is the
    generation that it was open in last: if that is not the one of the record, others may have gone
    on without it, and what it holds above the committed end proves nothing.  `last` is where in the
    log its last committed entry lies."""

    generation: Epoch
    version: Version
    local_end: Lsn
    end: Lsn
    is_valid: bool
    why: str = ""
    opened: Epoch = Epoch(0)
    last: Lsn = Lsn(0)


class OpenStream(Message, frozen=True):
    """The replica is one of these, the first is the primary; what lies at local position `end` or
    above is to be forgotten.  With `is_open` false it takes no appends.  Answered with
    StreamOpened."""

    log: LogId
    stream: StreamId
    generation: Epoch
    replicas: tuple[NodeId, ...]
    end: Lsn
    is_open: bool = True


class StreamOpened(Message, frozen=True):
    report: StreamReport


class RetireStream(Message, frozen=True):
    """The node has nothing to do with the stream any more, as of this generation: forget it.
    Answered with Dropped."""

    log: LogId
    stream: StreamId
    generation: Epoch


# -- Synchronization -----------------------------------------------------------------------------


class SyncStream(Message, frozen=True):
    """To the source: bring the destination to where you are.  Answered with StreamSynced when it
    has all that was committed when it was asked."""

    log: LogId
    stream: StreamId
    generation: Epoch
    destination: NodeId


class StreamSynced(Message, frozen=True):
    local_end: Lsn


class SyncInit(Message, frozen=True):
    """From the source: it has the committed entries [first, end), empty if they are equal, and this
    context.  Answered with SyncRange."""

    log: LogId
    stream: StreamId
    generation: Epoch
    source: NodeId
    first: Lsn
    end: Lsn
    context: CommitContext | None


class SyncRange(Message, frozen=True):
    """Send me [first, end): nothing but the context if they are equal.  `is_complete`: not even
    that."""

    first: Lsn
    end: Lsn
    is_complete: bool = False


class SyncReplicate(Message, frozen=True):
    """The next blocks and where they lie in the log; the context comes with the last ones, and
    makes the replica whole.  Answered with SyncTaken."""

    log: LogId
    stream: StreamId
    generation: Epoch
    source: NodeId
    blocks: tuple[Block, ...]
    runs: tuple[StreamCommit, ...]
    context: CommitContext | None = None


class SyncTaken(Message, frozen=True):
    end: Lsn
