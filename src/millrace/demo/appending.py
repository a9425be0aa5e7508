"""Appends records at a pace, several chunks at once, and enters every acknowledgement."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from millrace.client import Log
from millrace.client.outcomes import UnknownAppend
from millrace.core.append import Appended
from millrace.demo.ledger import Ledger
from millrace.demo.records import make_keys, make_values
from millrace.errors import MillraceError

CHUNK_MAX: Final = 5_000
CHUNKS_PER_S: Final = 50
CHUNKS_AT_ONCE: Final = 8


def chunk_size(rate: int) -> int:
    """Records that are appended together; small ones make an even pace."""
    return max(1, min(CHUNK_MAX, rate // CHUNKS_PER_S)) if rate else CHUNK_MAX


class Appending:
    def __init__(
        self, log: Log, ledger: Ledger, rate: int, acknowledged: Callable[[int], None]
    ) -> None:
        """`rate` is in records a second; 0: as fast as it goes."""
        self._log = log
        self._ledger = ledger
        self._rate = rate
        self._acknowledged = acknowledged

    async def append(self, first: int, end: int) -> float:
        """Append the records first .. end - 1; the seconds it took."""
        starts = iter(range(first, end, chunk_size(self._rate)))
        started_s = time.perf_counter()
        self._ledger.begin()

        async def work() -> None:
            for start in starts:
                if self._rate:
                    due_s = started_s + (start - first) / self._rate
                    await asyncio.sleep(due_s - time.perf_counter())
                await self._append_chunk(start, min(chunk_size(self._rate), end - start))

        await asyncio.gather(*(work() for _ in range(CHUNKS_AT_ONCE)))
        return time.perf_counter() - started_s

    async def _append_chunk(self, first: int, size: int) -> None:
        timestamp_us = time.time_ns() // 1_000
        try:
            ranges = await self._log.append_many(
                make_values(first, size), keys=make_keys(first, size), timestamps_us=timestamp_us
            )
        except UnknownAppend as unknown:
            ranges = [await self._settle(outcome) for outcome in unknown.outcomes]
        self._ledger.acknowledge(first, timestamp_us, ranges)
        self._acknowledged(size)

    async def _settle(self, outcome: Appended | MillraceError) -> Appended:
        """One block's range; what is unknown is resumed, what failed for good is raised."""
        if isinstance(outcome, Appended):
            return outcome
        if not isinstance(outcome, UnknownAppend):
            raise outcome
        self._ledger.resumed += 1
        return await self._log.resume(outcome)
