"""Asking the right node of a log, whoever that is by now.

A refusal because of the epoch, or silence, means that the projection is old or must change; the
question is then put again, a bounded number of times.  A question that our own others kept from
being sent says nothing of the node: it is put again as it is.
"""

from collections.abc import Callable

from millrace.core.messages import Message, Refusal, Refused
from millrace.core.procedure import Answer, Failure, Procedure, Reconfigure, Refresh, ask
from millrace.core.projection import Projection, ReconfigureReason
from millrace.types import NodeId

Question = Callable[[Projection], tuple[NodeId, Message]]
ATTEMPTS_MAX = 8

_CAUSES = {
    Refusal.NOT_READY: ReconfigureReason.SEQUENCER_LOST,
    Refusal.INCOMPLETE: ReconfigureReason.INCOMPLETE,
}


def consult(projection: Projection, question: Question) -> Procedure[Answer]:
    """The answer of the node that `question` chooses from the projection that stands."""
    answer: Answer = Refused(Refusal.UNAVAILABLE)
    for _ in range(ATTEMPTS_MAX):
        node, message = question(projection)
        answer = yield from ask(node, message)
        following = yield from _follow(projection, node, answer)
        if not isinstance(following, Projection):
            return following
        projection = following
    return answer


def _follow(projection: Projection, node: NodeId, answer: Answer) -> Procedure[Projection | Answer]:
    """The projection to ask by next, or the answer to give."""
    if isinstance(answer, Failure) and answer.is_crowded:
        return projection
    if isinstance(answer, Failure):
        is_sequencer = node == projection.sequencer and node not in projection.chain
        cause = ReconfigureReason.SEQUENCER_LOST if is_sequencer else ReconfigureReason.UNREACHABLE
        changed: Projection | Failure = yield Reconfigure(projection, frozenset({node}), cause)
        return changed
    if not isinstance(answer, Refused):
        return answer
    if answer.reason in _CAUSES:
        changed = yield Reconfigure(projection, frozenset({node}), _CAUSES[answer.reason])
        return changed
    if answer.reason is not Refusal.EPOCH:
        return answer
    if answer.epoch < projection.epoch:
        cause = ReconfigureReason.INCOMPLETE
        changed = yield Reconfigure(projection, frozenset({node}), cause)
        return changed
    fresh: Projection | Failure = yield Refresh(projection.log, answer.epoch)
    if isinstance(fresh, Failure) or fresh.epoch > projection.epoch:
        return fresh
    changed = yield Reconfigure(fresh, frozenset(), ReconfigureReason.FENCED)
    return changed
