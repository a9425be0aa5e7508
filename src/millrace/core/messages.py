"""Everything that is said on the wire, grouped by conversation.

A message is a frozen struct, encoded as a tagged MessagePack array (`codec/frames.py`); the
`Block`s in it travel behind it, uncopied.  New fields go at the end with a default, so that two
versions can talk.  Every request about a log carries the epoch of its sender's projection, and a
refusal carries the right one (C3).
"""

from enum import Enum

import msgspec

from millrace.types import Ack, Block, Epoch, Extent, GapKind, LogId, Lsn, NodeId, NodeInfo, Token


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Root of all messages; the tag is the class name."""


class Refusal(Enum):
    """Why a request was refused: definitely not done, whatever the reason."""

    EPOCH = "epoch"  # The sender's epoch is not the node's; `epoch` says which is.
    WRITTEN = "written"  # Write-once: `blocks` holds what is there.
    UNWRITTEN = "unwritten"
    TRIMMED = "trimmed"
    NOT_READY = "not_ready"  # No sequencer for this epoch here.
    INCOMPLETE = "incomplete"  # The node lost data it once had: it must be synchronized.
    DISK_FULL = "disk_full"
    BUSY = "busy"
    CORRUPT = "corrupt"
    CONFLICT = "conflict"  # Compare-and-set found another version.
    NO_LEASE = "no_lease"
    BAD_REQUEST = "bad_request"
    UNAVAILABLE = "unavailable"  # The node cannot reach what it needs, e.g. the repository.


class Refused(Message, frozen=True):
    reason: Refusal
    epoch: Epoch = Epoch(0)
    detail: str = ""
    blocks: tuple[Block, ...] = ()


# -- Connection -------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of both sides.  `auth` is the place for access control, unused so far."""

    version: int
    cluster: str = ""  # Empty: a client that does not know it yet.
    node: NodeId = NodeId(0)  # 0: not a node.
    location: str = ""
    session: int = 0
    software: str = ""
    auth: bytes = b""


class Ping(Message, frozen=True):
    pass


class Pong(Message, frozen=True):
    pass


class Goodbye(Message, frozen=True):
    """The connection is about to be closed, and why."""

    code: str
    detail: str = ""


# -- Sequencer --------------------------------------------------------------------------------


class Next(Message, frozen=True):
    log: LogId
    epoch: Epoch
    count: int


class Issued(Message, frozen=True):
    first: Lsn
    count: int


class Peek(Message, frozen=True):
    """Largest issued position; with `around`, the issued range that holds that position."""

    log: LogId
    epoch: Epoch
    around: Lsn = Lsn(0)


class Peeked(Message, frozen=True):
    last: Lsn
    range_first: Lsn = Lsn(0)  # 0: the sequencer does not remember.
    range_last: Lsn = Lsn(0)


class Bootstrap(Message, frozen=True):
    """Serve `next` for this epoch, issuing nothing below `next_lsn`."""

    log: LogId
    epoch: Epoch
    next_lsn: Lsn


class Bootstrapped(Message, frozen=True):
    """`since` is the first epoch that this process sequenced, without forgetting its count."""

    next_lsn: Lsn
    since: Epoch = Epoch(0)


# -- Chain node -------------------------------------------------------------------------------


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


# -- Read streams -----------------------------------------------------------------------------


class Start(Message, frozen=True):
    """Send [first, end) of the log on `stream`; everything sent carries `version` (the filter
    version of seed 003), so that a rewound stream can tell old answers from new ones."""

    log: LogId
    epoch: Epoch
    stream: int
    version: int
    first: Lsn
    end: Lsn
    credit_bytes: int


class Started(Message, frozen=True):
    stream: int
    version: int
    next_lsn: Lsn


class Window(Message, frozen=True):
    """One-way: the reader lets the node send up to `credit_bytes` in all since Start."""

    stream: int
    version: int
    credit_bytes: int


class Stop(Message, frozen=True):
    """One-way: forget the stream."""

    stream: int


class Blocks(Message, frozen=True):
    """Pushed: consecutive blocks of the stream."""

    stream: int
    version: int
    blocks: tuple[Block, ...]


class GapFound(Message, frozen=True):
    """Pushed: the node has nothing at first..last, and why."""

    stream: int
    version: int
    kind: GapKind
    first: Lsn
    last: Lsn


class CaughtUp(Message, frozen=True):
    """Pushed: nothing readable at `next_lsn` now.  `end` > `next_lsn` says that the node holds
    blocks above it: there is a hole."""

    stream: int
    version: int
    next_lsn: Lsn
    end: Lsn


class Ended(Message, frozen=True):
    """Pushed: the node will send no more on this stream."""

    stream: int
    version: int
    reason: Refusal
    epoch: Epoch
    next_lsn: Lsn
    detail: str = ""


# -- Cluster and node -------------------------------------------------------------------------


class DescribeCluster(Message, frozen=True):
    pass


class ClusterDescribed(Message, frozen=True):
    """`metadata` lists the addresses that answer Meta* requests, best first."""

    cluster: str
    nodes: tuple[NodeInfo, ...]
    metadata: tuple[str, ...]


class DescribeNode(Message, frozen=True):
    pass


class NodeDescribed(Message, frozen=True):
    node: NodeInfo
    uptime_ms: int
    logs: int
    bytes_used: int
    bytes_total: int
    is_full: bool
    is_keeper: bool
    connections: int
    software: str


# -- Metadata repository ----------------------------------------------------------------------


class MetaGet(Message, frozen=True):
    key: str


class MetaEntry(Message, frozen=True):
    """`version` 0 means that the key is absent; versions of a key only grow while it exists."""

    key: str
    value: bytes
    version: int
    lease: int = 0


class MetaSet(Message, frozen=True):
    """Compare-and-set: `expected` 0 creates, -1 sets whatever is there.  Answers MetaEntry, or
    Refused(CONFLICT) when another version stands there."""

    key: str
    value: bytes
    expected: int
    lease: int = 0


class MetaDelete(Message, frozen=True):
    key: str
    expected: int


class MetaUnknown(Message, frozen=True):
    """Answers a change that may or may not have happened, which Refused must never do."""

    detail: str = ""


class MetaList(Message, frozen=True):
    """With `revision`: the next page, behind the key `after`, of a listing of that revision."""

    prefix: str
    revision: int = 0
    after: str = ""


class MetaListing(Message, frozen=True):
    """`revision` is the repository's; watching from it misses nothing.  `is_partial` says that
    the listing goes on behind its last key."""

    entries: tuple[MetaEntry, ...]
    revision: int
    is_partial: bool = False


class MetaWatch(Message, frozen=True):
    """Push every change under `prefix` after `revision` on `stream`, until Stop(stream)."""

    stream: int
    prefix: str
    revision: int


class MetaWatching(Message, frozen=True):
    stream: int


class MetaChanged(Message, frozen=True):
    """Pushed; an entry with version 0 was deleted.  `lost` says that changes may be missing:
    list again."""

    stream: int
    entries: tuple[MetaEntry, ...]
    revision: int
    lost: bool = False


class MetaGrant(Message, frozen=True):
    ttl_ms: int


class MetaLease(Message, frozen=True):
    lease: int
    ttl_ms: int


class MetaKeepAlive(Message, frozen=True):
    lease: int


class MetaRevoke(Message, frozen=True):
    lease: int


class MetaDone(Message, frozen=True):
    pass
