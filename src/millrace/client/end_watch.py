"""Ends a reader that follows a log, once the log is sealed and all of it was read.

Nodes do not tell readers of a seal, so a reader that has had nothing for a while asks; the longer
nothing comes, the more rarely.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.errors import Unavailable
from millrace.types import Lsn

LOOK_S: Final = 0.25
LOOK_S_MAX: Final = 8.0

FindEnd = Callable[[], Awaitable[Lsn | None]]


async def watch_for_end(
    position: Callable[[], Lsn],
    find_end: FindEnd,
    look_s: float = LOOK_S,
    look_s_max: float = LOOK_S_MAX,
) -> None:
    """Returns when the log has an end and `position` is there; `find_end` is None until then."""
    pause_s = look_s
    seen = position()
    while True:
        await asyncio.sleep(pause_s)
        if position() != seen:
            seen, pause_s = position(), look_s
            continue
        try:
            end = await find_end()
        except Unavailable:
            end = None  # Nobody says; the log may be open.
        if end is not None and position() >= end:
            return
        pause_s = min(2 * pause_s, look_s_max)
