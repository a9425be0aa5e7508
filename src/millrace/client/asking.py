"""Asking again until somebody answers who can, within a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.core.messages import Message
from millrace.errors import TimedOut

M = TypeVar("M", bound=Message)


async def ask_until(
    ask_once: Callable[[], Awaitable[Message | None]],
    kind: type[M],
    timeout_ms: int,
    pause_s: float,
    complaint: Callable[[], str],
) -> M:
    """`complaint` says, when the time is up, why nobody has answered."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while True:
                answer = await ask_once()
                if isinstance(answer, kind):
                    return answer
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise TimedOut(complaint()) from None
