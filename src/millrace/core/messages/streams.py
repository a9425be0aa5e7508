"""Read streams: START, WINDOW and STOP one way; blocks, gaps and the end the other."""

import msgspec

from millrace.core.messages.root import Message, Refusal
from millrace.types import (
    Block,
    CopysetOrder,
    Epoch,
    GapKind,
    LocalScd,
    LogId,
    Lsn,
    NodeId,
    Selection,
)


class Shipping(msgspec.Struct, frozen=True, array_like=True):
    """Which copies of a sequenced log's blocks a stream wants.  All-send-all is "not single copy",
    and then nobody is known to be down (R6)."""

    is_single_copy: bool = True
    known_down: tuple[NodeId, ...] = ()
    order: CopysetOrder = CopysetOrder.SHUFFLED
    seed: int = 0  # Of the client's session, for SHUFFLED_PER_CLIENT.
    local: LocalScd = LocalScd.OFF
    location: str = ""  # The reader's, for local SCD.


class Start(Message, frozen=True):
    """Send [first, end) of the log on `stream`; everything sent carries `version` (the filter
    version of seed 003), so that a rewound stream can tell old answers from new ones.  With a
    `selection` the node may cut blocks down to it; None: blocks as they lie.  `shipping` says that
    the log is a sequenced one, of which the node holds a part: then the epoch means nothing, and
    nothing above `window_last` is sent."""

    log: LogId
    epoch: Epoch
    stream: int
    version: int
    first: Lsn
    end: Lsn
    credit_bytes: int
    selection: Selection | None = None
    shipping: Shipping | None = None
    window_last: Lsn = Lsn(0)


class Started(Message, frozen=True):
    """`is_incomplete` says that the node may have lost blocks of the log, and is not rebuilt yet:
    what it does not send proves nothing."""

    stream: int
    version: int
    next_lsn: Lsn
    is_incomplete: bool = False


class Window(Message, frozen=True):
    """One-way: the reader lets the node send up to `credit_bytes` in all since Start, and nothing
    above `window_last` of a sequenced log."""

    stream: int
    version: int
    credit_bytes: int
    window_last: Lsn = Lsn(0)


class Stop(Message, frozen=True):
    """One-way: forget the stream."""

    stream: int


class Blocks(Message, frozen=True):
    """Pushed: consecutive blocks of the stream.  Of a sequenced log: the blocks that the node is to
    send below `next_lsn`.  Of a commit log, too, and block i begins at `firsts[i]` of it: its
    header says where it lies in its stream.  Whoever receives the message sees blocks of the
    commit log."""

    stream: int
    version: int
    blocks: tuple[Block, ...]
    next_lsn: Lsn = Lsn(0)
    firsts: tuple[Lsn, ...] = ()


class GapFound(Message, frozen=True):
    """Pushed: the node has nothing at first..last, and why."""

    stream: int
    version: int
    kind: GapKind
    first: Lsn
    last: Lsn


class CaughtUp(Message, frozen=True):
    """Pushed: nothing readable at `next_lsn` now.  `end` > `next_lsn` says that the node holds
    blocks above it: there is a hole.  Of a sequenced log: the node has nothing more to send below
    `next_lsn` (LogDevice's NO_RECORDS); `is_incomplete` as in Started."""

    stream: int
    version: int
    next_lsn: Lsn
    end: Lsn
    is_incomplete: bool = False


class Damaged(Message, frozen=True):
    """Pushed, of a sequenced log: the node should send the block at `first`, but its copy does not
    match its checksum (LogDevice's CHECKSUM_FAIL).  The stream goes on behind it, at `next_lsn`."""

    stream: int
    version: int
    first: Lsn
    next_lsn: Lsn


class Ended(Message, frozen=True):
    """Pushed: the node will send no more on this stream."""

    stream: int
    version: int
    reason: Refusal
    epoch: Epoch
    next_lsn: Lsn
    detail: str = ""
