"""What a replica that is synced keeps, and what the source has to send it (M7, varlog 5.8).

The source offers its committed entries and the context that closes them.  The replica keeps what
its runs vouch for, as far as that is the beginning of what it is to have: committed entries are the
same everywhere, so they are compared by their positions alone.  All else goes.  Since each batch
brings its entries and runs together, a sync that broke off is gone on with where it stopped: the
context is missing or behind, and the entries vouched for end later than before.

  I1  There is an answer to whatever was offered: a plan, or a refusal that says why.
  I2  After the plan the replica has the source's committed entries, from the higher of both trim
      points on: a trim point is the log's and never goes down, so nobody copies what was trimmed.
  I3  Entries that no run vouches for are dropped: those of the source may be others.
  I4  No committed entry is dropped that the source has, unless something before it is missing.
  I5  A replica that knows of more than the source is left as it is.

Only replicas that do not count are synced, so nothing that was promised rests on what is dropped.
"""

from enum import Enum

import msgspec

from millrace.core.commit.recovery import ReplicaFacts, Valid, implausible, recover, vouched
from millrace.core.messages.commit import SyncInit
from millrace.types import FIRST_LSN, Lsn


class SyncDrop(Enum):
    NOTHING = "nothing"
    UNCOMMITTED = "uncommitted"  # All entries at `first` or above.
    PREFIX = "prefix"  # All entries below `trim_end`, and the uncommitted ones.
    ALL = "all"  # Entries, runs and context.


class SyncPlan(msgspec.Struct, frozen=True):
    """Keep the entries [trim_end, first) and their runs; `trim_end` is the replica's trim point
    from now on.  Ask for [first, end), and the context with the last of it; for the context alone
    if that is empty; for nothing if the replica `is_complete`."""

    drop: SyncDrop
    trim_end: Lsn
    first: Lsn
    end: Lsn
    is_complete: bool = False


class SyncRefusal(Enum):
    BAD_RANGE = "bad_range"
    BAD_CONTEXT = "bad_context"  # The source's own context does not close what it offers.
    AHEAD = "ahead"  # More is committed here than the source knows of.
    DIVERGED = "diverged"  # The same entries lie elsewhere in the log.


class SyncRefused(msgspec.Struct, frozen=True):
    reason: SyncRefusal
    detail: str


def negotiate(offer: SyncInit, mine: ReplicaFacts) -> SyncPlan | SyncRefused:
    refused = _bad_offer(offer) or _mismatch(offer, mine)
    if refused is not None:
        return refused
    trim_end = max(offer.first, mine.trim_end)  # Keeps I2.
    drop, first = _kept(trim_end, mine)
    valid = _valid(mine)
    is_complete = valid is not None and valid.local_end == offer.end
    return SyncPlan(drop, trim_end, first, offer.end, is_complete)


def _bad_offer(offer: SyncInit) -> SyncRefused | None:
    if not FIRST_LSN <= offer.first <= offer.end:
        detail = f"the source offers [{offer.first}, {offer.end}), which is no range"
        return SyncRefused(SyncRefusal.BAD_RANGE, detail)
    context = offer.context
    why = ""
    if context is None:
        why = "there is none" if offer.end > FIRST_LSN else ""
    elif context.local_end != offer.end:
        why = f"it ends at {context.local_end}"
    else:
        why = implausible(context)
    if not why:
        return None
    detail = f"the source's context does not close [{offer.first}, {offer.end}): {why}"
    return SyncRefused(SyncRefusal.BAD_CONTEXT, detail)


def _mismatch(offer: SyncInit, mine: ReplicaFacts) -> SyncRefused | None:
    """Keeps I5."""
    committed_end = _committed_end(mine)
    if committed_end > offer.end:
        detail = (
            f"what is committed here ends at {committed_end}, at the source at {offer.end}"
            ": sync from a replica that has more, or retire this one"
        )
        return SyncRefused(SyncRefusal.AHEAD, detail)
    valid = _valid(mine)
    last = 0 if offer.context is None else offer.context.last
    if valid is not None and valid.local_end == offer.end and valid.last != last:
        detail = (
            f"entry {offer.end - 1} is at {valid.last} of the log here, and at {last} at the source"
            ": find out which one is right, and retire the other"
        )
        return SyncRefused(SyncRefusal.DIVERGED, detail)
    return None


def _committed_end(mine: ReplicaFacts) -> Lsn:
    """As far as anything on the disk knows of."""
    context_end = FIRST_LSN if mine.context is None else mine.context.local_end
    runs_end = FIRST_LSN if mine.last_run is None else mine.last_run.local_end
    return max(mine.trim_end, context_end, runs_end)


def _kept(trim_end: Lsn, mine: ReplicaFacts) -> tuple[SyncDrop, Lsn]:
    """What goes, and the end of what stays.  Keeps I3 and I4."""
    held = vouched(mine)
    if held is None or not held[0] <= trim_end <= held[1]:  # A hole would be left in between.
        is_blank = mine == ReplicaFacts(is_dirty=mine.is_dirty)
        return SyncDrop.NOTHING if is_blank else SyncDrop.ALL, trim_end
    if trim_end > mine.trim_end:
        return SyncDrop.PREFIX, held[1]
    return SyncDrop.UNCOMMITTED if mine.end > held[1] else SyncDrop.NOTHING, held[1]


def _valid(mine: ReplicaFacts) -> Valid | None:
    """Memory that was lost is no matter here: either it was not committed, or it will be sent."""
    found = recover(mine)
    return found if isinstance(found, Valid) else found.otherwise
