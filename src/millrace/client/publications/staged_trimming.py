"""Forgetting staged rows with the log that they were published in.

Rows are staged before they are published, by their time to live at most, and not in the order in
which they are published.  So it goes by time: what was staged before anything that is still needed.

  I1  What a kept block publishes is kept, and what may still be published: unless its publisher
      died and was finished for later than the time to live, behind more blocks than are looked at.
  I2  Nobody holds up trimming for ever: what was begun longer ago than the time to live, and
      GRACE_MS, and is open still, is noted if it is in the log, and given up if not.  If there is
      much of that, every trim does a part.
"""

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from millrace.client.publications.looking import POSITIONS_ONLY, find_block, has_rows
from millrace.client.publications.staging import time_to_live_ms
from millrace.codec.published import publication_of
from millrace.core.publications import PublicationRecord, staging_name
from millrace.core.publishing import Held, Look, Looked, ReplaceRecord, give_up
from millrace.core.read_effects import Deliver
from millrace.errors import Unavailable
from millrace.types import LogId, Lsn

if TYPE_CHECKING:
    from millrace.client.log import Log

LOOK_BLOCKS_MAX: Final = 4_096  # Of those that are kept: for their headers, and what they publish.
GRACE_MS: Final = 3_600_000  # Clocks differ, and whoever came late may be at it.
GIVEN_UP_MAX: Final = 64  # By one trim.


async def trim_staged(log: "Log", kept_from: Lsn, timeout_ms: int) -> None:
    """The log was trimmed: trim what was staged for it.  If nodes are away, the next trim does."""
    staging = await log.client.find_log(staging_name(log.info.id))
    if staging is None:
        return
    with contextlib.suppress(Unavailable):
        live_ms = time_to_live_ms(staging)
        # In this order: what is published meanwhile was open, or is in the log that is looked at.
        open_ms = await _staged_of_open(log, live_ms, timeout_ms)
        needed_ms = min(open_ms, await _staged_of_kept(log, kept_from, live_ms, timeout_ms))
        point = await staging.path.young_from(needed_ms * 1000, timeout_ms)
        start, _ = await staging.bounds(timeout_ms=timeout_ms)
        if point > start:
            await staging.trim(point, timeout_ms=timeout_ms)


async def _staged_of_kept(log: "Log", kept_from: Lsn, live_ms: int, timeout_ms: int) -> int:
    """Nothing that is published at `kept_from` or above, now or later, was staged before this
    moment."""
    needed_ms = _now_ms() - live_ms
    _, end = await log.readable_bounds(timeout_ms=timeout_ms)
    if kept_from >= end:
        return needed_ms
    looked = 0
    looking = log.reader(kept_from, end, select=POSITIONS_ONLY, is_expanded=False)
    async with looking as reader:
        while (part := await reader.take(timeout_ms)) is not None:
            if isinstance(part, Deliver) and part.block.is_published:
                needed_ms = min(needed_ms, publication_of(part.block).staged_at_ms)
            looked += 1
            if looked >= LOOK_BLOCKS_MAX:
                return needed_ms - live_ms  # What follows was published later than this.
    return needed_ms


async def _staged_of_open(log: "Log", live_ms: int, timeout_ms: int) -> int:
    """As `_staged_of_kept`, of what is being published.  Keeps I2."""
    now_ms = _now_ms()
    begun_before_ms = now_ms - live_ms - GRACE_MS
    needed_ms = now_ms
    given_up = 0
    for record in await log.client.directory.publications():
        if not _is_open(record, log.info.id):
            continue
        if record.begun_ms < begun_before_ms and given_up < GIVEN_UP_MAX:
            given_up += 1
            if await _give_up(log, record.app, begun_before_ms, timeout_ms):
                continue
        needed_ms = min(needed_ms, record.begun_ms)
    return needed_ms - live_ms


async def _give_up(log: "Log", app: str, begun_before_ms: int, timeout_ms: int) -> bool:
    """False: somebody is at it."""
    directory = log.client.directory
    record, at = await directory.read_publication(app)
    if record is None or not _is_open(record, log.info.id):
        return True
    if record.begun_ms >= begun_before_ms:
        return False
    work = give_up(Held(record, at), log.info.id)
    answer: Any = None
    while True:
        try:
            effect = work.send(answer)
        except StopIteration as finished:
            return bool(finished.value)
        match effect:
            case Look(open_here):
                answer = await _look(log, open_here, timeout_ms)
            case ReplaceRecord(changed, expected):
                answer = await directory.replace_publication(changed, expected)


async def _look(log: "Log", record: PublicationRecord, timeout_ms: int) -> Looked:
    found: dict[int, Lsn] = {}
    for target in record.targets:
        block = await find_block(log, target, lambda: timeout_ms, LOOK_BLOCKS_MAX)
        if block is not None and await has_rows(
            log.client, target.log, publication_of(block), timeout_ms
        ):
            found[target.mark] = block.first
    return Looked(found, ())


def _is_open(record: PublicationRecord, log: LogId) -> bool:
    return any(target.log == log for target in record.open_targets)


def _now_ms() -> int:
    return int(time.time() * 1000)
