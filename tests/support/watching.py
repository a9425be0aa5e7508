"""Follows a watch in the background and lets a test wait for what it saw."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from millrace import errors
from millrace.meta.contract import Change, Entry, Repository

WAIT_S = 20.0


class Watcher:
    """`async with Watcher(repository, prefix, revision) as seen: await seen.entries(3)`."""

    def __init__(self, repository: Repository, prefix: str, revision: int) -> None:
        self.changes: list[Change] = []
        self.failure: BaseException | None = None
        self.has_ended = False
        self._watch = repository.watch(prefix, revision)
        self._news = asyncio.Condition()

    async def __aenter__(self) -> "Watcher":
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._watch.aclose()

    @property
    def seen(self) -> list[Entry]:
        return [entry for change in self.changes for entry in change.entries]

    async def until(self, is_enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(is_enough)

    async def entries(self, count: int) -> list[Entry]:
        await self.until(lambda: len(self.seen) >= count)
        return self.seen

    async def quiet_for(self, time_ms: int) -> None:
        """Let the time pass in which nothing may be seen."""
        count = len(self.changes)
        try:
            async with asyncio.timeout(time_ms / 1_000), self._news:
                await self._news.wait_for(lambda: len(self.changes) > count)
        except TimeoutError:
            return
        raise AssertionError(f"seen too early: {self.changes[count:]}")

    async def _follow(self) -> None:
        try:
            async for change in self._watch:
                async with self._news:
                    self.changes.append(change)
                    self._news.notify_all()
        except errors.MillraceError as failure:  # Kept for the test, which knows what to expect.
            self.failure = failure
        async with self._news:
            self.has_ended = True
            self._news.notify_all()
