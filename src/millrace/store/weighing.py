"""How many bytes lie where in a log: by looking at a few index entries of each piece.

The cost depends on the number of pieces, not on the log's size: of a piece with more blocks than
are looked at, some at several places stand for the rest.

Positions of a scattered log are far apart where an epoch ends, so equal ranges of them would say
nothing.  Its blocks are a run in each epoch: the runs, put end to end, are what is cut into pieces.
"""

from itertools import islice, pairwise
from typing import Final

from millrace.limits import WEIGH_ENTRIES_MAX
from millrace.lsn import epoch_of
from millrace.store.runs import Extents, LastBelow, find_runs
from millrace.types import Lsn, Run, Weight

PLACES: Final = 8  # Of a piece that is too long to be looked at whole.
RUNS_MAX: Final = 256  # Epochs that are looked at; their average stands for the rest.


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


def weigh_scattered(
    extents: Extents, last_below: LastBelow, first: Lsn, end: Lsn, pieces: int
) -> list[Weight]:
    """[first, end) in at most `pieces` ranges that hold about as many positions in which there may
    be blocks, in order; they tile it."""
    if first >= end:
        return []
    runs, unseen = _runs(extents, last_below, first, end)
    edges = [first, *_cuts(runs, pieces), end]
    weights: list[Weight] = []
    at = 0
    for begin, stop in pairwise(edges):
        size = 0
        while at < len(runs) and runs[at].first < stop:
            run = runs[at]
            size += _piece(extents, max(begin, run.first), min(stop, run.end)).bytes
            if run.end > stop:
                break
            at += 1
        weights.append(Weight(begin, stop, size))
    if unseen:
        last, seen = weights[-1], sum(weight.bytes for weight in weights)
        more = seen * unseen // len(runs)
        weights[-1] = Weight(last.first, last.end, last.bytes + more)
    return weights


def _runs(extents: Extents, last_below: LastBelow, first: Lsn, end: Lsn) -> tuple[list[Run], int]:
    """The runs of [first, end), and how many epochs are left when there are too many."""
    runs = find_runs(extents, last_below, first, end, RUNS_MAX)
    if len(runs) < RUNS_MAX:
        return runs, 0
    highest = last_below(end)
    return runs, 0 if highest is None else epoch_of(highest.first) - epoch_of(runs[-1].first)


def _cuts(runs: list[Run], pieces: int) -> list[Lsn]:
    """Where the runs, put end to end, are cut into equal pieces; without the two ends."""
    length = sum(run.end - run.first for run in runs)
    count = min(pieces, length)
    cuts: list[Lsn] = []
    before = 0  # Positions in the runs that are passed.
    for run in runs:
        size = run.end - run.first
        while len(cuts) + 1 < count and length * (len(cuts) + 1) // count < before + size:
            cuts.append(Lsn(run.first + length * (len(cuts) + 1) // count - before))
        before += size
    return cuts
