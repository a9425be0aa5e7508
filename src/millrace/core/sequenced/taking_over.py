"""Before a new sequencer acknowledges anything: the ones before it can acknowledge nothing more.

A sequencer that was replaced may not know it yet, and clients may still send to it.  If it could
acknowledge an append that began after the new one had acknowledged another, the later append would
stand before the earlier one (G8).  So the nodes of all epochs that are not clean are sealed first:
enough of them that the others cannot hold a copyset.  Recovery seals again, to see what they hold.

A sequencer that is to change its log's nodeset takes over from itself, in the same way.

  I1  When this ends well, no append is acknowledged in an earlier epoch any more.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord
from millrace.core.messages import ChangeNodeset, EpochsSealed, Refused, SealEpochs
from millrace.core.procedure import (
    AppendNodesetChange,
    Ask,
    DeadlinePassed,
    Failure,
    FailureKind,
    Pause,
    Procedure,
    ask_all,
)
from millrace.core.replication import Authority
from millrace.core.sequenced.activation import Activated, NotMine, activate
from millrace.core.sequenced.rewrite import Preempted
from millrace.core.sequenced.whereabouts import Whereabouts, look_around
from millrace.types import Epoch, LogId, NodeId

BACKOFF_MS: Final = 20
BACKOFF_MS_MAX: Final = 500
SEAL_TIMEOUT_MS: Final = 1_000


def take_over(
    log: LogId, me: NodeId, suspects: Collection[NodeId]
) -> Procedure[Activated | NotMine | Failure]:
    """Claim an epoch and end the ones before it; then `me` may serve."""
    return (yield from _end_others((yield from activate(log, me, suspects))))


def record_wider(change: ChangeNodeset) -> Procedure[Failure | None]:
    """What must be in the metadata log before the change is claimed (I2 of `epochs.py`).  If it
    never is, nobody goes by it."""
    counts_from = Epoch(change.epoch + 1)
    try:
        for each in change.wider:
            wider = msgspec.structs.replace(each, counts_from=counts_from)
            appended: bool | Failure = yield AppendNodesetChange(change.log, wider)
            if isinstance(appended, Failure):
                return appended
    except DeadlinePassed:
        detail = f"log {change.log}: the wider nodesets of old epochs were not recorded in time"
        return Failure(FailureKind.TIMED_OUT, detail)
    return None


def change_over(change: ChangeNodeset, me: NodeId) -> Procedure[Activated | NotMine | Failure]:
    """As `take_over`, from the epoch that the change names to one on other nodes."""
    activated = yield from activate(
        change.log,
        me,
        choose=lambda *_: (change.nodeset, change.replication),
        only_from=change.epoch,
        begins_range=bool(change.wider),
    )
    return (yield from _end_others(activated))


def _end_others(
    claimed: Activated | NotMine | Failure,
) -> Procedure[Activated | NotMine | Failure]:
    if not isinstance(claimed, Activated):
        return claimed
    ended = yield from end_predecessors(claimed.record)
    if isinstance(ended, Preempted):
        return Failure(FailureKind.METADATA, f"another node claimed epoch {ended.epoch}")
    return claimed if ended is None else ended


def end_predecessors(record: EpochRecord) -> Procedure[Preempted | Failure | None]:
    """None when it is done.  Goes on until the driver's time is up."""
    waits_for = "the repository is silent"
    pause_ms = BACKOFF_MS
    try:
        while True:
            known = yield from look_around(record, Epoch(record.clean + 1))
            if not isinstance(known, Failure):
                outcome = yield from _seal_all(known)
                if not isinstance(outcome, str):
                    return outcome
                waits_for = outcome
            yield Pause(pause_ms)
            pause_ms = min(2 * pause_ms, BACKOFF_MS_MAX)
    except DeadlinePassed:
        detail = f"log {record.log}, epoch {record.epoch}: {waits_for}"
        return Failure(FailureKind.TIMED_OUT, detail)


def _seal_all(known: Whereabouts) -> Procedure[Preempted | str | None]:
    record = known.record
    for span in known.of_epochs(Epoch(record.clean + 1), Epoch(record.epoch - 1)):
        sealed = yield from _seal(record, span)
        if isinstance(sealed, Preempted):
            return sealed
        if known.authority(span, sealed) is Authority.NONE:
            silent = sorted(set(span.nodeset).difference(sealed))
            return f"epochs {span.first}..{span.last} are not sealed: nodes {silent} are silent"
    return None


def _seal(record: EpochRecord, span: EpochRange) -> Procedure[list[NodeId] | Preempted]:
    request = SealEpochs(record.log, record.epoch)
    asks = [Ask(node, request, SEAL_TIMEOUT_MS) for node in span.nodeset]
    answers = yield from ask_all(asks)
    sealed: list[NodeId] = []
    for node, answer in zip(span.nodeset, answers, strict=True):
        if isinstance(answer, Refused) and answer.epoch > record.epoch:
            return Preempted(answer.epoch)
        if isinstance(answer, EpochsSealed):
            sealed.append(node)
    return sealed
