"""Closing the epochs of the sequencers before: seal, digest, rewrite, mark clean (R11).

A new sequencer appends at once, but readers see nothing of its epoch before all earlier ones are
closed: only then is it certain what they hold.  Epochs are closed oldest first, those with the same
nodeset together, because most of them are empty.  An empty one costs a BRIDGE on every node, which
its readers go by when nodes are lost for good.  Every step can be repeated, by this sequencer or by
the next: an attempt that fails is begun again from the seal.

  I1  Nothing is decided before an f-majority of the nodeset is sealed and has told what it holds,
      or everybody who still has a vote has: then nothing is said to be empty.
  I2  A node that may have lost what it acknowledged has no vote; what it still has counts.
  I3  Each attempt writes with a higher precedence than the one before: `waves` only goes up for
      as long as the epoch has the same sequencer.
  I4  An epoch is marked clean after all that was decided about it is stored, and only while the
      epoch store still names this sequencer.
  I5  At most EPOCHS_AT_ONCE are closed together: however many there are, what was done is kept.
  I6  What is stored with fewer copies, because nodes have no votes, is found by donors before any
      of these has one again: those that have finished look again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord
from millrace.core.messages import (
    CloseEpochs,
    Copies,
    CopiesPage,
    EpochsSealed,
    Refused,
    SealEpochs,
    Standing,
)
from millrace.core.procedure import (
    Ask,
    DeadlinePassed,
    Failure,
    FailureKind,
    Pause,
    Procedure,
    ReadEpochs,
    ReadStatuses,
    RenewRebuilds,
    ReplaceEpochs,
    ask_all,
    note,
)
from millrace.core.repair import MakeJunk
from millrace.core.replication import Authority, Locations, authority
from millrace.core.sequenced.digest import Settled, decide, settled_by
from millrace.core.sequenced.rewrite import Preempted, Rewritten, Stuck, Terms, rewrite
from millrace.core.statuses import Statuses
from millrace.lsn import epoch_of, last_of
from millrace.types import NO_LSN, AuthoritativeStatus, Copy, Epoch, LogId, Lsn, NodeId

BACKOFF_MS: Final = 20
BACKOFF_MS_MAX: Final = 1_000
SEAL_TIMEOUT_MS: Final = 1_000
EPOCHS_AT_ONCE: Final = 1_024

Held = dict[NodeId, list[Copy]]
_LOST: Final = AuthoritativeStatus.UNDERREPLICATION
_WITHOUT_VOTE: Final = (
    _LOST,
    AuthoritativeStatus.AUTHORITATIVE_EMPTY,
)


class Recovered(msgspec.Struct, frozen=True):
    """All epochs below the record's own are clean."""

    record: EpochRecord


class _Site(msgspec.Struct):
    """What stays the same from one attempt to the next; `statuses` are read anew for each."""

    record: EpochRecord
    locations: Locations
    statuses: Statuses
    make_junk: MakeJunk
    waves: Iterator[int]
    told: set[NodeId] = msgspec.field(default_factory=set)  # Who knows all of a span ...
    missed: set[NodeId] = msgspec.field(default_factory=set)  # ... and who does not.
    waits_for: str = "its first requests are not answered"


class _Heard(msgspec.Struct, frozen=True):
    """What those nodes told that are of use; the others are silent."""

    nodes: list[NodeId]
    settled: Settled
    held: dict[Epoch, Held]
    proof: Authority


def recover(
    record: EpochRecord,
    ranges: Sequence[EpochRange],
    locations: Locations,
    statuses: Statuses,
    make_junk: MakeJunk,
    waves: Iterator[int] | None = None,
) -> Procedure[Recovered | Preempted | Failure]:
    """`record` is the one of the activation, `ranges` all epochs up to it.  Goes on until the
    driver's time is up; whoever calls again for the same record passes the same `waves` (I3)."""
    site = _Site(record, locations, statuses, make_junk, waves or count(1))
    try:
        for span in unclean(record, ranges):
            tail = yield from _close(site, span)
            if isinstance(tail, Preempted):
                return tail
            marked = yield from _mark_clean(site, span.last, tail)
            if not isinstance(marked, EpochRecord):
                return marked
            site.record = marked
        yield from _tell_closed(site, Epoch(record.clean + 1))
    except DeadlinePassed:
        detail = f"recovery of log {record.log} for epoch {record.epoch}: {site.waits_for}"
        return Failure(FailureKind.TIMED_OUT, detail)
    return Recovered(site.record)


