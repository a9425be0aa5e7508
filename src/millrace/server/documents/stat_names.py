"""Names of statistics, by which whoever reads them tells replicas from indexers (R-R).

What belongs to a change stream is named `StatName:PartitionID:What:Who`, where the connection has
called itself "what:who" (`replica:3`).  What belongs to a partition here is `StatName:PartitionID`.

I1  Neither a statistic nor a "what" has a colon in it; a "who" may: names are split from the left.
"""

from collections.abc import Iterator, Mapping

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.partition import Partition
from millrace.server.documents.backend import Stat


class StatName(msgspec.Struct, frozen=True):
    stat: str
    partition: PartitionId
    what: str = ""  # Empty: it is about the partition, not about a stream of it.
    who: str = ""

    def __str__(self) -> str:
        assert ":" not in self.stat and ":" not in self.what, "keeps I1"
        stream = f":{self.what}:{self.who}" if self.what else ""
        return f"{self.stat}:{self.partition}{stream}"


def parse_stat_name(name: str) -> StatName | None:
    """None: it is no name of this kind."""
    stat, *rest = name.split(":", 3)
    if len(rest) not in (1, 3) or not rest[0].isdecimal():
        return None
    partition = PartitionId(int(rest[0]))
    return (
        StatName(stat, partition, rest[1], rest[2]) if len(rest) == 3 else StatName(stat, partition)
    )


def stream_stats(
    client: str, partition: PartitionId, stats: Mapping[str, int | str]
) -> Iterator[Stat]:
    """Of one partition's stream to the client that called itself "what:who"."""
    what, _, who = client.partition(":")
    for stat, value in stats.items():
        yield str(StatName(stat, partition, what, who)), str(value)


def partition_stats(partition: Partition) -> Iterator[Stat]:
    found: dict[str, int | str] = {
        "state": partition.state.value,
        "term": partition.term,
        "failover_id": f"{partition.log.newest:016x}",
        "failover_entries": len(partition.log.entries),
        "high_seq": partition.high,
        "seen_seq": partition.seen,
        "complete_seq": partition.complete,
        "persisted_seq": partition.persisted,
        "purge_seq": partition.purged,
        "is_undoing": int(partition.undo is not None),
        "items": len(partition.table),
        "queue_items": partition.queue.count,
        "queue_bytes": partition.queue.size_bytes,
        "memory_bytes": partition.memory_bytes,
    }
    for stat, value in found.items():
        yield str(StatName(stat, partition.number)), str(value)
