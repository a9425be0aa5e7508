"""The memory repository keeps the contract; its time is whatever clock it is given."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millrace.meta.contract import Repository
from millrace.meta.memory import MemoryRepository
from tests.conformance.repository_suite import RepositorySuite
from tests.support.watching import Watcher


class TestMemoryRepository(RepositorySuite):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Repository]:
        repository = MemoryRepository()
        yield repository
        await repository.close()

    @asynccontextmanager
    async def open_unavailable(self) -> AsyncIterator[Repository]:
        repository = MemoryRepository()
        await repository.close()
        yield repository


class HandClock:
    """Time moves when the test says so."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._timers: list[HandTimer] = []

    def now_ms(self) -> int:
        return self._now_ms

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> "HandTimer":
        timer = HandTimer(self._now_ms + delay_ms, call)
        self._timers.append(timer)
        return timer

    def advance(self, time_ms: int) -> None:
        self._now_ms += time_ms
        due = [timer for timer in self._timers if timer.at_ms <= self._now_ms]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            timer.ring()


class HandTimer:
    def __init__(self, at_ms: int, call: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def ring(self) -> None:
        if self._call is not None:
            self._call()


def test_leases_run_on_the_given_clock() -> None:
    async def run() -> None:
        clock = HandClock()
        repository = MemoryRepository(clock)
        long, short = await repository.grant(2_001), await repository.grant(1_000)
        await repository.set("long", b"", 0, long)
        entry = await repository.set("short", b"", 0, short)
        async with Watcher(repository, "", entry.version) as watcher:
            clock.advance(1_000)
            await repository.keep_alive(short)
            clock.advance(999)
            assert (await repository.get("short")).version
            clock.advance(2)
            assert [e.key for e in await watcher.entries(1)] == ["short"]
            clock.advance(1)
            assert [e.key for e in await watcher.entries(2)] == ["short", "long"]
        await repository.close()

    asyncio.run(run())
