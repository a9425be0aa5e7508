"""What a read stream asks of whoever drives it, and the reasons it gives.

A driver performs the effects in order.  After Finish or Fail there are no more.
"""

from enum import Enum

import msgspec

from millrace.core.messages import Start, Stop, Window
from millrace.core.projection import ReconfigureReason
from millrace.types import Block, Epoch, Gap, Lsn, NodeId


class RewindReason(Enum):
    """Why a stream asked again."""

    OPENED = "opened"
    SENDER_LOST = "sender_lost"
    EPOCH = "epoch"
    REFUSED = "refused"
    CORRUPT = "corrupt"
    MISBEHAVED = "misbehaved"
    CHAIN_TROUBLE = "chain_trouble"


class FailReason(Enum):
    """Why a stream cannot go on, however long it waits."""

    UNKNOWN_LOG = "unknown_log"  # The log was deleted.
    CORRUPT_BLOCK = "corrupt_block"  # Damaged at the tail, and nobody has a good copy.


class StartSender(msgspec.Struct, frozen=True):
    node: NodeId
    start: Start


class TellSender(msgspec.Struct, frozen=True):
    node: NodeId
    message: Window | Stop


class Deliver(msgspec.Struct, frozen=True):
    """Hand over [first, end) of the block."""

    block: Block
    first: Lsn
    end: Lsn


class DeliverGap(msgspec.Struct, frozen=True):
    gap: Gap


class NeedProjection(msgspec.Struct, frozen=True):
    """The projection of at least `epoch`.  With a `cause` the chain must be changed for it."""

    epoch: Epoch
    reason: RewindReason
    cause: ReconfigureReason | None = None
    suspect: NodeId | None = None


class NeedRepair(msgspec.Struct, frozen=True):
    lsn: Lsn


class NeedCopy(msgspec.Struct, frozen=True):
    """Fetch the committed block at `lsn` from a node other than `avoid`."""

    lsn: Lsn
    avoid: NodeId


class SetTimer(msgspec.Struct, frozen=True):
    """Replaces the stream's timer."""

    ms: int


class Finish(msgspec.Struct, frozen=True):
    pass


class Fail(msgspec.Struct, frozen=True):
    """The end, before `end`: nothing from `lsn` on will come."""

    reason: FailReason
    lsn: Lsn


ReadEffect = (
    StartSender
    | TellSender
    | Deliver
    | DeliverGap
    | NeedProjection
    | NeedRepair
    | NeedCopy
    | SetTimer
    | Finish
    | Fail
)
