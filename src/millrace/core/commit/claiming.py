"""Becoming the committer of a log, and writing its record (record.py, I1).

Whoever claims a term by compare-and-set is the committer until somebody claims a later one: the one
before fails its next write, and all it has sent is in the record, so it is right for ever.

  I1  A committer that lives and is not suspected is left alone, and so is one that was faster.
  I2  A write without an answer is found out about before the next one: nothing is decided on top of
      a record that may not be there.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from millrace.core.attempts import back_off
from millrace.core.commit.record import CommitRecord
from millrace.core.procedure import (
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadCommits,
    ReplaceCommits,
    note,
)
from millrace.types import Epoch, LogId, NodeId

ATTEMPTS_MAX: Final = 8

_Read = tuple[CommitRecord | None, int] | Failure


class Claimed(msgspec.Struct, frozen=True):
    """This node is the committer in `record.term`; `version` is the repository's, of the record."""

    record: CommitRecord
    version: int


class ClaimedByOther(msgspec.Struct, frozen=True):
    node: NodeId
    term: Epoch


class Written(msgspec.Struct, frozen=True):
    version: int


class Replaced(msgspec.Struct, frozen=True):
    """Somebody else has written the record: this committer is none any more."""


def claim(
    log: LogId, me: NodeId, suspects: Collection[NodeId] = ()
) -> Procedure[Claimed | ClaimedByOther | Failure]:
    """`suspects` could not be reached by whoever asks, whatever the repository says of them."""
    try:
        claimed = yield from _claim(log, me, suspects)
        if isinstance(claimed, Claimed):
            yield from note("term.claimed", log=log, term=claimed.record.term)
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"log {log} was not claimed in time")
    return claimed


def _claim(
    log: LogId, me: NodeId, suspects: Collection[NodeId]
) -> Procedure[Claimed | ClaimedByOther | Failure]:
    trouble = Failure(FailureKind.METADATA, f"others were faster {ATTEMPTS_MAX} times")
    seen: Epoch | None = None
    for attempt in range(ATTEMPTS_MAX):
        yield from back_off(attempt)
        read: _Read = yield ReadCommits(log)
        if isinstance(read, Failure):
            trouble = read
            continue
        current, version = read
        if current is None:
            return Failure(FailureKind.UNKNOWN_LOG, f"log {log} does not exist")
        view: ClusterView | Failure = yield ListNodes()
        if isinstance(view, Failure):
            trouble = view
            continue
        has_lost = seen is not None and current.term > seen
        is_served = current.committer in view.live and current.committer not in suspects
        if current.committer != me and (has_lost or is_served):  # Keeps I1.
            return ClaimedByOther(current.committer, current.term)
        seen = current.term
        mine = msgspec.structs.replace(current, term=Epoch(current.term + 1), committer=me)
        written = yield from write(mine, version)
        if isinstance(written, Written):
            return Claimed(mine, written.version)
        trouble = written if isinstance(written, Failure) else trouble
    return trouble


def write(record: CommitRecord, expected: int) -> Procedure[Written | Replaced | Failure]:
    """A Failure means that nobody knows: the committer must not go on (I2)."""
    trouble: Failure | None = None
    for attempt in range(ATTEMPTS_MAX):
        yield from back_off(attempt)
        version: int | Failure = yield ReplaceCommits(record, expected)
        if isinstance(version, int) and version:
            return Written(version)
        trouble = version if isinstance(version, Failure) else None
        read: _Read = yield ReadCommits(record.log)
        if isinstance(read, Failure):
            trouble = read
            continue
        if read[0] == record:
            return Written(read[1])
        if read[1] != expected:
            return Replaced()
    return trouble or Failure(FailureKind.METADATA, f"the record of log {record.log} resists")
