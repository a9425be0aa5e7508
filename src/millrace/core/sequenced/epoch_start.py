"""What a sequencer is activated with."""

import msgspec

from millrace.core.replication import Locations, Replication, Scope, can_replicate, requirements
from millrace.core.sequenced.appender import Replicates
from millrace.types import NO_LSN, Epoch, LogId, Lsn


class EpochStart(msgspec.Struct, frozen=True):
    """`released` and `tail`, the last record, are what is known of earlier epochs; they are final
    when all of those are recovered."""

    log: LogId
    epoch: Epoch
    replication: Replication
    locations: Locations = {}
    released: Lsn = NO_LSN
    tail: Lsn = NO_LSN

    def replicates(self) -> Replicates:
        """Most logs only count nodes, and this is asked with every acknowledgement."""
        replication, locations = self.replication, self.locations
        copies = replication.copies
        if all(scope is Scope.NODE for scope, _ in requirements(replication)):
            return lambda nodes: len(nodes) >= copies
        return lambda nodes: len(nodes) >= copies and can_replicate(replication, nodes, locations)
