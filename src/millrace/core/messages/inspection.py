"""Said to a node by an audit: what it holds of a log, and whether that can still be read.

Any kind of log is asked about in the same way, by the number under which the store keeps it: for a
commit log that of each of its streams.  Nothing is decided about it: an audit wants what lies on
the disk, released or not, of a member or of a node that is none any more.
"""

from millrace.core.messages.root import Message
from millrace.types import Block, Copy, LogId, Lsn


class Inspect(Message, frozen=True):
    """The blocks that intersect [first, end) as the node holds them, with their index entries, up
    to about `bytes_max`; answered with Inspected."""

    log: LogId
    first: Lsn
    end: Lsn
    bytes_max: int


class Inspected(Message, frozen=True):
    """One page: `copies` are index entries in order, and block i is the one of copy i.  A damaged
    block is never served: it is the only copy of its page, without a block, and `damage` says what
    is wrong with it.  `next_lsn` is where the next page begins; the asked `end` when there is
    none."""

    copies: tuple[Copy, ...]
    blocks: tuple[Block, ...]
    next_lsn: Lsn
    trim_end: Lsn
    damage: str = ""
