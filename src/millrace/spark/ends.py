"""Where logs end now, known without asking: each log is watched by a reader that asks for no
columns, so a block costs its header.

The reader does what any reader does: it follows the chain when it changes and completes or fills
what a dead writer left, so that a log whose writer died in mid-append does not stand still.

I1  An end is one up to which everything can be read without waiting.
I2  A watch that failed says so once and is made anew by the next look.
I3  A watch that nobody serves any more is not taken for one of a log that does not grow.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Final

from millrace.client.log import Log
from millrace.client.reader import Reader
from millrace.errors import Unavailable
from millrace.spark.bounds import readable_ends
from millrace.types import Gap, LogId, Lsn, Selection

NO_COLUMNS: Final = Selection(columns=())
STALL_S: Final = 20


class Watches:
    """One for each log; used on the loop's thread alone."""

    def __init__(self) -> None:
        self._watches: dict[LogId, _Watch] = {}
        self._news = asyncio.Event()

    async def ends(self, logs: Mapping[str, Log]) -> dict[str, Lsn]:
        """Keeps I1.  Raises what stopped a watch."""
        for number in set(self._watches) - {log.info.id for log in logs.values()}:
            await self._watches.pop(number).close()
        for log in logs.values():
            watch = self._watches.get(log.info.id)
            if watch is not None and watch.log is not log:  # Of a connection that was given up.
                await self._watches.pop(log.info.id).close()
                watch = None
            failure = None if watch is None else watch.failure or watch.stall()
            if failure is not None:
                await self._watches.pop(log.info.id).close()  # Keeps I2.
                raise failure
            if watch is None:
                start = await readable_ends(log)
                self._watches[log.info.id] = _Watch(log, start.end, self._news)
        return {name: self._watches[log.info.id].end for name, log in logs.items()}

    async def wait(self, timeout_ms: int) -> None:
        """Until some log has grown, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._news.wait()

    def clear_news(self) -> None:
        """What comes after this ends the next `wait`."""
        self._news.clear()

    async def close(self) -> None:
        for watch in self._watches.values():
            await watch.close()
        self._watches.clear()


class _Watch:
    def __init__(self, log: Log, end: Lsn, news: asyncio.Event) -> None:
        self.log = log
        self.end = end
        self.failure: Exception | None = None
        self._reader: Reader | None = None
        self._unserved_s: float | None = None  # When a look first found it so.
        self._news = news
        self._task = asyncio.create_task(self._follow(log))

    async def _follow(self, log: Log) -> None:
        try:
            async with log.reader(self.end, None, select=NO_COLUMNS) as reader:
                self._reader = reader
                while (part := await reader.take()) is not None:
                    self.end = Lsn(part.last + 1) if isinstance(part, Gap) else part.end
                    self._news.set()
        except Exception as failure:  # Whatever it is, the query must hear of it.
            self.failure = failure
            self._news.set()

    def stall(self) -> Unavailable | None:
        """Keeps I3.  Counted from the first look that found it so; a log that is sealed and read to
        its end needs nobody."""
        now_s = time.monotonic()
        if self._reader is None or self._reader.is_served or self._task.done():
            self._unserved_s = None
            return None
        self._unserved_s = self._unserved_s or now_s
        if now_s - self._unserved_s < STALL_S:
            return None
        return Unavailable(
            f"log {self.log.name!r} has not been served for {STALL_S} s; "
            f"its watch says: {None if self._reader is None else self._reader.explain()}"
        )

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
