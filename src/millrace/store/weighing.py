"""How many bytes lie where in a log: by looking at a few index entries of each piece.

The cost depends on the number of pieces, not on the log's size: of a piece with more blocks than
are looked at, those at its front stand for the rest.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from millrace.limits import WEIGH_ENTRIES_MAX
from millrace.types import Extent, Lsn, Weight

Extents = Callable[[Lsn, Lsn], Iterable[Extent]]  # What intersects [first, end), in order.


def weigh(extents: Extents, first: Lsn, end: Lsn, pieces: int) -> list[Weight]:
    """[first, end) in at most `pieces` ranges of equal length, in order; they tile it."""
    length = end - first
    if length <= 0:
        return []
    count = min(pieces, length)
    edges = [Lsn(first + length * at // count) for at in range(count + 1)]
    return [_piece(extents, edges[at], edges[at + 1]) for at in range(count)]


def _piece(extents: Extents, first: Lsn, end: Lsn) -> Weight:
    size = seen = 0
    seen_end = first
    for extent in islice(extents(first, end), WEIGH_ENTRIES_MAX):
        stop = min(Lsn(extent.last + 1), end)
        inside = stop - max(extent.first, first)
        size += extent.size * inside // (extent.last + 1 - extent.first)
        seen += 1
        seen_end = stop
    if seen == WEIGH_ENTRIES_MAX and seen_end < end:
        size = size * (end - first) // (seen_end - first)
    return Weight(first, end, size)
