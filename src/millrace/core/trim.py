"""Forgetting the beginning of a log (L7): the trim point goes up, on every node of the chain."""

from millrace.core.messages import FindSize, FindTime, Position, Trim, Trimmed
from millrace.core.procedure import Answer, Ask, Procedure, ask, ask_all
from millrace.core.projection import Projection
from millrace.types import Lsn, NodeId


def trim(projection: Projection, end: Lsn) -> Procedure[tuple[NodeId, Answer] | None]:
    """None when every node of the chain has trimmed; else who did not, and what it said."""
    request = Trim(projection.log, projection.epoch, end)
    # The tail first: what it holds is committed, so nobody forgets a write on its way down.
    first = yield from ask(projection.tail, request)
    if not isinstance(first, Trimmed):
        return projection.tail, first
    others = projection.chain[:-1]
    answers = yield from ask_all([Ask(node, request) for node in others])
    for node, answer in zip(others, answers, strict=True):
        if not isinstance(answer, Trimmed):
            return node, answer
    return None


def retention_point(
    projection: Projection,
    oldest_us: int | None,
    bytes_kept: int | None,
    kept_us: int | None = None,
) -> Procedure[Lsn | Answer]:
    """Below which position the log may be forgotten by age and by size; what is younger than
    `kept_us` is not for its size."""
    point = Lsn(0)
    log, epoch, tail = projection.log, projection.epoch, projection.tail
    if oldest_us is not None:
        answer = yield from ask(tail, FindTime(log, epoch, oldest_us))
        if not isinstance(answer, Position):
            return answer
        point = max(point, answer.lsn)
    if bytes_kept is not None:
        answer = yield from ask(tail, FindSize(log, epoch, bytes_kept))
        if not isinstance(answer, Position):
            return answer
        surplus = answer.lsn
        if kept_us is not None:
            answer = yield from ask(tail, FindTime(log, epoch, kept_us))
            if not isinstance(answer, Position):
                return answer
            surplus = min(surplus, answer.lsn)
        point = max(point, surplus)
    return point