def _tell_closed(site: _Site, first: Epoch) -> Procedure[None]:
    """Best effort: who does not hear it finds out what it missed by itself (`purging.py`)."""
    request = CloseEpochs(site.record.log, site.record.epoch, first)
    nodes = sorted(site.told - site.missed)
    yield from ask_all([Ask(node, request, SEAL_TIMEOUT_MS) for node in nodes])


def unclean(record: EpochRecord, ranges: Sequence[EpochRange]) -> list[EpochRange]:
    """The epochs to be closed, by their nodesets.  What lies below the first range belongs to it,
    as in `range_of`: no epoch is passed over."""
    low, high = Epoch(record.clean + 1), Epoch(record.epoch - 1)
    found: list[EpochRange] = []
    for each in ranges:
        first, last = max(each.first, low) if found else low, min(each.last, high)
        for begin in range(first, last + 1, EPOCHS_AT_ONCE):  # Keeps I5.
            end = min(last, begin + EPOCHS_AT_ONCE - 1)
            found.append(msgspec.structs.replace(each, first=Epoch(begin), last=Epoch(end)))
    return found


def _close(site: _Site, span: EpochRange) -> Procedure[Lsn | Preempted]:
    """The last record of the epochs, or 0."""
    pause_ms = BACKOFF_MS
    while True:
        outcome = yield from _attempt(site, span)
        if not isinstance(outcome, Stuck):
            return outcome
        site.waits_for = outcome.detail
        yield from note("recovery.again", log=site.record.log, detail=outcome.detail)
        yield Pause(pause_ms)
        pause_ms = min(2 * pause_ms, BACKOFF_MS_MAX)
        # Somebody may have found out meanwhile that a silent node has nothing to say.
        statuses: Statuses | Failure = yield ReadStatuses()
        if not isinstance(statuses, Failure):
            site.statuses = statuses


def _attempt(site: _Site, span: EpochRange) -> Procedure[Lsn | Preempted | Stuck]:
    heard = yield from _listen(site, span)
    if not isinstance(heard, _Heard):
        return heard
    verdicts = [
        decide(epoch, heard.settled.good_in(epoch), heard.held.get(epoch, {}), heard.proof)
        for epoch in _epochs_in_question(span, heard)
    ]
    decisions = [decision for verdict in verdicts for decision in verdict.decisions]
    rewritten = yield from rewrite(_terms(site, span, heard), decisions, heard.nodes)
    if not isinstance(rewritten, Rewritten):
        return rewritten
    if rewritten.is_short:
        trouble = yield from _have_donors_look_again(site, span)
        if trouble is not None:
            return trouble
    site.told.update(rewritten.told)
    site.missed.update(set(span.nodeset).difference(rewritten.told))
    yield from note(
        "recovery.closed",
        log=site.record.log,
        first=span.first,
        last=span.last,
        decisions=len(decisions),
        authority=heard.proof.value,
    )
    return max([NO_LSN, *(verdict.tail for verdict in verdicts)])


def _have_donors_look_again(site: _Site, span: EpochRange) -> Procedure[Stuck | None]:
    """Keeps I6."""
    lost = [node for node in span.nodeset if site.statuses.get(node) is _LOST]
    statuses: Statuses | Failure = yield RenewRebuilds(tuple(lost))
    if isinstance(statuses, Failure):
        return Stuck(f"donors cannot be told to look again: {statuses.detail}")
    site.statuses = statuses
    others = [node for node in lost if statuses.get(node) is not _LOST]
    return Stuck(f"the statuses of nodes {others} have changed") if others else None


def _terms(site: _Site, span: EpochRange, heard: _Heard) -> Terms:
    return Terms(
        site.record.log,
        site.record.epoch,
        next(site.waves),
        span.replication,
        span.nodeset,
        site.locations,
        site.statuses,
        site.make_junk,
        # Whoever lost its vote lost its copies as well.
        is_complete=heard.proof in (Authority.COMPLETE, Authority.NON_AUTHORITATIVE),
    )


