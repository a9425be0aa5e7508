"""Where the blocks of a log's epochs may lie, and whose word about them counts: what recovery,
purging and whoever looks for a block must know before they ask anybody."""

from collections.abc import Collection, Mapping

import msgspec

from millrace.core.epochs import (
    EpochRange,
    EpochRecord,
    NodesetChange,
    is_metadata_log,
    ranges,
)
from millrace.core.procedure import (
    ClusterView,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadEpochs,
    ReadNodesetChanges,
    ReadStatuses,
)
from millrace.core.replication import Authority, Locations, authority
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId


class Whereabouts(msgspec.Struct, frozen=True):
    record: EpochRecord
    ranges: tuple[EpochRange, ...]
    locations: Locations
    statuses: Mapping[NodeId, AuthoritativeStatus]

    @property
    def has_emptied(self) -> bool:
        """Whether a node of these epochs has given away what it held."""
        empty = AuthoritativeStatus.AUTHORITATIVE_EMPTY
        nodes = {node for each in self.ranges for node in each.nodeset}
        return any(self.statuses.get(node) is empty for node in nodes)

    def of_epochs(self, first: Epoch, last: Epoch) -> list[EpochRange]:
        """The parts of the ranges that lie in first..last."""
        clipped = [
            msgspec.structs.replace(each, first=max(each.first, first), last=min(each.last, last))
            for each in self.ranges
        ]
        return [each for each in clipped if each.first <= each.last]

    def authority(self, span: EpochRange, votes: Collection[NodeId]) -> Authority:
        return authority(span.replication, span.nodeset, self.locations, self.statuses, votes)


def look_up(log: LogId, first: Epoch) -> Procedure[Whereabouts | Failure]:
    """From epoch `first` on, as the repository and the metadata log have it now.

    Whoever is empty by the statuses has given its copies to nodes that the ranges have: they are
    read again when they may be older than that."""
    record = yield from _read_record(log)
    while not isinstance(record, Failure):
        found = yield from look_around(record, first)
        if isinstance(found, Failure) or not found.has_emptied:
            return found
        record = yield from _read_record(log)
        if not isinstance(record, Failure) and record.since == found.record.since:
            return found
    return record


def _read_record(log: LogId) -> Procedure[EpochRecord | Failure]:
    read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    if isinstance(read, Failure):
        return read
    record, _ = read
    return record or Failure(FailureKind.UNKNOWN_LOG, f"log {log} does not exist")


def look_around(record: EpochRecord, first: Epoch) -> Procedure[Whereabouts | Failure]:
    """As `look_up`, for whoever has the record."""
    changes: tuple[NodesetChange, ...] = ()
    if record.since > first and not is_metadata_log(record.log):
        told: tuple[NodesetChange, ...] | Failure = yield ReadNodesetChanges(record.log)
        if isinstance(told, Failure):
            return told
        changes = told
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view
    statuses: Mapping[NodeId, AuthoritativeStatus] | Failure = yield ReadStatuses()
    if isinstance(statuses, Failure):
        return statuses
    locations = {node.id: node.location for node in view.nodes}
    return Whereabouts(record, ranges(changes, record), locations, statuses)
