"""Which commit logs rest on a node: it may not be removed as long as a record names it.

I1  A stream all of whose replicas are on nodes that lost their disks is waited for by nobody:
    nothing of it can come from anywhere.
"""

from collections.abc import Collection, Iterable

from millrace.core.commit.record import CommitRecord
from millrace.types import NodeId


def resting_on(
    node: NodeId, records: Iterable[CommitRecord], lost: Collection[NodeId]
) -> list[CommitRecord]:
    """The logs with a stream that has a replica there; `lost` nodes have none any more."""
    return [
        record
        for record in records
        if any(
            node in stream.replicas and not set(stream.replicas).issubset(lost)  # Keeps I1.
            for stream in record.streams
        )
    ]
