"""The loop behind sync calls, in a thread of its own, shared by all connections of the process."""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import uvloop

from millrace.errors import UsageError

T = TypeVar("T")
END_S_MAX: Final = 5.0  # For what the loop is at when the process ends.


class LoopThread:
    """The process's loop for sync calls; made on first use, and anew after a fork."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child the thread is gone, and the lock may be held by nobody who lives."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def end(self) -> None:
        """The process ends: a loop that went on would call into an interpreter that is gone."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S_MAX)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Whoever is interrupted while it waits, as by Ctrl-C, wants nothing of it any more."""
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result()
        finally:
            future.cancel()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = uvloop.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="millrace-sync", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop


_thread = LoopThread()
os.register_at_fork(after_in_child=_thread.forget)
atexit.register(_thread.end)


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, on the process's loop for sync calls."""
    return _thread.run(work)


class HandedOver(Generic[T]):
    """What one call took, until the caller has it: after an interruption in between the next call
    hands over the same."""

    def __init__(self) -> None:
        self._taken: tuple[T] | None = None

    async def take(self, work: Callable[[], Awaitable[T]]) -> "HandedOver[T]":
        if self._taken is None:
            self._taken = (await work(),)
        return self

    def has_arrived(self) -> T:
        assert self._taken is not None
        (taken,), self._taken = self._taken, None
        return taken


class Connected:
    """Whatever rests on a connection.  It belongs to the process that made it: a forked child
    would speak in the middle of its parent's sentences."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._process != os.getpid():
            work.close()
            raise UsageError(
                "this connection was made before a fork and belongs to the parent process: "
                "connect again in the child"
            )
        return _thread.run(work)
