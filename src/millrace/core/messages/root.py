"""What every message is, and how a request is refused."""

from enum import Enum

import msgspec

from millrace.types import Block, Epoch


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
    SEALED = "sealed"  # The log was sealed for good.
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
