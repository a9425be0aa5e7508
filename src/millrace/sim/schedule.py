"""Virtual time: a heap of what happens next.

Time is whole microseconds, so that sums never drift.  Entries are tuples whose second field is a
running number: two entries of one instant happen in the order they were made, and callables are
never compared.

  I1  Time never goes back.
  I2  The same calls in the same order give the same run.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

MS = 1_000
SECOND = 1_000_000

Call = Callable[..., None]


class Schedule:
    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0  # Entries that happened; cancelled ones do not count.
        self._number = 0
        self._heap: list[tuple[int, int, Call, tuple[Any, ...]]] = []
        self._cancelled: set[int] = set()

    def after(self, delay_us: int, call: Call, *args: Any) -> int:
        """Call later; the answer is good for `cancel`."""
        self._number += 1
        heappush(self._heap, (self.now_us + delay_us, self._number, call, args))
        return self._number

    def cancel(self, number: int) -> None:
        """`number` must not have happened yet: its owner forgets it when it does."""
        self._cancelled.add(number)

    def run(self, until_us: int, may_go_on: Callable[[], bool]) -> None:
        """Let things happen until that time, or until `may_go_on` says no."""
        heap, cancelled = self._heap, self._cancelled
        while heap and heap[0][0] <= until_us:
            now_us, number, call, args = heappop(heap)
            if number in cancelled:
                cancelled.discard(number)
                continue
            self.now_us = now_us
            self.events += 1
            call(*args)
            if not may_go_on():
                return
        self.now_us = max(self.now_us, until_us)
