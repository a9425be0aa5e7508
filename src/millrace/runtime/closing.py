"""Why a connection ends, or never begins: one word for each cause, the same in Goodbye, metrics
and logs.
"""

from enum import StrEnum
from typing import Final

from millrace.core.messages import Hello


class CloseReason(StrEnum):
    CLOSED = "closed"  # This side or the peer has no more use for it.
    STOPPING = "stopping"  # The process is going down in order.
    PEER_CLOSED = "peer_closed"  # End of stream without a Goodbye: the peer's process died.
    LOST = "lost"  # The system reports that the connection is broken.
    DEAD_PEER = "dead_peer"  # Not one byte for too long.
    SLOW_PEER = "slow_peer"  # It takes so little that too much waits for it.
    NO_HELLO = "no_hello"
    VERSION = "version"
    WRONG_CLUSTER = "wrong_cluster"
    PROTOCOL = "protocol"
    CORRUPT_BLOCK = "corrupt_block"
    TOO_MANY_REQUESTS = "too_many_requests"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    OTHER = "other"  # Counters only: a word of the peer's that is not in this list.


MISMATCHES: Final = frozenset({CloseReason.VERSION, CloseReason.WRONG_CLUSTER})


def counted_as(code: str) -> CloseReason:
    """Keeps the counters bounded whatever codes a peer invents."""
    try:
        return CloseReason(code)
    except ValueError:
        return CloseReason.OTHER


def mismatch(ours: Hello, theirs: Hello) -> tuple[CloseReason, str] | None:
    """Why two processes must not talk.  One that does not know its cluster may talk to any, one
    that knows only the name to any of that name."""
    if theirs.version != ours.version:
        return CloseReason.VERSION, (
            f"one side speaks version {ours.version} of the protocol, the other "
            f"{theirs.version}: upgrade the older one"
        )
    if not _may_be_one(ours.cluster, theirs.cluster):
        return CloseReason.WRONG_CLUSTER, (
            f"one side belongs to cluster {ours.cluster!r}, the other to {theirs.cluster!r}"
        )
    return None


def cluster_mark(name: str, cluster_id: str) -> str:
    """What Hello says of the cluster.  Names are chosen by people and may be chosen twice, so the
    id, drawn when the cluster was made, stands behind it; a name has no slash."""
    return f"{name}/{cluster_id}" if cluster_id else name


def _may_be_one(ours: str, theirs: str) -> bool:
    our_name, _, our_id = ours.partition("/")
    their_name, _, their_id = theirs.partition("/")
    if our_name and their_name and our_name != their_name:
        return False
    return not our_id or not their_id or our_id == their_id
