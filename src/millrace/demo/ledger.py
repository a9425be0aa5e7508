"""What was acknowledged: the truth that the reader and Spark are held against.

I1  Nothing is entered before its acknowledgement has arrived.
"""

import asyncio
import time
from collections import Counter

from millrace.core.append import Appended
from millrace.demo.records import make_keys
from millrace.types import Lsn

MICROSECONDS = 1_000_000

Counts = Counter[tuple[int, str]]  # Records of each second since 1970 and key.


class Ledger:
    def __init__(self, records: int) -> None:
        self.records = records
        self.appended = 0
        self.resumed = 0  # Appends whose outcome was unknown at first.
        self.end = Lsn(1)  # The position after the last that was acknowledged.
        self.blocks: dict[int, tuple[int, int]] = {}  # By position: records, number of the first.
        self.counts: Counts = Counter()
        self.acknowledgements: list[tuple[float, int]] = []  # When, and how many records by then.
        self.longest_pause_s = 0.0
        self.half_way = asyncio.Event()
        self._last_s = 0.0

    def begin(self) -> None:
        """Pauses are measured from here on."""
        self._last_s = time.perf_counter()
        self.longest_pause_s = 0.0

    def acknowledge(self, first: int, timestamp_us: int, ranges: list[Appended]) -> None:
        """Records from number `first` on have got these ranges."""
        now_s = time.perf_counter()
        self.longest_pause_s = max(self.longest_pause_s, now_s - self._last_s)
        self._last_s = now_s
        for each in ranges:
            count = each.last - each.first + 1
            self.blocks[each.first] = (count, first)
            self.end = max(self.end, Lsn(each.last + 1))
            for key, times in Counter(make_keys(first, count)).items():
                self.counts[timestamp_us // MICROSECONDS, key.decode()] += times
            self.appended += count
            first += count
        self.acknowledgements.append((time.time(), self.appended))
        if self.appended >= self.records // 2:
            self.half_way.set()
