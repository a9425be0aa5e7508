"""Work that is done again while nobody can do it: masters change, nodes restart.

It must be such that doing it twice is as good as once."""

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from millrace.errors import Unavailable
from millrace.spark import workers

PAUSE_S: Final = 0.2  # Between attempts; the client has its own, shorter ones.
T = TypeVar("T")


def until_done(attempt: Callable[[int], Coroutine[Any, Any, T]], timeout_ms: int) -> T:
    """`attempt` is told how many milliseconds are left.  Raises Unavailable when none are."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
        try:
            return workers.run(attempt(left_ms))
        except Unavailable:
            if time.monotonic() + PAUSE_S >= deadline_s:
                raise
        time.sleep(PAUSE_S)
