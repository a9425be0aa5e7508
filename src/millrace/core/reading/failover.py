"""Who cannot send the position that is next: what single copy delivery asks (logdevice 2.11).

Pure questions about the senders; what is done about the answers is the stream's.
"""

from collections.abc import Collection, Iterable

from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.rewinds import RewindReason
from millrace.core.reading.senders import GapState, Sender
from millrace.types import AuthoritativeStatus, Lsn, NodeId


def is_nobody_left(senders: Iterable[Sender], listed: Collection[NodeId], next_lsn: Lsn) -> bool:
    """Each node is listed or has passed the position; one that is and has counts once."""
    return all(
        sender.node in listed or sender.gap_state(next_lsn) is not GapState.NONE
        for sender in senders
    )


def doubtful(senders: Iterable[Sender], listed: Collection[NodeId], next_lsn: Lsn) -> list[Sender]:
    """Those that passed the position, but may have lost what they had there: others are to send in
    their place, which is cheaper than if all did."""
    return [
        sender
        for sender in senders
        if sender.node not in listed and sender.gap_state(next_lsn) is GapState.INCOMPLETE
    ]


def silent(senders: Iterable[Sender], listed: Collection[NodeId], next_lsn: Lsn) -> list[Sender]:
    """Those that could send the position, and neither do nor pass it."""
    return [
        sender
        for sender in senders
        if sender.node not in listed
        and sender.has_room
        and sender.gap_state(next_lsn) is GapState.NONE
    ]


def is_stalled(senders: Collection[Sender], listed: Collection[NodeId], next_lsn: Lsn) -> bool:
    """Somebody has passed the position, so there is something; or a node says nothing at all."""
    return any(sender.next_lsn > next_lsn for sender in senders) or any(
        sender.is_reading and not sender.has_spoken for sender in silent(senders, listed, next_lsn)
    )


def unfit(read_set: ReadSet) -> dict[NodeId, RewindReason]:
    """Who is to be listed as down when single copy delivery begins."""
    found: dict[NodeId, RewindReason] = {}
    for node, sender in read_set.senders.items():
        if sender.trouble is not None and not sender.is_reading:
            found[node] = RewindReason.SENDER_LOST
        elif sender.is_incomplete:
            found[node] = RewindReason.INCOMPLETE
        elif read_set.status_of(sender) is not AuthoritativeStatus.FULLY_AUTHORITATIVE:
            found[node] = RewindReason.STATUS
    return found
