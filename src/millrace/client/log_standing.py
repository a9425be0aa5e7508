"""Who writes and serves a log: what the metadata repository says, for each write path."""

from millrace.core.commit.record import CommitRecord
from millrace.core.epochs import EpochRecord
from millrace.core.projection import Projection
from millrace.types import NodeId

LogStanding = Projection | EpochRecord | CommitRecord


def nodes_of(standing: LogStanding) -> tuple[NodeId, ...]:
    """That may hold something of the log."""
    if isinstance(standing, Projection):
        return standing.chain
    return standing.nodeset if isinstance(standing, EpochRecord) else standing.nodes
