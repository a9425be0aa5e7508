"""Procedures by which a reader follows a log through changes of its chain."""

from millrace.core.messages import Found, Read
from millrace.core.procedure import Failure, Procedure, Reconfigure, Refresh, ask
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.read_stream import NeedCopy, NeedProjection
from millrace.types import Block, LogId


def find_projection(
    log: LogId, need: NeedProjection, seen: Projection | None
) -> Procedure[Projection | Failure]:
    """The projection a stream needs: looked up, or made by changing the chain."""
    fresh: Projection | Failure = yield Refresh(log, need.epoch)
    if isinstance(fresh, Failure):
        return fresh
    has_moved = seen is None or fresh.epoch > seen.epoch
    if has_moved and fresh.epoch >= need.epoch:
        return fresh
    if need.cause is not None:
        suspects = frozenset() if need.suspect is None else frozenset({need.suspect})
        changed: Projection | Failure = yield Reconfigure(fresh, suspects, need.cause)
        return changed
    if fresh.epoch < need.epoch:
        # Nodes are sealed above the projection: whoever sealed them did not finish.
        changed = yield Reconfigure(fresh, frozenset(), ReconfigureReason.FENCED)
        return changed
    return fresh


def copy_elsewhere(projection: Projection, need: NeedCopy) -> Procedure[Block | None]:
    """The block from another member.  Allowed because the tail holds the position, damaged or
    not, so it is committed (C5)."""
    for node in reversed(projection.chain):
        if node == need.avoid:
            continue
        answer = yield from ask(node, Read(projection.log, projection.epoch, need.lsn))
        if isinstance(answer, Found):
            return answer.block
    return None
