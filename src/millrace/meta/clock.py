"""The time that leases run on: a protocol, so that tests and the simulator bring their own."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Whole milliseconds, rounded down; never goes back."""

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1_000, call)
