"""Changes of streams of commit logs that need a look into the store first."""

from millrace.limits import INDEX_PAGE_EXTENTS
from millrace.store.contract import Store
from millrace.types import LSN_MAX, Extent, LogId, Lsn


def truncate(store: Store, log: LogId, end: Lsn) -> None:
    """Remove the blocks that reach above `end`.  A store that failed removes nothing any more."""
    before: list[Extent] = []
    while (extents := store.index(log, end, LSN_MAX, INDEX_PAGE_EXTENTS)) and extents != before:
        store.remove(log, [extent.first for extent in extents])
        before = extents


def trim(store: Store, stream_log: LogId, end: Lsn) -> None:
    """Remove what lies below this position of the commit log: nothing of what is not committed."""
    state = store.state(stream_log)
    if state is None or state.context is None:
        return
    local_end = state.context.local_end
    above = store.commit_runs(stream_log, end, LSN_MAX, 1)
    if above:
        local_end = Lsn(above[0].local + max(0, end - above[0].first))
    if local_end > state.trim_end:
        store.trim(stream_log, local_end)
