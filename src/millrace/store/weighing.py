"""How many bytes lie where in a log: by looking at a few index entries of each piece.

The cost depends on the number of pieces, not on the log's size: of a piece with more blocks than
are looked at, some at several places stand for the rest.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from millrace.limits import WEIGH_ENTRIES_MAX
from millrace.types import Extent, Lsn, Weight

PLACES = 8  # Of a piece that is too long to be looked at whole.
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
    size, seen_end = _front(extents, first, end, WEIGH_ENTRIES_MAX)
    if seen_end >= end:
        return Weight(first, end, size)
    length, size = end - first, 0
    for place in range(PLACES):
        start, stop = (
            Lsn(first + length * place // PLACES),
            Lsn(first + length * (place + 1) // PLACES),
        )
        some, seen_end = _front(extents, start, stop, WEIGH_ENTRIES_MAX // PLACES)
        size += some * (stop - start) // max(1, seen_end - start)
    return Weight(first, end, size)


def _front(extents: Extents, first: Lsn, end: Lsn, entries_max: int) -> tuple[int, Lsn]:
    """The bytes of the first entries in [first, end), and how far they reach; the end if these are
    all."""
    size = seen = 0
    seen_end = first
    for extent in islice(extents(first, end), entries_max):
        stop = min(Lsn(extent.last + 1), end)
        inside = stop - max(extent.first, first)
        size += extent.size * inside // (extent.last + 1 - extent.first)
        seen += 1
        seen_end = stop
    return size, seen_end if seen == entries_max else end
