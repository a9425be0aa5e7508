"""All replicas of one commit log on a node, as one source of what readers get.

Readers know positions of the log, not streams.  What a node claims to have or not to have it claims
for all its replicas, so it can say no more than the one that knows least.

I1  Nothing above the least high watermark of the node's replicas is sent or claimed.
I2  A node with a replica that is not whole, or was never one of the stream's, says so with every
    claim, and sends nothing of it.
I4  While a replica is in doubt, having crashed with what was acknowledged from memory, nothing is
    claimed at all: if all nodes of a stream are, what they hold would be told as lost.
I3  Who ships is decided for each stream by its replicas, as all of them know it (shipping.py).
"""

from collections.abc import Mapping

from millrace.core.commit.replica import StreamReplica
from millrace.core.log_state import Fence
from millrace.core.messages import Standing
from millrace.core.shipping import Shipper
from millrace.types import FIRST_LSN, NO_TOKEN, Epoch, LogId, Lsn, StreamId


class CommitSource:
    fence = Fence(Epoch(0), NO_TOKEN, Standing.MEMBER)  # Readers of a commit log need no epoch.

    def __init__(self, log: LogId, replicas: Mapping[StreamId, StreamReplica]) -> None:
        """`replicas` is kept up to date by whoever gives it."""
        self.log = log
        self._replicas = replicas

    @property
    def readable_end(self) -> Lsn:
        """Keeps I1 and I4."""
        replicas = self._replicas.values()
        if any(each.is_in_doubt for each in replicas):
            return FIRST_LSN
        known = (each.high_watermark for each in replicas if each.is_member)
        return Lsn(min(known, default=0) + 1)

    @property
    def trim_end(self) -> Lsn:
        return max((each.trim_end for each in self._replicas.values()), default=FIRST_LSN)

    @property
    def is_incomplete(self) -> bool:
        """Keeps I2."""
        counted = (each for each in self._replicas.values() if not each.is_left_out)
        return not all(each.is_member for each in counted)

    def shipped_by(self, shipper: Shipper) -> tuple[LogId, ...]:
        """The logs of the streams that this node ships to a reader.  Keeps I3."""
        return tuple(
            each.stream_log
            for each in self._replicas.values()
            if each.is_member and shipper.ships_of(each.replicas)
        )
