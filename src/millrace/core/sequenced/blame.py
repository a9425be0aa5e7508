"""What the lack of an acknowledgement says about a node, and about the copy it was sent."""

from millrace.core.messages import Message, Refusal, Refused
from millrace.core.procedure import Failure, FailureKind
from millrace.core.sequenced.copysets import AvoidCause


def may_be_stored(answer: Message | Failure) -> bool:
    """Whether the node may have stored the block all the same."""
    if isinstance(answer, Failure):
        return not answer.is_definite
    return not isinstance(answer, Refused)


def is_absent(answer: Message | Failure) -> bool:
    """Whether the node is to be asked when it is back; one without room is there, and our own
    limits say nothing about it."""
    match answer:
        case Failure(FailureKind.CROWDED) | Refused(Refusal.DISK_FULL | Refusal.BUSY):
            return False
    return True


def avoid_cause(answer: Message | Failure, is_behind_others: bool) -> AvoidCause | None:
    """Why the node should get no blocks for a while; None: it should.  One that is silent while
    nobody else has answered either is not slower than the others."""
    if isinstance(answer, Failure):
        match answer.kind:
            case FailureKind.TIMED_OUT:
                return AvoidCause.SLOW if is_behind_others else None
            case FailureKind.UNKNOWN_NODE | FailureKind.CONNECT | FailureKind.LOST:
                return AvoidCause.UNREACHABLE
        return None
    match answer:
        case Refused(Refusal.DISK_FULL):
            return AvoidCause.NO_SPACE
        case Refused(Refusal.BUSY):
            return AvoidCause.OVERLOADED
    return AvoidCause.DISABLED
