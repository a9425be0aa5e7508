"""What a node holds of one log, as its store tells it."""

import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.messages import Standing
from millrace.types import Epoch, Extent, Lsn, Token


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """What a seal leaves behind; survives a restart (G7)."""

    epoch: Epoch
    proposer: Token
    standing: Standing


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """What a sequencer told a node of a scattered log (`messages.Release`); a crash may set them
    back, never forward.  What the node holds of epochs below `closed` is as their recovery
    decided; above, only what is good is certain."""

    released: Lsn = Lsn(0)
    good: tuple[Lsn, ...] = ()  # One for each epoch that is neither closed nor released, in order.
    closed: Epoch = Epoch(0)


class LogState(msgspec.Struct):
    """What a store holds of one log.  All of [trim_end, contiguous_end) is written; `sparse`
    lists what lies above the first hole, in order; `end` is above the last block.

    A log that `is_scattered` has blocks of which other nodes hold those in between (a sequenced
    log): its holes mean nothing and are not listed, and `contiguous_end` is `trim_end`.

    Of a stream of a commit log also what is committed: the newest context, and the lowest and the
    highest run that are not trimmed."""

    fence: Fence
    trim_end: Lsn
    contiguous_end: Lsn
    end: Lsn
    sparse: list[Extent]
    blocks: int
    bytes: int
    is_scattered: bool = False
    marks: Marks = Marks()
    context: CommitContext | None = None
    first_run: StreamCommit | None = None
    last_run: StreamCommit | None = None
