"""What other nodes hold of the blocks that a donor walks past.

I1  What a node is asked is answered in full or not at all: what is not in half an answer might be
    in the other half.
I2  Who has not answered is not asked again in the same walk.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from millrace.core.messages import Copies, CopiesPage
from millrace.core.procedure import Procedure, ask
from millrace.types import Copy, Extent, LogId, Lsn, NodeId, Placement


class Held(msgspec.Struct):
    """Of the blocks that a node was asked for, those that it has, and those in whose place it has
    something else."""

    placements: dict[Extent, Placement] = {}
    contested: set[Extent] = set()

    def has_nothing_of(self, extent: Extent) -> bool:
        return extent not in self.placements and extent not in self.contested


class OtherHolders:
    def __init__(self, log: LogId) -> None:
        self._log = log
        self._silent: set[NodeId] = set()

    def held_by(self, node: NodeId, wanted: Sequence[Copy]) -> Procedure[Held | None]:
        """`wanted` is not empty, and in the log's order.  None: the node does not tell."""
        if node in self._silent:
            return None
        extents = [copy.extent for copy in wanted]
        firsts = [extent.first for extent in extents]
        known, held = set(extents), Held()
        at, end = firsts[0], Lsn(extents[-1].last + 1)
        while at < end:
            page = yield from ask(node, Copies(self._log, at, end))
            if not isinstance(page, CopiesPage) or page.next_lsn <= at:
                self._silent.add(node)  # Keeps I1 and I2.
                return None
            for copy in page.copies:
                if copy.extent in known:
                    held.placements[copy.extent] = copy.placement
                    continue
                below = bisect_right(firsts, copy.extent.last) - 1
                if below >= 0 and extents[below].last >= copy.extent.first:
                    held.contested.add(extents[below])
            at = page.next_lsn
        return held
