"""What a reader of a commit log needs beside the read stream: which nodes it has to hear, and when
a loss may be told.

To a read stream a commit log has one epoch: all positions, on all nodes that have a replica of any
stream.  Both may change under it, so what it finds is held against the record.

  I1  A loss is told only when the record, read after the loss was found, has the streams and
      replicas that the read stream goes by: a position exists only after the record that says where
      its stream lies.
  I2  Parts are handed over in the order in which they came.
"""

from collections import deque

from millrace.core.commit.record import CommitRecord
from millrace.core.epochs import EpochRange
from millrace.core.read_effects import Deliver
from millrace.core.replication import Replication
from millrace.lsn import epoch_of
from millrace.types import LSN_MAX, Epoch, Gap, GapKind, NodeId, StreamId

LAST_EPOCH = epoch_of(LSN_MAX)

Membership = tuple[tuple[StreamId, tuple[NodeId, ...]], ...]
Part = Deliver | Gap


def membership(record: CommitRecord) -> Membership:
    """Who has which stream: when this changes, readers begin anew."""
    return tuple((each.stream, tuple(sorted(each.replicas))) for each in record.streams)


def generations(record: CommitRecord) -> tuple[Epoch, ...]:
    return tuple(each.generation for each in record.streams)


def range_of(record: CommitRecord) -> EpochRange:
    """As few copies as the smallest set of replicas has: only then does silence prove a loss."""
    copies = min((len(each.replicas) for each in record.streams), default=1)
    return EpochRange(Epoch(0), LAST_EPOCH, record.nodes, Replication.of(max(1, copies)))


class LossCheck:
    """Between one read stream and its application."""

    def __init__(self) -> None:
        self._told: CommitRecord | None = None
        self._held: deque[Part] = deque()  # Behind a loss that is not certain yet.

    def tell(self, record: CommitRecord) -> None:
        """The read stream goes by this record from now on."""
        self._told = record

    @property
    def is_due(self) -> bool:
        """The record is to be read, for a loss waits."""
        return bool(self._held)

    def arrived(self, part: Part) -> list[Part]:
        """What can be handed over."""
        if self._held or _is_loss(part):
            self._held.append(part)
            return []
        return [part]

    def is_current(self, record: CommitRecord) -> bool:
        """Whether the read stream can go on; otherwise another takes its place, and what is held
        here is void.  While a loss waits, not even a set of replicas that was left and came back
        is the same."""
        if self._told is None:
            return True
        is_same = membership(record) == membership(self._told)
        return is_same and not (self.is_due and generations(record) != generations(self._told))

    def confirmed(self) -> list[Part]:
        """The record was read, and is current: what can be handed over.  Keeps I1 and I2."""
        parts: list[Part] = []
        while self._held and not (parts and _is_loss(self._held[0])):
            parts.append(self._held.popleft())
        return parts


def _is_loss(part: Part) -> bool:
    return isinstance(part, Gap) and part.kind is GapKind.DATALOSS
