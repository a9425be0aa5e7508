"""What a log weighs with the rows that were published in it, which lie elsewhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.core.publications import staging_name
from millrace.types import Lsn, Weight

if TYPE_CHECKING:
    from millrace.client.log import Log


async def with_published(
    log: "Log", first: Lsn, end: Lsn, weights: Sequence[Weight]
) -> list[Weight]:
    """A block that publishes weighs next to nothing at its nodes, which do not know what it stands
    for.  So no part weighs less than as many staged rows do."""
    staging = await log.client.find_log(staging_name(log.info.id)) if weights else None
    if staging is None:
        return list(weights)
    record_bytes = await _record_bytes(staging)
    runs = await log.runs(first, end)
    return [
        msgspec.structs.replace(
            each, bytes=max(each.bytes, int(record_bytes * runs.within(each.first, each.end)))
        )
        for each in weights
    ]


async def _record_bytes(staging: "Log") -> float:
    """The mean of all that is staged."""
    start, end = await staging.readable_bounds()
    runs = await staging.runs(start, end)
    weighed = await staging.path.weigh(start, end, 1)
    return sum(each.bytes for each in weighed) / max(runs.count, 1)
