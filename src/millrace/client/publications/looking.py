"""What became of a publication that somebody began: are its blocks in their logs, and are its rows
where they were staged?

A block that is in its log and not noted was handed out by nobody, so it may be passed by: what is
missed here, or not looked for any further, becomes void and is appended again.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millrace.codec.published import Publication, StagedRange, StagedRows, publication_of
from millrace.core.publications import Target, staging_name
from millrace.core.read_effects import Deliver
from millrace.errors import UnknownLog
from millrace.types import Block, LogId, Lsn, Selection

if TYPE_CHECKING:
    from millrace.client.cluster import Client
    from millrace.client.log import Log

POSITIONS_ONLY: Final = Selection(columns=())


async def open_log(client: "Client", name: str, log: LogId) -> "Log":
    """Raises UnknownLog also if another log has the name by now."""
    opened = await client.log(name)
    if opened.info.id != log:
        client.forget(opened)
        opened = await client.log(name)
    if opened.info.id != log:
        raise UnknownLog(f"log {name!r} was deleted after its rows were staged")
    return opened


async def find_block(
    log: "Log", target: Target, left_ms: Callable[[], int], blocks_max: int | None = None
) -> Block | None:
    """The one with the target's mark; at most so many are looked at."""
    start, end = await log.readable_bounds(timeout_ms=left_ms())
    first = max(target.since, start)
    if first >= end:
        return None
    looked = 0
    looking = log.reader(first, end, select=POSITIONS_ONLY, is_expanded=False)
    async with looking as reader:
        while (part := await reader.take(left_ms())) is not None:
            if isinstance(part, Deliver) and _has_mark(part.block, target.mark):
                return part.block
            looked += 1
            if looked == blocks_max:
                return None
    return None


async def has_rows(
    client: "Client", log: LogId, rows: StagedRows | Publication, timeout_ms: int
) -> bool:
    """Whether all of them are where they were staged for this log."""
    staging = await client.find_log(staging_name(log))
    if staging is None or staging.info.id != rows.log:
        return False
    try:
        start, _ = await staging.readable_bounds(timeout_ms=timeout_ms)
    except UnknownLog:
        return False
    # Nodes that were away may not have heard yet how far it is trimmed.
    start = max(start, await client.directory.trim_end(staging.info.id))
    return start <= _lowest(rows.ranges)


def _lowest(ranges: Sequence[StagedRange]) -> Lsn:
    return min(each.first for each in ranges)


def _has_mark(block: Block, mark: int) -> bool:
    return block.is_published and publication_of(block).mark == mark
