"""Said about sequenced logs: to the sequencer, and by it and its recovery to storage nodes.

Every request of a sequencer carries the epoch that it was activated in; a node that was sealed
for a later one refuses it (`Refusal.EPOCH`), and the refusal carries the later epoch.
"""

from millrace.core.epochs import NodesetChange
from millrace.core.messages.chain import Standing
from millrace.core.messages.root import Message
from millrace.core.replication import Replication
from millrace.types import (
    Ack,
    Block,
    Copy,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
    Run,
    Token,
)


class AppendBlock(Message, frozen=True):
    """Append the records of a block, which has its writer's token and no position yet (it says 1).
    With `only_in` in that epoch or not at all; 0: in whichever it is.  With `if_tail` only if the
    log's last record is at that position.  `is_repeated`: it may have been taken already."""

    log: LogId
    only_in: Epoch
    block: Block
    ack: Ack = Ack.DISK
    if_tail: Lsn | None = None
    is_repeated: bool = False


class BlockAppended(Message, frozen=True):
    first: Lsn
    last: Lsn


class AppendUnsettled(Message, frozen=True):
    """The sequencer cannot say whether the append is in the log: it lost its place while the block
    was on its way to the nodes, or has forgotten the token.  Not a refusal, which means "certainly
    not done".  `epoch` is the newest that it knows of; the block lies at `first`, unless that is 0,
    or nowhere."""

    epoch: Epoch
    first: Lsn = Lsn(0)


class Redirected(Message, frozen=True):
    """Another node is the sequencer of the log, in this epoch or a later one."""

    node: NodeId
    epoch: Epoch


class Activate(Message, frozen=True):
    """Become the sequencer of the log unless it has a better one.  `suspects` could not be reached
    by whoever asks.  Answered with Redirected, to itself or another."""

    log: LogId
    suspects: tuple[NodeId, ...] = ()


class ChangeNodeset(Message, frozen=True):
    """Begin another epoch than `epoch`, on these nodes and with this replication; older epochs get
    the nodesets in `wider` first.  Answered with Redirected, which names the epoch that the log is
    in: a later one than `epoch`, whoever began it."""

    log: LogId
    epoch: Epoch
    nodeset: tuple[NodeId, ...]
    replication: Replication
    wider: tuple[NodesetChange, ...] = ()


class AskTail(Message, frozen=True):
    """A node that is not the log's sequencer becomes it, or says who is; with `is_glance` it
    refuses, and changes nothing."""

    log: LogId
    is_glance: bool = False


class Tail(Message, frozen=True):
    """As the sequencer knows it: readers see up to `released`; `issued` is the last position given
    out; `last` is that of the last record that is known to be in the log, 0 if there is none."""

    epoch: Epoch
    released: Lsn
    issued: Lsn
    last: Lsn


class SealLog(Message, frozen=True):
    """Take no more appends, for ever.  Answered when what was under way is done and the epoch store
    knows."""

    log: LogId


class LogSealed(Message, frozen=True):
    """`last` is the log's last record; 0 if it has none."""

    epoch: Epoch
    last: Lsn


class Store(Message, frozen=True):
    """Keep a copy of the block.  `good` and `released` are as in Release.  What a recovery writes
    (a copy of a block, a HOLE, the BRIDGE) has its epoch in the placement, and takes the place of
    whatever of lower precedence overlaps it."""

    log: LogId
    epoch: Epoch
    block: Block
    placement: Placement
    good: Lsn
    released: Lsn
    ack: Ack = Ack.DISK


class Stored(Message, frozen=True):
    """`is_awaited`: readers of the log are served here, and want to hear soon of its release."""

    is_awaited: bool = False


class Amend(Message, frozen=True):
    """The copies of these blocks, which begin at the given positions, are elsewhere by now.  Blocks
    that the node does not hold are passed over.  With `is_rebuilding` a donor says so, whatever the
    node was sealed for: it speaks of what is released, with the precedence that it found."""

    log: LogId
    epoch: Epoch
    changes: tuple[tuple[Lsn, Placement], ...]
    is_rebuilding: bool = False


