"""How a read is cut: into partitions of about equal bytes, into micro-batches within limits.

Pure: what the logs weigh comes in, ranges come out.  Cutting is done on flat positions
(`core/runs.py`), on which a log has no voids between its epochs.

I1  The pieces of a log tile its range, in order, without overlap.
I2  A micro-batch that has anything waiting takes at least one record: a limit slows a query down
    and never stops it.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from millrace.core.runs import Runs
from millrace.limits import MIB
from millrace.types import Lsn

PARTITION_BYTES_MIN: Final = MIB  # Less is not worth a task of its own.
PARTITION_BYTES_MAX: Final = 256 * MIB  # More would keep one core busy while others are done.


class Weight(NamedTuple):
    """About how many bytes lie in [first, end), which are flat."""

    first: int
    end: int
    size_bytes: int


class Survey(NamedTuple):
    """What is known of [first, end) of a log: where the records are, and how heavy; the weights
    tile the runs."""

    first: Lsn
    end: Lsn
    runs: Runs
    weights: Sequence[Weight]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.weights)


class Piece(NamedTuple):
    log: str
    first: Lsn
    end: Lsn


class Cut(NamedTuple):
    """A piece, flat."""

    log: str
    first: int
    end: int


def pieces(surveys: Mapping[str, Survey], cores: int, partitions_min: int | None) -> list[Piece]:
    """Keeps I1.  What lies before, between and behind the runs belongs to a piece, too: it may be a
    gap that somebody must hear of."""
    cuts = split({log: each.weights for log, each in surveys.items()}, cores, partitions_min)
    found = [_piece(surveys[cut.log], cut) for cut in cuts]
    without = surveys.keys() - {cut.log for cut in cuts}
    return found + [Piece(log, surveys[log].first, surveys[log].end) for log in sorted(without)]


def _piece(survey: Survey, cut: Cut) -> Piece:
    runs = survey.runs
    first = survey.first if cut.first <= runs.begin else runs.lsn(cut.first)
    end = survey.end if cut.end >= runs.end else runs.lsn(cut.end)
    return Piece(cut.log, first, end)


def split(
    weights: Mapping[str, Sequence[Weight]], cores: int, partitions_min: int | None
) -> list[Cut]:
    """As many pieces as there are cores, more if they would be huge or the user asks, fewer if they
    would be tiny."""
    sizes = {log: sum(each.size_bytes for each in parts) for log, parts in weights.items()}
    total = sum(sizes.values())
    wanted = max(cores, math.ceil(total / PARTITION_BYTES_MAX))
    if partitions_min is None:
        wanted = max(1, min(wanted, total // PARTITION_BYTES_MIN))
    else:
        wanted = max(wanted, partitions_min)
    counts = _counts(sizes, wanted)
    cuts: list[Cut] = []
    for log, parts in sorted(weights.items()):
        cuts += [Cut(log, *each) for each in _cut(parts, counts[log])]
    return cuts


def _counts(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """Each log is one piece at least; of the rest, who has the heaviest pieces gets the next."""
    counts = dict.fromkeys(sizes, 1)
    heaviest = [(-size, log) for log, size in sizes.items()]
    heapq.heapify(heaviest)
    for _ in range(wanted - len(sizes) if heaviest else 0):
        log = heaviest[0][1]
        counts[log] += 1
        heapq.heapreplace(heaviest, (-(sizes[log] // counts[log]), log))
    return counts


def _cut(parts: Sequence[Weight], count: int) -> list[tuple[int, int]]:
    """`count` ranges of about equal weight; fewer if there are fewer positions."""
    if not parts:
        return []
    total = sum(each.size_bytes for each in parts)
    edges = [parts[0].first]
    for number in range(1, count):
        edge = reach(parts, total * number // count)
        if edges[-1] < edge < parts[-1].end:
            edges.append(edge)
    edges.append(parts[-1].end)
    return [(first, end) for first, end in pairwise(edges) if first < end]


def reach(parts: Sequence[Weight], size_bytes: int) -> int:
    """The position up to which about `size_bytes` lie, counted from the start of `parts`."""
    left = size_bytes
    for part in parts:
        if left < part.size_bytes:
            return part.first + (part.end - part.first) * max(0, left) // part.size_bytes
        left -= part.size_bytes
    return parts[-1].end


def share(limit: int, waiting: Mapping[str, int]) -> dict[str, int]:
    """What each log may take of `limit`, by what it has waiting.  Keeps I2 as a whole: if the limit
    is smaller than the number of logs, those with most waiting go first."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {log: limit * size // total for log, size in waiting.items()}
    left = limit - sum(shares.values())
    # What rounding left over: first to those that got nothing, then to those with most waiting.
    for log in sorted(waiting, key=lambda log: (shares[log] > 0, -waiting[log], log)):
        more = min(left, 1 if shares[log] == 0 else left, waiting[log] - shares[log])
        shares[log] += more
        left -= more
    return shares
