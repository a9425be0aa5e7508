"""What becomes of a block that is put where a scattered log has blocks already (contract, I5).

The same position can reach a node more than once: in a later wave of its appender, from a recovery
that copies the block or plugs a hole, from a message that was sent again.  Of such rivals the one
with the highest precedence stays.  Pure, and the same for every store.
"""

from collections.abc import Sequence
from enum import Enum

from millrace.types import Copy, Extent, Placement


class Verdict(Enum):
    TAKE = "take"  # Instead of all its rivals.
    PASS_OVER = "pass_over"  # A rival has a higher precedence.
    AMEND = "amend"  # It is here, byte for byte: its placement alone may be new.


def judge(extent: Extent, placement: Placement, rivals: Sequence[Copy]) -> Verdict:
    """`rivals` are the blocks that overlap `extent`."""
    precedence = placement.precedence
    if any(rival.placement.precedence > precedence for rival in rivals):
        return Verdict.PASS_OVER
    if len(rivals) == 1 and rivals[0].extent == extent:
        return Verdict.AMEND
    return Verdict.TAKE
