"""Read streams: START, WINDOW and STOP one way; blocks, gaps and the end the other."""

from millrace.core.messages.root import Message, Refusal
from millrace.types import Block, Epoch, GapKind, LogId, Lsn, Selection


class Start(Message, frozen=True):
    """Send [first, end) of the log on `stream`; everything sent carries `version` (the filter
    version of seed 003), so that a rewound stream can tell old answers from new ones.  With a
    `selection` the node may cut blocks down to it; None: blocks as they lie."""

    log: LogId
    epoch: Epoch
    stream: int
    version: int
    first: Lsn
    end: Lsn
    credit_bytes: int
    selection: Selection | None = None


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
