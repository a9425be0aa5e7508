"""The epochs of a sequenced log: who writes the newest one, and where each one's blocks may lie.

The metadata repository holds one EpochRecord for each log (the epoch store); it changes only by
compare-and-set, and whoever raises the epoch is the log's sequencer from then on.  The log's
metadata log holds a NodesetChange for each time that the nodes or the replication changed
(R14): what a reader needs to know of older epochs.

The nodes of old epochs may have to give their copies to others that were not there then.  So a
range of epochs can be widened: the same change is recorded once more, with more nodes.

  I1  A range only gains nodes.  An f-majority of the wider nodeset holds one of the narrower, so
      whoever knows the wider one misses nothing, wherever the copies are by now.
  I2  A widening counts from the next change of the nodeset on.  It is recorded before that change
      is claimed: whoever has seen `since` move reads it, and until then nobody goes by it.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from millrace.core.replication import Replication
from millrace.core.sequenced.settings import SequencerSettings
from millrace.types import Epoch, LogId, Lsn, NodeId

METADATA_LOG_BIT: Final = 1 << 62  # In the id of a metadata log; the rest is the log's own id.


def metadata_log_of(log: LogId) -> LogId:
    assert not is_metadata_log(log), "a metadata log has none: its nodes are configured"
    return LogId(log | METADATA_LOG_BIT)


def log_of(metadata_log: LogId) -> LogId:
    """The log that a metadata log belongs to; any other log itself."""
    return LogId(metadata_log & ~METADATA_LOG_BIT)


def is_metadata_log(log: LogId) -> bool:
    return bool(log & METADATA_LOG_BIT)


class EpochRecord(msgspec.Struct, frozen=True):
    """`clean` is the last epoch whose recovery is finished, and `tail` the last record up to then;
    `since` is the first epoch of this nodeset and replication."""

    log: LogId
    epoch: Epoch
    sequencer: NodeId
    nodeset: tuple[NodeId, ...]
    replication: Replication
    since: Epoch
    clean: Epoch = Epoch(0)
    tail: Lsn = Lsn(0)
    is_recorded: bool = False  # The metadata log knows of `since`.
    is_sealed: bool = False  # For good: no more appends.
    changes: int = 0  # Sequencers since the log was created.
    settings: SequencerSettings = SequencerSettings()


class NodesetChange(msgspec.Struct, frozen=True, array_like=True):
    """A record of a metadata log: from epoch `since` on, blocks lie on these nodes.  One that
    widens an older one has the epoch whose change it was made for, and counts from then on."""

    since: Epoch
    nodeset: tuple[NodeId, ...]
    replication: Replication
    counts_from: Epoch = Epoch(0)


class EpochRange(msgspec.Struct, frozen=True):
    """Epochs `first..last` have this nodeset; nothing is known about the epochs above the last
    range yet."""

    first: Epoch
    last: Epoch
    nodeset: tuple[NodeId, ...]
    replication: Replication


def ranges(changes: Iterable[NodesetChange], current: EpochRecord) -> tuple[EpochRange, ...]:
    """All epochs up to the current one, in order.  A change may be recorded more than once.  The
    repository knows the newest range, recorded or not."""
    known: dict[Epoch, NodesetChange] = {}
    for change in changes:
        if change.since < current.since and change.counts_from <= current.since:  # Keeps I2.
            known[change.since] = _wider(known.get(change.since), change)
    known[current.since] = NodesetChange(current.since, current.nodeset, current.replication)
    order = [known[since] for since in sorted(known)]
    ends = [Epoch(change.since - 1) for change in order[1:]] + [current.epoch]
    return tuple(
        EpochRange(change.since, last, change.nodeset, change.replication)
        for change, last in zip(order, ends, strict=True)
    )


def _wider(known: NodesetChange | None, change: NodesetChange) -> NodesetChange:
    """Keeps I1, in whichever order they were recorded."""
    if known is None:
        return change
    nodeset = tuple(dict.fromkeys((*known.nodeset, *change.nodeset)))
    return msgspec.structs.replace(change, nodeset=nodeset)


def range_of(known: Iterable[EpochRange], epoch: Epoch) -> EpochRange | None:
    """The range that holds the epoch, or the first one if the epoch lies below it; None if it
    lies above all that is known."""
    for each in known:
        if epoch <= each.last:
            return each
    return None
