"""Where the blocks of a scattered log lie: a run of positions in each epoch.

Between the last block of an epoch and the first of the next lie billions of positions that nobody
was given.  Two looks at the index for each epoch, whatever it holds, find where they begin and
end.
"""

from collections.abc import Callable, Iterable

from millrace.codec.blocks import junk
from millrace.lsn import epoch_of, first_of
from millrace.types import Block, EntryKind, Epoch, Extent, LogId, Lsn, Run

Extents = Callable[[Lsn, Lsn], Iterable[Extent]]  # What intersects [first, end), in order.
LastBelow = Callable[[Lsn], Extent | None]  # The last that begins below a position.


def find_runs(
    extents: Extents, last_below: LastBelow, first: Lsn, end: Lsn, limit: int
) -> list[Run]:
    """Of the epochs of [first, end) that have any block, in order, at most `limit`.  One in which
    there is only a bridge is empty: it tells where the epoch ends."""
    runs: list[Run] = []
    at = first
    while at < end and len(runs) < limit:
        found = next(iter(extents(at, end)), None)
        if found is None:
            break
        start = max(at, found.first)
        at = min(end, first_of(Epoch(epoch_of(start) + 1)))
        last = last_below(at) or found
        stop = last.first if last.kind is EntryKind.BRIDGE else Lsn(last.last + 1)
        runs.append(Run(start, max(start, min(stop, at))))
    return runs


def find_bridge(log: LogId, last_below: LastBelow, lsn: Lsn) -> Block | None:
    """The bridge that is about a position further on in its epoch, if one is.  It is made from what
    the index knows of it, so it can be told however damaged the block is."""
    below = last_below(lsn)
    if below is None or below.kind is not EntryKind.BRIDGE or below.last >= lsn:
        return None
    if epoch_of(below.first) != epoch_of(lsn):
        return None
    return junk(log, below.first, below.last - below.first + 1, EntryKind.BRIDGE)
