"""What a consumer keeps between its lives: for each partition an offset, and a ring buffer of keys.

I1  What one call of `write` is given becomes durable as a whole, or not at all, and in the order
    of the calls; when it returns it is durable.
I2  `load` gives what the last writes left.  The ring buffer may hold more than was asked for,
    never less.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import NO_SEQ, PartitionId, Seq
from millrace.core.documents.ring_buffer import RING_ENTRIES_DEFAULT, RingBuffer, RingEntry


class AddEntries(msgspec.Struct, frozen=True):
    """To the ring buffer."""

    partition: PartitionId
    entries: tuple[RingEntry, ...]


class MoveOffset(msgspec.Struct, frozen=True):
    partition: PartitionId
    state: FollowerState


class ReplaceAll(msgspec.Struct, frozen=True):
    """Offset and ring buffer: a step of a rollback."""

    partition: PartitionId
    state: FollowerState
    entries: tuple[RingEntry, ...]
    floor: Seq


StateChange = AddEntries | MoveOffset | ReplaceAll


class Kept(msgspec.Struct, frozen=True):
    state: FollowerState = FollowerState()
    entries: tuple[RingEntry, ...] = ()
    floor: Seq = NO_SEQ

    def ring(self, entries_max: int) -> RingBuffer:
        ring = RingBuffer(entries_max, self.floor)
        ring.add_many(self.entries)
        return ring


class ConsumerState(Protocol):
    """`entries_max`: of the ring buffer of each partition, which bounds what can be undone."""

    @property
    def entries_max(self) -> int: ...

    def load(self, partition: PartitionId) -> Kept: ...

    async def write(self, changes: Sequence[StateChange]) -> None: ...

    def close(self) -> None: ...


class MemoryConsumerState:
    """Lives as long as the process: for caches, and whatever else begins anew with it."""

    def __init__(self, entries_max: int = RING_ENTRIES_DEFAULT) -> None:
        self.entries_max = entries_max
        self._states: dict[PartitionId, FollowerState] = {}
        self._rings: dict[PartitionId, RingBuffer] = {}

    def load(self, partition: PartitionId) -> Kept:
        ring = self._ring(partition)
        state = self._states.get(partition, FollowerState())
        return Kept(state, ring.entries, ring.floor)

    async def write(self, changes: Sequence[StateChange]) -> None:
        for change in changes:
            match change:
                case AddEntries(partition, entries):
                    self._ring(partition).add_many(entries)
                case MoveOffset(partition, state):
                    self._states[partition] = state
                case ReplaceAll(partition, state, entries, floor):
                    self._states[partition] = state
                    ring = self._rings[partition] = RingBuffer(self.entries_max, floor)
                    ring.add_many(entries)

    def close(self) -> None:
        """Another consumer may go on with it."""

    def _ring(self, partition: PartitionId) -> RingBuffer:
        return self._rings.setdefault(partition, RingBuffer(self.entries_max))
