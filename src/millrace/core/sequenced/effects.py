"""What the writing side of a sequenced log orders: an appender of its sequencer, and the sequencer
of its shell.

`tag` names a block in flight by its first position, and the wave or the timer it is about; the
shell hands it back with the answer, exactly one for each AskStore.
"""

from enum import Enum

import msgspec

from millrace.core.effects import Ticket
from millrace.core.messages import Message, Release, Store
from millrace.core.sequenced.copysets import Copyset
from millrace.types import Epoch, Lsn, NodeId

Tag = tuple[Lsn, int]


# -- Of an appender -------------------------------------------------------------------------------


class NeedCopyset(msgspec.Struct, frozen=True):
    """Another one than the last, answered at once with `Appender.begin`."""

    than: Copyset


class SendWave(msgspec.Struct, frozen=True):
    wave: int
    copyset: Copyset


class Reply(msgspec.Struct, frozen=True):
    """Enough nodes have the block: the client may know."""


class Retire(msgspec.Struct, frozen=True):
    """The sync leaders have it too: readers may see it when all before it may be seen."""


class DropCopies(msgspec.Struct, frozen=True):
    """These nodes need no copy of this wave or an earlier one.  Best effort."""

    nodes: tuple[NodeId, ...]
    wave: int


class StartTimer(msgspec.Struct, frozen=True):
    """The newest one counts: an earlier one may still fire, and does nothing."""

    number: int
    ms: int


class Complete(msgspec.Struct, frozen=True):
    """Nothing more is to be done.  `is_short`: a leader has no copy, another node has."""

    is_short: bool


class GiveUp(msgspec.Struct, frozen=True):
    """The block was tried as often as it may be."""


AppenderEffect = (
    NeedCopyset | SendWave | Reply | Retire | DropCopies | StartTimer | Complete | GiveUp
)


# -- Of a sequencer -------------------------------------------------------------------------------


class ExhaustedCause(Enum):
    """Why an epoch takes no more appends although nobody took it over."""

    OFFSETS = "offsets"  # All are given out.
    WAVES = "waves"  # A block cannot be stored: a recovery must decide about it.


class AskStore(msgspec.Struct, frozen=True):
    """Answered with `LogSequencer.answered`."""

    tag: Tag
    node: NodeId
    message: Store
    timeout_ms: int


class TellNode(msgspec.Struct, frozen=True):
    """One-way: whether it arrives matters to nobody."""

    node: NodeId
    message: Message


class TellRelease(msgspec.Struct, frozen=True):
    """To every node of the nodeset, to those of `awaiting` at once: readers wait there.  It takes
    the place of an earlier one that was not sent yet."""

    message: Release
    awaiting: frozenset[NodeId] = frozenset()


class Answer(msgspec.Struct, frozen=True):
    ticket: Ticket
    message: Message


class SetTimer(msgspec.Struct, frozen=True):
    tag: Tag
    ms: int


class Exhausted(msgspec.Struct, frozen=True):
    """The log needs a new epoch."""

    cause: ExhaustedCause


class Preempted(msgspec.Struct, frozen=True):
    """A sequencer of this epoch has sealed the nodes: this one has ended."""

    epoch: Epoch


SequencerEffect = AskStore | TellNode | TellRelease | Answer | SetTimer | Exhausted | Preempted
