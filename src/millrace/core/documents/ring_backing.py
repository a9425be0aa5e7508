"""What a consumer that is no replica keeps: its place, and a ring buffer of what it took (R-M.1).

The application processes documents in its own time and its own store.  What may have reached it is
in the ring buffer, durable, before it is handed over; where it stands for sure is the state that is
kept afterwards.  After a crash the two may differ: then the ring buffer says what may have to be
undone, the state from where to stream again.

  I1  No document is delivered before its entry is kept.
  I2  `place.seen` is no lower than anything that may have been processed.
  I3  What an undo fetched is in the ring buffer too, also what lies below the place that it went
      back to (a snapshot had only told of a later version): the next master may not have it.
  I4  Who begins below the master's purge seq does not hear of what was deleted up to there: it
      cannot roll back to below that, as if these changes had fallen out of the ring buffer.
"""

from collections.abc import Sequence

from millrace.core.documents.backing import Offset
from millrace.core.documents.consumer_effects import (
    BackingEffect,
    Deliver,
    FollowerState,
    ForgetAll,
    KeepEntries,
    Undo,
)
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Document, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.ring_buffer import RingBuffer, RingEntry
from millrace.core.documents.rollback import Place

NEW: FollowerState = FollowerState()


class RingBacking:
    def __init__(self, ring: RingBuffer, state: FollowerState = NEW) -> None:
        """Both as they were kept."""
        self.ring = ring
        self.log = state.log
        self.snapshot = state.snapshot
        self.seen = state.seen
        self.running = state.running
        self.undo = state.undo
        self._announced = state.running
        self._fetched: list[RingEntry] = []

    def state(self) -> FollowerState:
        """To be kept with the ring buffer, in one write, when it is asked for (`Persist`)."""
        return FollowerState(self.log, self.snapshot, self.seen, self.running, self.undo)

    @property
    def place(self) -> Place:
        """Keeps I2."""
        if self.undo is not None or self.ring.last <= self.seen:
            return Place(self.log, self.snapshot, self.seen, self.running)
        return Place(self.log, self.snapshot, self.ring.last, SEQ_MAX)

    @property
    def offset(self) -> Offset:
        if self.seen <= self.snapshot:
            return Offset(self.seen, self.seen, self.seen)
        return Offset(self.seen, self.snapshot, max(self.running, self.seen))

    # -- Rolling back -------------------------------------------------------------------------

    def undo_needed(self, start: Seq, log: FailoverLog) -> bool:
        return max(self.seen, self.ring.last) > start

    def keys_above(self, start: Seq) -> list[bytes] | None:
        return self.ring.above(start)

    def offers(self, keys: Sequence[bytes], start: Seq) -> list[Document]:
        return []  # The application may have made something else of them.

    def begin_undo(self, start: Seq) -> None:
        self.undo = start if self.undo is None else min(self.undo, start)
        self.seen = min(self.seen, start)
        if start <= self.snapshot:
            self.snapshot = self.running = start
        self._fetched = []

    def undo_documents(
        self, documents: Sequence[Document], missing: Sequence[bytes]
    ) -> list[BackingEffect]:
        self._fetched = entries_of(documents)
        return [Undo(tuple(documents), tuple(missing))]

    def wipe(self) -> list[BackingEffect]:
        assert self.undo == NO_SEQ, "only an undo to 0 forgets everything"
        self._fetched = []
        return [ForgetAll()]

    def finish_undo(self, log: FailoverLog, purged: Seq) -> None:
        if self.undo is not None:
            self.ring.cut(self.undo)
            floor = self.ring.floor
            self.ring.add_many(entry for entry in self._fetched if entry.seq > floor)  # Keeps I3.
        self.undo = None
        self.log = log
        if self.is_blind_to(purged):
            self.ring.floor = purged  # Keeps I4.

    def is_blind_to(self, purged: Seq) -> bool:
        return self.seen < purged and self.ring.floor < purged

    def begin_at(self, seq: Seq) -> None:
        self.snapshot = self.seen = self.running = seq
        self.ring = RingBuffer(self.ring.entries_max, floor=seq)

    # -- Streaming ----------------------------------------------------------------------------

    def begin_snapshot(self, first: Seq, last: Seq) -> None:
        if first > self.seen or last < self.seen:
            raise ValueError(f"a snapshot of ({first}, {last}] cannot follow {self.seen}")
        self._announced = last

    def apply(self, documents: Sequence[Document]) -> list[BackingEffect]:
        seen = self.seen
        for document in documents:
            if document.seq <= seen:
                raise ValueError(f"{document.seq} came after {seen}")
            seen = document.seq
        self._arrived(seen)
        entries = entries_of(documents)
        self.ring.add_many(entries)
        return [KeepEntries(tuple(entries)), Deliver(tuple(documents), self.state())]

    def advance(self, seq: Seq) -> list[BackingEffect]:
        if seq <= self.seen:
            return []
        self._arrived(seq)
        return [Deliver((), self.state())]

    def _arrived(self, seq: Seq) -> None:
        if seq > self._announced:
            raise ValueError(f"{seq} lies beyond the snapshot, which ends at {self._announced}")
        self.seen = seq
        # A snapshot that broke off is whole only where it was to end, wherever the next one ends.
        self.running = max(self.running, self._announced)
        if seq >= self.running:
            self.snapshot = seq


def entries_of(documents: Sequence[Document]) -> list[RingEntry]:
    return [RingEntry(document.seq, document.key) for document in documents]
