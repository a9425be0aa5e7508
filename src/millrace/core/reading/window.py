"""How far ahead of the reader nodes may send: the sliding window (seed 003, logdevice 2.7).

The window is a range of positions.  It begins at the position that is to be delivered next, and
stays until a good part of it has been read; then it slides, and nodes are told.

    size 5, threshold .7, at 42:   [42, 46], slides when 45 is next, to [45, 49]

Blocks hold thousands of records, so the window is large and it is bytes that bound memory
(`credit.py`); it slides after as many bytes, too, for what happens when it slides (back to single
copy delivery, nodes reinstated) should not wait for a million records.

  I1  A sliding window never takes back what it allowed.
  I2  It never reaches beyond the epochs whose nodeset is the one being read, nor beyond the end.
"""

from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import Lsn

GROWTH_SHARE = 64  # Without memory pressure the window grows by this part of its full size.


class SlidingWindow:
    def __init__(self, first: Lsn, end: Lsn, settings: SequencedReadSettings) -> None:
        self._full_size = max(1, min(settings.window_lsns, end - first))
        self._threshold = settings.flow_control_threshold
        self._bytes_between = max(1, int(settings.window_bytes * self._threshold))
        self._bytes_at_slide = 0
        self.size = self._full_size
        self.first = first
        self.last = Lsn(first - 1)  # Empty until it is placed.
        self.has_memory_pressure = False

    @property
    def slide_point(self) -> Lsn:
        """Beyond this position it is time to slide."""
        return Lsn(self.first + int(self._threshold * (self.size - 1)))

    @property
    def fullness(self) -> float:
        """1.0 but under memory pressure."""
        return self.size / self._full_size

    def is_due(self, next_lsn: Lsn, bytes_delivered: int) -> bool:
        has_read_bytes = bytes_delivered - self._bytes_at_slide >= self._bytes_between
        is_past = next_lsn > min(self.slide_point, self.last)
        return is_past or (has_read_bytes and next_lsn > self.first)

    def slide(self, next_lsn: Lsn, bytes_delivered: int, limit: Lsn) -> None:
        """`limit` is the end of what may be sent at all (I2)."""
        if self.has_memory_pressure:
            self.size = max(1, self.size // 2)
        else:
            growth = max(1, self._full_size // GROWTH_SHARE)
            self.size = min(self._full_size, self.size + growth)
        self._bytes_at_slide = bytes_delivered
        before = self.last
        self.place(next_lsn, limit)
        self.last = max(self.last, before)  # Keeps I1.

    def place(self, next_lsn: Lsn, limit: Lsn) -> None:
        """As it is at a START to all nodes."""
        self.first = next_lsn
        self.last = Lsn(min(next_lsn + self.size, limit) - 1)

    def open_to(self, limit: Lsn) -> bool:
        """Everybody has passed the window and nothing is in it: look for what lies beyond.  False:
        it was as far as this already."""
        if self.last >= limit - 1:
            return False
        self.last = Lsn(limit - 1)
        return True
