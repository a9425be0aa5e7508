"""What a node holds of one log, as its store tells it."""

import msgspec

from millrace.core.messages import Standing
from millrace.types import Epoch, Extent, Lsn, Token


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """What a seal leaves behind; survives a restart (G7)."""

    epoch: Epoch
    proposer: Token
    standing: Standing


class LogState(msgspec.Struct):
    """What a store holds of one log.  All of [trim_end, contiguous_end) is written; `sparse`
    lists what lies above the first hole, in order; `end` is above the last block."""

    fence: Fence
    trim_end: Lsn
    contiguous_end: Lsn
    end: Lsn
    sparse: list[Extent]
    blocks: int
    bytes: int