class Amended(Message, frozen=True):
    missing: tuple[Lsn, ...] = ()


class Rebuild(Message, frozen=True):
    """Keep a copy of a block that another node has lost, whatever you were sealed for; answered
    with Stored.  `released` is what the donor knows of it: a block above it, and above what the
    node knows itself, is still its sequencer's business and refused."""

    log: LogId
    block: Block
    placement: Placement
    released: Lsn


class Delete(Message, frozen=True):
    """The copies of these blocks are not needed here (R10): forget those that are not of a later
    wave than the one given, nor written by recovery."""

    log: LogId
    epoch: Epoch
    copies: tuple[tuple[Lsn, int], ...]  # First position and wave.


class Deleted(Message, frozen=True):
    pass


class Release(Message, frozen=True):
    """One-way.  Readers may see all up to `released`; in the sequencer's own epoch all up to `good`
    is stored as often as it should be."""

    log: LogId
    epoch: Epoch
    good: Lsn
    released: Lsn


class SealEpochs(Message, frozen=True):
    """Accept nothing from a sequencer of an epoch below this one any more."""

    log: LogId
    epoch: Epoch


class EpochsSealed(Message, frozen=True):
    """What the node knows: `good` is the last position known to be stored often enough, one for
    each epoch above that of `released`; `end` is above its last block."""

    standing: Standing
    trim_end: Lsn
    released: Lsn
    good: tuple[Lsn, ...]
    end: Lsn


class CloseEpochs(Message, frozen=True):
    """Epochs `first..epoch - 1` are recovered, and the node has been told of all that was decided:
    if it is right about the epochs before those, what it holds is the truth."""

    log: LogId
    epoch: Epoch
    first: Epoch


class EpochsClosed(Message, frozen=True):
    pass


class Copies(Message, frozen=True):
    """Which blocks of [first, end) the node holds: by its index, at most one page."""

    log: LogId
    first: Lsn
    end: Lsn


class CopiesPage(Message, frozen=True):
    """`next_lsn` is where the next page begins; equal to the asked `end` when there is none."""

    copies: tuple[Copy, ...]
    next_lsn: Lsn
    trim_end: Lsn


class FindToken(Message, frozen=True):
    """Which block of [first, end) did this writer append?  Looked for in the index."""

    log: LogId
    token: Token
    first: Lsn
    end: Lsn


class TokenFound(Message, frozen=True):
    """`junk` is what recoveries wrote in the range, as far as the node looked: it tells whether the
    block of another node stands.  What a node does not tell that is not `is_whole` proves nothing.
    """

    copy: Copy | None
    junk: tuple[Copy, ...] = ()
    is_whole: bool = True


class FindRuns(Message, frozen=True):
    """Between which positions the node's blocks lie, in each epoch of what is readable of
    [first, end)."""

    log: LogId
    first: Lsn
    end: Lsn


class RunsFound(Message, frozen=True):
    """One for each epoch in which there is anything, in order, at most one page; one that only
    says where its epoch ends is empty.  `next_lsn` is where the next page begins; 0 if this is the
    last."""

    runs: tuple[Run, ...]
    next_lsn: Lsn = Lsn(0)


class FetchCopies(Message, frozen=True):
    """The blocks of a sequenced log that intersect [first, end), released or not, in order, up to
    about `bytes_max`; answered with Fetched."""

    log: LogId
    first: Lsn
    end: Lsn
    bytes_max: int


class TrimSequenced(Message, frozen=True):
    """Forget everything below `end`; answered with Trimmed.  Trim points only go up and need no
    epoch."""

    log: LogId
    end: Lsn


class DescribeSequenced(Message, frozen=True):
    """What this node holds of a sequenced log."""

    log: LogId


class SequencedDescribed(Message, frozen=True):
    epoch: Epoch  # Sealed below this.
    standing: Standing
    trim_end: Lsn
    released: Lsn
    end: Lsn
    blocks: int
    bytes: int
