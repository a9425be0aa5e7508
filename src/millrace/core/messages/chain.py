"""Said to a node of a chain: writing, reading, epochs, learning, looking."""

from enum import Enum

from millrace.core.messages.root import Message
from millrace.types import Ack, Block, Epoch, Extent, LogId, Lsn, NodeId, Token, Weight


class Write(Message, frozen=True):
    log: LogId
    epoch: Epoch
    block: Block
    copyset: tuple[NodeId, ...]  # The chain, head first.
    ack: Ack = Ack.DISK


class Written(Message, frozen=True):
    pass


class Fill(Message, frozen=True):
    """Write junk; `block` is a HOLE or LOSS block of the range."""

    log: LogId
    epoch: Epoch
    block: Block
    copyset: tuple[NodeId, ...]


class Filled(Message, frozen=True):
    pass


class Read(Message, frozen=True):
    """The block that holds `lsn`."""

    log: LogId
    epoch: Epoch
    lsn: Lsn


class Found(Message, frozen=True):
    block: Block


class Trim(Message, frozen=True):
    """Forget everything below `end`."""

    log: LogId
    epoch: Epoch
    end: Lsn


class Trimmed(Message, frozen=True):
    end: Lsn


class Standing(Enum):
    """Whether a node may speak for a log."""

    MEMBER = "member"
    BLANK = "blank"  # Never admitted, or its disk was wiped.
    DIRTY = "dirty"  # Crashed with memory-acknowledged blocks that it may have lost.


class Seal(Message, frozen=True):
    """Accept nothing below `epoch` any more; `proposer` makes a repeated seal idempotent."""

    log: LogId
    epoch: Epoch
    proposer: Token


class Sealed(Message, frozen=True):
    """What the node holds: all of [trim_end, contiguous_end), some of [contiguous_end, end)."""

    epoch_before: Epoch
    standing: Standing
    trim_end: Lsn
    contiguous_end: Lsn
    end: Lsn


class Admit(Message, frozen=True):
    """The node now holds all that the chain holds: let it be a member of `epoch`."""

    log: LogId
    epoch: Epoch


class Admitted(Message, frozen=True):
    pass


class Index(Message, frozen=True):
    """The extents that intersect [first, end), in order, at most one page."""

    log: LogId
    epoch: Epoch
    first: Lsn
    end: Lsn


class IndexPage(Message, frozen=True):
    """`next_lsn` is where the next page begins; equal to the asked `end` when there is none."""

    extents: tuple[Extent, ...]
    next_lsn: Lsn
    trim_end: Lsn
    readable_end: Lsn


class Fetch(Message, frozen=True):
    """The blocks that intersect [first, end), in order, up to about `bytes_max`."""

    log: LogId
    epoch: Epoch
    first: Lsn
    end: Lsn
    bytes_max: int


class Fetched(Message, frozen=True):
    blocks: tuple[Block, ...]
    next_lsn: Lsn


class Learn(Message, frozen=True):
    """Become a copy of the committed prefix of the log as `source`, the tail, holds it.  `others`
    hold it too: they are asked for what is damaged at the source."""

    log: LogId
    epoch: Epoch
    source: NodeId
    others: tuple[NodeId, ...] = ()


class Learned(Message, frozen=True):
    contiguous_end: Lsn
    blocks_copied: int
    blocks_removed: int


class BeginLearn(Message, frozen=True):
    """First step of learning, which a node says to itself: fence off older epochs and do not
    count as a member until admitted."""

    log: LogId
    epoch: Epoch


class Revise(Message, frozen=True):
    """A step of learning, which a node says to itself: take out what differs, put in what the
    source has."""

    log: LogId
    epoch: Epoch
    trim_end: Lsn
    remove: tuple[Extent, ...] = ()
    blocks: tuple[Block, ...] = ()
    copyset: tuple[NodeId, ...] = ()


class Revised(Message, frozen=True):
    contiguous_end: Lsn


class FindTime(Message, frozen=True):
    """The first position whose block has a timestamp at or above `timestamp_us`."""

    log: LogId
    epoch: Epoch
    timestamp_us: int


class FindSize(Message, frozen=True):
    """The first position such that about `bytes_kept` lie at or above it."""

    log: LogId
    epoch: Epoch
    bytes_kept: int


class Position(Message, frozen=True):
    lsn: Lsn


class Weigh(Message, frozen=True):
    """About how many bytes lie in each of `pieces` equal parts of what is readable of
    [first, end)."""

    log: LogId
    epoch: Epoch
    first: Lsn
    end: Lsn
    pieces: int


class Weighed(Message, frozen=True):
    """In order; they tile what can be read of the range.  Fewer than asked for if there are fewer
    positions, none if nothing of it is readable."""

    pieces: tuple[Weight, ...]


class Describe(Message, frozen=True):
    """What this node holds of a log; answered in any epoch."""

    log: LogId


class Described(Message, frozen=True):
    epoch: Epoch
    standing: Standing
    trim_end: Lsn
    contiguous_end: Lsn
    readable_end: Lsn
    end: Lsn
    blocks: int
    bytes: int


class Drop(Message, frozen=True):
    """The log was deleted: free its space."""

    log: LogId


class Dropped(Message, frozen=True):
    pass
