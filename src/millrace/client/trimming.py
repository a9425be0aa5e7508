"""Forgetting the beginning of a log: the trim point is noted, then told to its nodes.

The rows that it publishes lie in a staging log, which is trimmed with it.
"""

import asyncio
from typing import TYPE_CHECKING

from millrace.client.path import TIMEOUT_MS
from millrace.client.positions import Position
from millrace.client.publications.staged_trimming import trim_staged
from millrace.core.procedure import DeadlinePassed
from millrace.errors import PositionBeyondTail, TimedOut, TrimPending, Unavailable
from millrace.types import Lsn

if TYPE_CHECKING:
    from millrace.client.log import Log


async def trim_log(log: "Log", before: Position, timeout_ms: int) -> Lsn:
    """The trim point that stands afterwards.  Raises TrimPending when the point stands, or may, and
    not every node has applied it."""
    point: Lsn | None = None
    is_noted = False
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            point = await _trim_point(log, before)
            point = await log.client.directory.raise_trim(log.info.id, point)
            is_noted = True
            problem = await log.path.trim_nodes(point, timeout_ms)
            if problem is None:
                await trim_staged(log, point, timeout_ms)
                return point
    except (TimeoutError, DeadlinePassed):
        problem = f"no answer within {timeout_ms} ms"
    except Unavailable as failure:
        if not is_noted:
            raise
        problem = str(failure)
    if point is None:
        raise TimedOut(f"log {log.name!r} was not trimmed: {problem}")
    stands = "stands, and" if is_noted else "may stand, in which case"
    raise TrimPending(
        f"log {log.name!r}: {problem}; the trim point {log.show(point)} {stands} the keeper "
        "will apply it on every node"
    )


async def _trim_point(log: "Log", before: Position) -> Lsn:
    start, end = await log.path.bounds(TIMEOUT_MS)
    point = await log.resolve_between(before, start, end)
    _, readable_end = await log.path.readable_bounds(TIMEOUT_MS)
    if point > readable_end:
        raise PositionBeyondTail(
            f"cannot trim log {log.name!r} before {log.show(point)}: "
            f"its next position is {log.show(readable_end)}"
        )
    return point
