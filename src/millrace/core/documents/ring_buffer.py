"""The newest changes that a consumer took, by seq and key: enough to undo them (R-M.1, R-M.4).

An undo fetches the documents anew, so keys are all it needs.  The buffer is bounded; what fell out
of it cannot be undone any more, and a rollback below it forgets everything.

  I1  Entries are in the order they were added.  That is the order of seqs, except for what an undo
      fetched, which lies above what follows, and for what is streamed again after a crash.
  I2  Each change above `floor` is in it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from millrace.core.documents.document import NO_SEQ, Seq

RING_ENTRIES_DEFAULT: Final = 10_000


class RingEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    seq: Seq
    key: bytes


class RingBuffer:
    def __init__(self, entries_max: int = RING_ENTRIES_DEFAULT, floor: Seq = NO_SEQ) -> None:
        assert entries_max > 0, "a buffer without room cannot undo anything"
        self.entries_max = entries_max
        self.floor = floor  # The largest seq that is not in it any more.
        self.last = NO_SEQ  # The largest that is or was in it, until it is cut.
        self._entries: deque[RingEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[RingEntry, ...]:
        return tuple(self._entries)

    def add_many(self, entries: Iterable[RingEntry]) -> None:
        held = self._entries
        before = len(held)
        held.extend(entries)
        for at in range(before, len(held)):
            if held[at].seq > self.last:
                self.last = held[at].seq
        while len(held) > self.entries_max:
            self.floor = max(self.floor, held.popleft().seq)

    def above(self, start: Seq) -> list[bytes] | None:
        """The keys changed above `start`, each once; None: not all of them are known."""
        if start < self.floor:
            return None
        return list(dict.fromkeys(entry.key for entry in self._entries if entry.seq > start))

    def cut(self, start: Seq) -> None:
        """Forget what lies above `start`: it is undone."""
        self._entries = deque(entry for entry in self._entries if entry.seq <= start)
        self.floor = min(self.floor, start)
        self.last = max((entry.seq for entry in self._entries), default=self.floor)
