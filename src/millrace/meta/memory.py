"""A repository in memory: the registry's state machine behind the contract, and nothing else.

Used by tests and by clusters of one process; the embedded repository adds a disk by overriding
`_store_changes`.

  I1  Nothing is shown, to callers or watchers, above `_visible`: the last revision that is safe.
  I2  A watcher holds a position, never a queue; a slow one costs nothing and is told when the
      history no longer reaches back to it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from millrace import errors
from millrace.meta import bounds
from millrace.meta.clock import Clock, LoopClock, Timer
from millrace.meta.contract import Change, Entry
from millrace.meta.state import RegistryState

T = TypeVar("T")


class MemoryRepository:
    """Make it inside a running event loop, or give it a clock."""

    def __init__(self, clock: Clock | None = None, state: RegistryState | None = None) -> None:
        self._clock = clock or LoopClock()
        self._state = state or RegistryState()
        self._visible = self._state.revision
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_open = True
        self._arm_timer()

    async def get(self, key: str) -> Entry:
        bounds.check_key(key)
        return await self._run(lambda now_ms: self._state.get(key, now_ms))

    async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
        return await self._run(lambda now_ms: self._state.set(key, value, expected, lease, now_ms))

    async def delete(self, key: str, expected: int) -> None:
        await self._run(lambda now_ms: self._state.delete(key, expected, now_ms))

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        bounds.check_prefix(prefix)
        return await self._run(lambda now_ms: self._state.list(prefix, now_ms))

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Change, None]:
        bounds.check_prefix(prefix)
        while True:
            self._check_open()
            change = self._state.changes(prefix, revision, self._visible)
            if change.entries or change.lost:
                yield change
            if change.lost:
                return
            revision = change.revision
            if revision >= self._visible:
                await self._next_change()

    async def grant(self, ttl_ms: int) -> int:
        return await self._run(lambda now_ms: self._state.grant(ttl_ms, now_ms))

    async def keep_alive(self, lease: int) -> None:
        await self._run(lambda now_ms: self._state.keep_alive(lease, now_ms))

    async def revoke(self, lease: int) -> None:
        await self._run(lambda now_ms: self._state.revoke(lease, now_ms))

    async def close(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_watchers()

    def _store_changes(self) -> asyncio.Future[None] | None:
        """Make what the state machine just did safe and visible, at once or by the future."""
        self._show(self._state.revision)
        return None

    async def _run(self, operation: Callable[[int], T]) -> T:
        self._check_open()
        try:
            return operation(self._clock.now_ms())
        finally:
            # A conflict shows what is there just as an answer does: both wait until it is safe.
            stored = self._store_changes()
            self._arm_timer()
            if stored is not None:
                await asyncio.shield(stored)

    def _show(self, revision: int) -> None:
        if revision != self._visible:
            self._visible = revision
            self._wake_watchers()

    def _check_open(self) -> None:
        if not self._is_open:
            raise errors.MetadataUnavailable("the metadata repository is closed")

    async def _next_change(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def _wake_watchers(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def _arm_timer(self) -> None:
        due_ms = self._state.next_due_ms()
        if self._timer is not None and (due_ms is None or due_ms < self._timer_due_ms):
            self._timer.cancel()
            self._timer = None
        # A timer that rings early, because its lease was kept alive, only sets itself again.
        if self._timer is None and due_ms is not None and self._is_open:
            self._timer_due_ms = due_ms
            self._timer = self._clock.call_later(
                max(1, due_ms - self._clock.now_ms()), self._expire
            )

    def _expire(self) -> None:
        self._timer = None
        if self._is_open:
            self._state.expire(self._clock.now_ms())
            self._store_changes()
            self._arm_timer()
