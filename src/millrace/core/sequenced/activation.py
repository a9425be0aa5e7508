"""Becoming the sequencer of a log: a new epoch by compare-and-set (seed 003, R14).

Two sequencers of one log never hurt each other: each has an epoch of its own, and the later one
seals the nodes against the earlier.  So nobody needs to be certain that the old sequencer is dead;
it only should be, because every change costs a recovery.

  I1  An epoch has one sequencer: the node whose compare-and-set made it.
  I2  A sequencer that lives and is not suspected is left alone, and so is one that was faster.
  I3  Nothing is appended in an epoch before the metadata log knows its nodeset, so an epoch that
      was claimed and never recorded is empty, wherever its blocks would have been.
  I4  A metadata log has no metadata log.  It has one nodeset for all its epochs, which only gains
      nodes (I1 of `epochs.py` holds for it too) and never has another replication.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from millrace.core.attempts import back_off
from millrace.core.epochs import EpochRecord, NodesetChange, is_metadata_log
from millrace.core.procedure import (
    AppendNodesetChange,
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadEpochs,
    ReplaceEpochs,
    note,
)
from millrace.core.replication import Replication
from millrace.types import Epoch, LogId, NodeId

ATTEMPTS_MAX: Final = 8

# On which nodes, and how often, the blocks of the epoch after this record's lie.
ChooseNodeset = Callable[[EpochRecord, ClusterView], tuple[tuple[NodeId, ...], Replication]]
_Read = tuple[EpochRecord | None, int] | Failure


class Activated(msgspec.Struct, frozen=True):
    """This node is the sequencer in `record.epoch`, until somebody claims a later one."""

    record: EpochRecord


class NotMine(msgspec.Struct, frozen=True):
    node: NodeId
    epoch: Epoch


def newest_epoch(log: LogId) -> Procedure[EpochRecord | None]:
    """None: the repository does not answer."""
    try:
        read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    except DeadlinePassed:
        return None
    return None if isinstance(read, Failure) else read[0]


def keep_nodeset(record: EpochRecord, _: ClusterView) -> tuple[tuple[NodeId, ...], Replication]:
    return record.nodeset, record.replication


def activate(
    log: LogId,
    me: NodeId,
    suspects: Collection[NodeId] = (),
    choose: ChooseNodeset = keep_nodeset,
    only_from: Epoch | None = None,
    begins_range: bool = False,
) -> Procedure[Activated | NotMine | Failure]:
    """`suspects` could not be reached by whoever asks, whatever the repository says of them.  With
    `only_from` in the epoch after that one or not at all.  `begins_range`: on the same nodes too,
    so that everybody reads the metadata log anew."""
    try:
        claimed = yield from _claim(log, me, suspects, choose, only_from, begins_range)
        if not isinstance(claimed, EpochRecord):
            return claimed
        yield from note("epoch.claimed", log=log, epoch=claimed.epoch)
        if claimed.is_recorded or is_metadata_log(log):  # Keeps I4.
            return Activated(claimed)
        return (yield from _record_nodeset(claimed))
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"log {log} was not activated in time")


def _claim(
    log: LogId,
    me: NodeId,
    suspects: Collection[NodeId],
    choose: ChooseNodeset,
    only_from: Epoch | None,
    begins_range: bool,
) -> Procedure[EpochRecord | NotMine | Failure]:
    trouble = Failure(FailureKind.METADATA, f"others were faster {ATTEMPTS_MAX} times")
    seen: Epoch | None = None
    for attempt in range(ATTEMPTS_MAX):
        yield from back_off(attempt)
        read: _Read = yield ReadEpochs(log)
        if isinstance(read, Failure):
            trouble = read
            continue
        current, version = read
        if current is None:
            return _no_epochs(log)
        view: ClusterView | Failure = yield ListNodes()
        if isinstance(view, Failure):
            trouble = view
            continue
        has_lost = seen is not None and current.epoch > seen
        is_served = current.sequencer in view.live and current.sequencer not in suspects
        is_overtaken = only_from is not None and current.epoch != only_from
        if is_overtaken or (current.sequencer != me and (has_lost or is_served)):  # Keeps I2.
            return NotMine(current.sequencer, current.epoch)
        seen = current.epoch
        claimed = _succeed(current, me, *choose(current, view), begins_range)
        replaced: bool | Failure = yield ReplaceEpochs(claimed, version)
        if replaced is True:
            return claimed
        trouble = replaced if isinstance(replaced, Failure) else trouble
    return trouble


def _succeed(
    current: EpochRecord,
    me: NodeId,
    nodeset: tuple[NodeId, ...],
    replication: Replication,
    begins_range: bool,
) -> EpochRecord:
    epoch = Epoch(current.epoch + 1)
    is_same = (nodeset, replication) == (current.nodeset, current.replication)
    is_same = is_metadata_log(current.log) or (is_same and not begins_range)  # Keeps I4.
    return msgspec.structs.replace(
        current,
        epoch=epoch,
        sequencer=me,
        nodeset=nodeset,
        replication=replication,
        since=current.since if is_same else epoch,
        is_recorded=current.is_recorded and is_same,
        changes=current.changes + 1,
    )


def _record_nodeset(claimed: EpochRecord) -> Procedure[Activated | NotMine | Failure]:
    """Keeps I3: the change is in the metadata log, and the epoch is still ours afterwards."""
    log = claimed.log
    change = NodesetChange(claimed.since, claimed.nodeset, claimed.replication)
    appended: bool | Failure = yield AppendNodesetChange(log, change)
    if isinstance(appended, Failure):
        return appended
    trouble = Failure(FailureKind.METADATA, f"the epoch store changed {ATTEMPTS_MAX} times")
    for attempt in range(ATTEMPTS_MAX):
        yield from back_off(attempt)
        read: _Read = yield ReadEpochs(log)
        if isinstance(read, Failure):
            trouble = read
            continue
        current, version = read
        if current is None:
            return _no_epochs(log)
        if current.epoch != claimed.epoch:
            return NotMine(current.sequencer, current.epoch)
        recorded = msgspec.structs.replace(current, is_recorded=True)
        replaced: bool | Failure = yield ReplaceEpochs(recorded, version)
        if replaced is True:
            return Activated(recorded)
        trouble = replaced if isinstance(replaced, Failure) else trouble
    return trouble


def _no_epochs(log: LogId) -> Failure:
    return Failure(FailureKind.UNKNOWN_LOG, f"log {log} has no epochs: it was removed, or is new")