def _epochs_in_question(span: EpochRange, heard: _Heard) -> Iterable[Epoch]:
    """Those that are not settled; without authority only where something is known."""
    settled = heard.settled
    if heard.proof is Authority.NON_AUTHORITATIVE:
        known = {epoch_of(settled.floor), *settled.good, *heard.held}
    else:
        known = set(map(Epoch, range(span.first, span.last + 1)))
    return sorted(
        epoch
        for epoch in known
        if span.first <= epoch <= span.last and settled.good_in(epoch) < last_of(epoch)
    )


# -- What nodes tell --------------------------------------------------------------------------


def _listen(site: _Site, span: EpochRange) -> Procedure[_Heard | Preempted | Stuck]:
    """Seal the nodes and read their indexes; keeps I1."""
    record = site.record
    seal = SealEpochs(record.log, record.epoch)
    asks = [Ask(node, seal, SEAL_TIMEOUT_MS) for node in span.nodeset]
    answers = yield from ask_all(asks)
    sealed: dict[NodeId, EpochsSealed] = {}
    for node, answer in zip(span.nodeset, answers, strict=True):
        if isinstance(answer, Refused) and answer.epoch > record.epoch:
            return Preempted(answer.epoch)
        if isinstance(answer, EpochsSealed):
            sealed[node] = answer
    if _proof(site, span, sealed) is Authority.NONE:  # Not worth reading indexes.
        return _wait(site, span, sealed)
    settled = settled_by(sealed.values())
    held: dict[Epoch, Held] = {}
    for first, end in settled.windows(span.first, span.last):
        silent = yield from _collect(record.log, list(sealed), first, end, held)
        sealed = {node: answer for node, answer in sealed.items() if node not in silent}
    proof = _proof(site, span, sealed)
    if proof is Authority.NONE:
        return _wait(site, span, sealed)
    return _Heard(list(sealed), settled, held, proof)


def _proof(site: _Site, span: EpochRange, sealed: Mapping[NodeId, EpochsSealed]) -> Authority:
    """Keeps I2."""
    statuses = {**site.statuses}
    for node, answer in sealed.items():
        is_empty = statuses.get(node) is AuthoritativeStatus.AUTHORITATIVE_EMPTY
        if answer.standing is Standing.DIRTY and not is_empty:
            statuses[node] = _LOST
    return authority(span.replication, span.nodeset, site.locations, statuses, sealed)


def _wait(site: _Site, span: EpochRange, sealed: Mapping[NodeId, EpochsSealed]) -> Stuck:
    silent = [
        node
        for node in span.nodeset
        if node not in sealed and site.statuses.get(node) not in _WITHOUT_VOTE
    ]
    return Stuck(f"epochs {span.first}..{span.last} need answers of nodes {silent}")


def _collect(
    log: LogId, nodes: Sequence[NodeId], first: Lsn, end: Lsn, held: dict[Epoch, Held]
) -> Procedure[set[NodeId]]:
    """Add what the nodes have of [first, end) to `held`, by epochs; who did not tell."""
    silent: set[NodeId] = set()
    at = dict.fromkeys(nodes, first)
    while at:
        answers = yield from ask_all([Ask(node, Copies(log, at[node], end)) for node in at])
        for node, answer in zip(list(at), answers, strict=True):
            if not isinstance(answer, CopiesPage) or answer.next_lsn <= at[node]:
                silent.add(node)
                del at[node]
                continue
            for copy in answer.copies:
                of_epoch = held.setdefault(epoch_of(copy.extent.first), {})
                of_epoch.setdefault(node, []).append(copy)
            at[node] = answer.next_lsn
            if answer.next_lsn >= end:
                del at[node]
    return silent


# -- The epoch store --------------------------------------------------------------------------


def _mark_clean(
    site: _Site, clean: Epoch, tail: Lsn
) -> Procedure[EpochRecord | Preempted | Failure]:
    """Keeps I4."""
    record, pause_ms = site.record, BACKOFF_MS
    while True:
        read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(record.log)
        if not isinstance(read, Failure):
            current, version = read
            if current is None:
                return Failure(FailureKind.UNKNOWN_LOG, f"log {record.log} was removed")
            if current.epoch != record.epoch:
                return Preempted(current.epoch)
            marked = msgspec.structs.replace(current, clean=clean, tail=max(current.tail, tail))
            replaced: bool | Failure = yield ReplaceEpochs(marked, version)
            if replaced is True:
                return marked
        site.waits_for = "the epoch store does not take that the epochs are clean"
        yield Pause(pause_ms)
        pause_ms = min(2 * pause_ms, BACKOFF_MS_MAX)
