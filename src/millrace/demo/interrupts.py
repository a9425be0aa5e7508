"""Ctrl-C, SIGTERM and a closed terminal end the demo in one way: its task is cancelled.

I1  No handler raises: whatever is being started or removed at that moment is completed.
I2  Only the first signal counts: nothing keeps the demo from cleaning up.
"""

import asyncio
import signal
from types import FrameType
from typing import Any


class Interrupts:
    def __init__(self) -> None:
        self.has_come = False
        self._task: asyncio.Task[Any] | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            is_nohup = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
            if not is_nohup:
                signal.signal(number, self._receive)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """What to cancel, now if a signal has come already."""
        self._task = task
        if self.has_come:
            task.cancel()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self.has_come and self._task is not None:  # Keeps I2.
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self.has_come = True
