"""Why a stream is where it is, in words for a person (G9): for whom it waits, what each node said.

The first thing that a user of a stalled reader asks is which nodes, in which state, at which
position; so that is what is told, not what the stream is made of.
"""

from enum import Enum

from millrace.core.reading.gaps import Wait
from millrace.core.reading.lists import Lists
from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.senders import GapState, Sender
from millrace.lsn import show
from millrace.types import AuthoritativeStatus, Lsn, NodeId


class WaitsFor(Enum):
    """What the stream waits for; `waits_for_nodes` says from whom."""

    NOTHING = "nothing"  # It is over.
    EPOCHS = "epochs"  # Where do the next blocks lie?
    REWIND = "rewind"
    APPLICATION = "application"  # It has not taken what it was given.
    ANSWERS = "answers"  # Nodes were asked, and have not said anything yet.
    TAIL = "tail"  # All was read that nodes know to be released.
    SENDERS = "senders"  # The next block, of those that may still send it.
    AUTHORITY = "authority"  # Enough nodes to say that they do not have it, or that it is the end.
    GRACE = "grace"  # As well, but only for a moment.


_OF_WAITS = {
    Wait.AUTHORITY: WaitsFor.AUTHORITY,
    Wait.GRACE: WaitsFor.GRACE,
    Wait.BEYOND_WINDOW: WaitsFor.SENDERS,
    Wait.RIGHT_END: WaitsFor.TAIL,
}


def reading_waits_for(
    read_set: ReadSet, lists: Lists, next_lsn: Lsn, wait: Wait | None
) -> WaitsFor:
    """While it is known who is read from, and no rewind is pending."""
    senders = read_set.senders.values()
    is_known_beyond = any(sender.next_lsn > next_lsn for sender in senders)
    if not is_known_beyond:
        is_asked = any(sender.is_connected and not sender.has_spoken for sender in senders)
        if is_asked:
            return WaitsFor.ANSWERS
        return WaitsFor.TAIL if read_set.is_served else WaitsFor.AUTHORITY
    if lists.is_single_copy or wait is None:
        return WaitsFor.SENDERS
    return _OF_WAITS[wait]


def missing_nodes(read_set: ReadSet, lists: Lists, next_lsn: Lsn) -> list[NodeId]:
    """Whose word on the next position is missing; when too few nodes are there, who is away."""
    lost = (AuthoritativeStatus.UNDERREPLICATION, AuthoritativeStatus.AUTHORITATIVE_EMPTY)
    silent = {
        node: sender
        for node, sender in read_set.senders.items()
        if sender.gap_state(next_lsn) is GapState.NONE and read_set.status_of(sender) not in lost
    }
    if not read_set.is_served:
        return [node for node, sender in silent.items() if not sender.is_reading]
    return [node for node in silent if node not in lists.listed]


def describe(sender: Sender, read_set: ReadSet, lists: Lists, next_lsn: Lsn) -> dict[str, object]:
    return {
        "state": sender.state.value,
        "trouble": None if sender.trouble is None else sender.trouble.value,
        "status": read_set.status_of(sender).value,
        "passed": show(sender.next_lsn),
        "gap_state": sender.gap_state(next_lsn).value,
        "is_down": sender.node in lists.down,
        "is_slow": sender.node in lists.slow,
        "strikes": sender.strikes,
    }
