"""Where rows lie before and after they are published: a log beside the one that they are for.

The staging log of a log is made when the first rows are staged: it is written and kept as its log
is, its name begins with `@` and nobody sees it.

  I1  What was staged is kept for its time to live at least: blocks here are no older, to whoever
      looks up times or forgets what is old, than the moment at which they were staged.
  I2  What was published is kept as long as its log keeps it, and the time to live more, for it may
      have been published so much later.
"""

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.codec.drafts import Draft
from millrace.codec.published import StagedRange, StagedRows, joined
from millrace.core.append import Appended
from millrace.core.commit.record import CommitRecord
from millrace.core.publications import staging_name
from millrace.errors import LogExists, UsageError
from millrace.types import LogAttributes, LogId, WritePath

if TYPE_CHECKING:
    from millrace.client.cluster import Client
    from millrace.client.log import Log

TIME_TO_LIVE_MS: Final = 24 * 3_600_000


class Staged(msgspec.Struct, frozen=True):
    """Rows that wait to be published.  It can be pickled, and published by any process."""

    log: str
    log_id: LogId
    place: StagedRows | None  # None: there are no rows.
    time_to_live_ms: int

    @property
    def rows(self) -> int:
        return 0 if self.place is None else self.place.count


async def staging_log(client: "Client", log: "Log", time_to_live_ms: int) -> "Log":
    """The one that is there, or a new one."""
    found = await client.find_log(staging_name(log.info.id))
    if found is not None:
        return found
    try:
        return await client.create_internal_log(
            staging_name(log.info.id), **_attributes(log, time_to_live_ms)
        )
    except LogExists:
        return await client.log(staging_name(log.info.id))


def _attributes(log: "Log", time_to_live_ms: int) -> dict[str, Any]:
    chosen = log.info.attributes
    age_ms = chosen.retention_ms
    return {
        "replication": {**dict(chosen.across), "node": chosen.replication},
        "write_path": chosen.write_path,
        "ack": chosen.ack,
        "compression": chosen.compression,
        "retention_ms": None if age_ms is None else age_ms + time_to_live_ms,  # Keeps I2.
        "retention_bytes": chosen.retention_bytes,
        "kept_ms_min": time_to_live_ms,  # Keeps I1.
        **_more(log, chosen),
    }


def _more(log: "Log", chosen: LogAttributes) -> dict[str, Any]:
    if chosen.write_path is WritePath.CHAIN:
        return {}
    more: dict[str, Any] = {
        "scd": chosen.is_single_copy,
        "local_scd": chosen.local_scd.value,
        "copyset_order": chosen.copyset_order.value,
    }
    if chosen.write_path is WritePath.SEQUENCED:
        return {**more, "nodeset_size": chosen.nodeset_size}
    assert isinstance(log.standing, CommitRecord)
    return {**more, "streams": len(log.standing.streams)}


def time_to_live_ms(staging: "Log") -> int:
    return staging.info.attributes.kept_ms_min or TIME_TO_LIVE_MS


async def stage_drafts(
    log: "Log", staging: "Log", drafts: list[Draft], ack: Any, deadline_s: float
) -> Staged:
    """Append them to the staging log.  Raises as `Log.append_table`: what was not acknowledged is
    of no consequence, for nobody ever looks at it."""
    now_ms = int(time.time() * 1000)
    live_ms = time_to_live_ms(staging)
    if not drafts:
        return Staged(log.name, log.info.id, None, live_ms)
    reaching = [each.reaching(now_ms * 1000) for each in drafts]  # Keeps I1.
    appended = await staging.append_drafts(reaching, log.ack(ack), deadline_s)
    return Staged(log.name, log.info.id, _rows(staging, drafts, appended, now_ms), live_ms)


def _rows(staging: "Log", drafts: list[Draft], appended: list[Appended], now_ms: int) -> StagedRows:
    return StagedRows(
        staging.info.id,
        joined([StagedRange(each.first, each.last - each.first + 1) for each in appended]),
        sum(each.size for each in drafts),
        min(each.timestamps_us[0] for each in drafts),
        max(each.timestamps_us[1] for each in drafts),
        any(each.has_keys for each in drafts),
        now_ms,
    )


def together(staged: list[Staged]) -> StagedRows | None:
    """The rows of one log, in this order; None if there are none."""
    places = [each.place for each in staged if each.place is not None]
    if not places:
        return None
    if len({each.log for each in places}) > 1:
        raise UsageError(f"rows of log {staged[0].log!r} were staged in different clusters")
    return StagedRows(
        places[0].log,
        joined([one for each in places for one in each.ranges]),
        sum(each.size_bytes for each in places),
        min(each.timestamp_min_us for each in places),
        max(each.timestamp_max_us for each in places),
        any(each.has_keys for each in places),
        min(each.staged_at_ms for each in places),
    )
