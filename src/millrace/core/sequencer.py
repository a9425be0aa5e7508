"""The sequencer of one log: hands out positions, remembers what it handed out (C6, C8).

Soft state: nothing is stored.  A new one is told by the reconfiguration where to begin, above
everything that sealed nodes hold.

  I1  Within an epoch no position is issued twice.
  I2  It serves exactly one epoch, and epochs only grow.
  I3  Taken over into a new epoch by the same process, it never goes back, so writers that hold
      a position keep it.
"""

from bisect import bisect_right
from collections import deque

from millrace.core.messages import Bootstrapped, Issued, Message, Peeked, Refusal, Refused
from millrace.limits import PUBLISHED_RECORDS_MAX, RECENT_RANGES_MAX
from millrace.types import LSN_MAX, NO_LSN, Epoch, Lsn


class Sequencer:
    def __init__(self) -> None:
        self.epoch = Epoch(0)
        self.since = Epoch(0)  # The first epoch served: the count has no gap since.
        self.next_lsn = Lsn(1)
        self._recent: deque[Lsn] = deque(maxlen=RECENT_RANGES_MAX)  # First of each issued range.

    def bootstrap(self, epoch: Epoch, next_lsn: Lsn) -> Message:
        if epoch < self.epoch:
            return Refused(Refusal.EPOCH, self.epoch, "the sequencer is ahead")
        self.epoch = epoch
        self.since = self.since or epoch
        if next_lsn > self.next_lsn:  # Keeps I3.  Also for an epoch with two proposers.
            self.next_lsn = next_lsn
            self._recent.clear()
        return Bootstrapped(self.next_lsn, self.since)

    def next(self, epoch: Epoch, count: int) -> Message:
        if epoch != self.epoch:
            return self._refuse(epoch)
        if not 0 < count <= PUBLISHED_RECORDS_MAX or self.next_lsn + count > LSN_MAX:
            return Refused(Refusal.BAD_REQUEST, self.epoch, f"cannot issue {count} positions")
        first = self.next_lsn
        self.next_lsn = Lsn(first + count)
        self._recent.append(first)
        return Issued(first, count)

    def peek(self, epoch: Epoch, around: Lsn) -> Message:
        if epoch != self.epoch:
            return self._refuse(epoch)
        first, last = self._range_around(around)
        return Peeked(Lsn(self.next_lsn - 1), first, last)

    def _range_around(self, lsn: Lsn) -> tuple[Lsn, Lsn]:
        if not self._recent or not self._recent[0] <= lsn < self.next_lsn:
            return NO_LSN, NO_LSN
        at = bisect_right(self._recent, lsn)
        end = self._recent[at] if at < len(self._recent) else self.next_lsn
        return self._recent[at - 1], Lsn(end - 1)

    def _refuse(self, epoch: Epoch) -> Refused:
        if epoch > self.epoch:
            return Refused(Refusal.NOT_READY, self.epoch, "no sequencer for this epoch here")
        return Refused(Refusal.EPOCH, self.epoch)
