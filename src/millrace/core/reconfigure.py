"""Changing a log's chain: seal, reconcile, compare-and-set (C4).

Nobody can be certain that a node has failed, so it is made safe instead: the nodes that can be
reached are sealed into a new epoch, which ends the old chain, because an append needs all of its
nodes.  What the survivors hold is made equal, a sequencer is told to begin above it, and the new
projection replaces the old one by compare-and-set.  The loser adopts the winner's.

  I1  The new chain is made of nodes that hold every acknowledged record: members of the old
      chain that answered and lost nothing, and nodes that have just learned.
  I2  An epoch has one proposer on each node: a seal for an epoch that somebody else holds is
      refused, so no two reconciliations write at once.
  I3  Nodes are sealed, equal and admitted before the projection names them.
  I4  Members that may have lost data are used only when every member answered and none is whole;
      then the positions that nobody holds are marked lost, not empty (G3).
"""

from collections.abc import Sequence

import msgspec

from millrace.core.messages import (
    Admit,
    Admitted,
    Bootstrap,
    Bootstrapped,
    Refusal,
    Refused,
    Seal,
    Sealed,
    Standing,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Note,
    Pause,
    Procedure,
    ReadProjection,
    ReplaceProjection,
    ask,
    ask_all,
    note,
)
from millrace.core.projection import Projection, ReconfigureReason, sequencer_candidates
from millrace.core.reconcile import mark_lost, reconcile
from millrace.core.repair import MakeJunk
from millrace.limits import RECONFIGURE_ATTEMPTS_MAX
from millrace.types import Epoch, LogId, Lsn, NodeId, Token

BACKOFF_MS = 20
BACKOFF_MS_MAX = 500
SEAL_TIMEOUT_MS = 1_000
RIVAL_PAUSES_MS = (100, 300, 900)  # Together somewhat more than a seal may take.


class Change(msgspec.Struct, frozen=True):
    """What is to change.  With `only_from` the change is dropped as done when the projection
    has moved on from that epoch: whoever moved it has dealt with the cause."""

    log: LogId
    reason: ReconfigureReason
    suspects: frozenset[NodeId] = frozenset()
    only_from: Epoch | None = None
    add: tuple[NodeId, ...] = ()  # Nodes that have learned.
    remove: frozenset[NodeId] = frozenset()
    seal_for_good: bool = False


class _Members(msgspec.Struct, frozen=True):
    chain: tuple[NodeId, ...]
    sealed: dict[NodeId, Sealed]
    is_lossy: bool


class _TryAgain(msgspec.Struct, frozen=True):
    floor: Epoch
    detail: str
    is_rival: bool = False  # Somebody else is at it.
    broken: frozenset[NodeId] = frozenset()  # Members to do without from now on.


def reconfigure(
    change: Change, proposer: Token, make_junk: MakeJunk
) -> Procedure[Projection | Failure]:
    floor, trouble = Epoch(0), Failure(FailureKind.TIMED_OUT, "no attempt was finished")
    attempts = patience = 0
    broken: frozenset[NodeId] = frozenset()
    try:
        while attempts < RECONFIGURE_ATTEMPTS_MAX:
            if patience:
                yield Pause(RIVAL_PAUSES_MS[-patience])
            elif attempts:
                yield Pause(min(BACKOFF_MS << attempts, BACKOFF_MS_MAX))
            read: tuple[Projection | None, int] | Failure = yield ReadProjection(change.log)
            if isinstance(read, Failure):
                attempts, trouble = attempts + 1, read
                continue
            current, version = read
            if current is None:
                return Failure(FailureKind.UNKNOWN_LOG, f"log {change.log} has no projection")
            has_moved = change.only_from is not None and current.epoch > change.only_from
            if has_moved and (change.add or current.epoch >= floor):
                # The loser adopts the winner's, also when both were after the same epoch.  Nodes
                # to add have learned in that epoch alone: they must learn again (I1).
                return current
            if patience and current.epoch < floor:
                # A rival may be waiting for a silent node.  Sealing above it would undo its work,
                # and it ours: it gets the time that a seal may take.
                patience -= 1
                continue
            attempts += 1
            result = yield from _attempt(
                change, current, version, floor, proposer, make_junk, broken
            )
            if isinstance(result, Projection):
                return result
            floor, trouble = max(floor, result.floor), Failure(FailureKind.TIMED_OUT, result.detail)
            patience = len(RIVAL_PAUSES_MS) if result.is_rival else 0
            broken |= result.broken
            yield from note("reconfigure.again", log=change.log, detail=result.detail)
    except DeadlinePassed:
        return Failure(trouble.kind, f"no new chain in time: {trouble.detail}")
    return trouble


def _attempt(
    change: Change,
    current: Projection,
    version: int,
    floor: Epoch,
    proposer: Token,
    make_junk: MakeJunk,
    broken: frozenset[NodeId],
) -> Procedure[Projection | _TryAgain]:
    epoch = Epoch(max(current.epoch, floor) + 1)
    asked = [node for node in current.chain if node not in change.remove]
    asked += [node for node in change.add if node not in current.chain]
    seal = Seal(current.log, epoch, proposer)
    answers = yield from ask_all([Ask(node, seal, SEAL_TIMEOUT_MS) for node in asked])
    members = _choose_members(change, current, dict(zip(asked, answers, strict=True)), broken)
    if isinstance(members, _TryAgain):
        return members
    yield Note("chain.sealed", {"log": current.log, "epoch": epoch, "chain": members.chain})
    trouble = yield from reconcile(
        current.log, epoch, members.chain, members.sealed, members.is_lossy, make_junk
    )
    if trouble is not None:
        return _TryAgain(
            trouble.epoch, f"reconciling: {trouble.detail}", broken=frozenset(trouble.broken)
        )
    end = Lsn(max(members.sealed[node].end for node in members.chain))
    appointed = yield from _appoint(change, current, epoch, end)
    if isinstance(appointed, _TryAgain):
        return appointed
    sequencer, bootstrapped = appointed
    next_lsn = bootstrapped.next_lsn
    # The count goes on if its keeper is the same and has not forgotten it since.
    goes_on = sequencer == current.sequencer and bootstrapped.since <= current.epoch
    if members.is_lossy and next_lsn > end:
        # The sequencer remembers more than anybody holds: that may have been acknowledged.
        trouble = yield from mark_lost(
            current.log, epoch, members.chain, [(end, next_lsn)], make_junk
        )
        if trouble is not None:
            return _TryAgain(trouble.epoch, f"marking what was lost: {trouble.detail}")
    # The last thing to do: once admitted, a node no longer tells that it may have lost data.
    trouble_detail = yield from _admit(current.log, epoch, members)
    if trouble_detail is not None:
        return _TryAgain(epoch, trouble_detail)
    projection = Projection(
        current.log,
        epoch,
        members.chain,
        sequencer,
        current.replication,
        # Nodes that may have lost data vouch for nothing that they acknowledged before.
        previous=Epoch(0) if members.is_lossy else current.epoch,
        reason=change.reason,
        is_sealed=current.is_sealed or change.seal_for_good,
        changes=current.changes + 1,
        issuing_since=current.issuing_since if goes_on else epoch,
    )
    return (yield from _install(projection, version))


def _install(projection: Projection, version: int) -> Procedure[Projection | _TryAgain]:
    replaced: bool | Failure = yield ReplaceProjection(projection, version)
    if replaced is not True:
        return _TryAgain(projection.epoch, "somebody else was first")
    yield Note(
        "chain.changed",
        {
            "log": projection.log,
            "epoch": projection.epoch,
            "chain": projection.chain,
            "reason": projection.reason.value,
        },
    )
    if not projection.is_redundant:
        yield Note("chain.no_redundancy", {"log": projection.log, "epoch": projection.epoch})
    return projection


def _choose_members(
    change: Change,
    current: Projection,
    answers: dict[NodeId, Answer],
    broken: frozenset[NodeId] = frozenset(),
) -> _Members | _TryAgain:
    ahead = [
        answer.epoch
        for answer in answers.values()
        if isinstance(answer, Refused) and answer.reason is Refusal.EPOCH
    ]
    if ahead:
        return _TryAgain(max(ahead), f"somebody else sealed epoch {max(ahead)}", is_rival=True)
    sealed = {node: answer for node, answer in answers.items() if isinstance(answer, Sealed)}
    old = [node for node in current.chain if node in sealed]
    added = [node for node in change.add if node in sealed and node not in old]
    whole = [node for node in old if sealed[node].standing is Standing.MEMBER]
    if change.reason in (ReconfigureReason.DISK_FULL, ReconfigureReason.BROKEN):
        # A node that cannot store leaves, unless that would leave nobody.
        whole = [node for node in whole if node not in change.suspects] or whole
    # A member whose damaged copy of a block is the only one is done without: the block is not on
    # all members, so it was never acknowledged, and the member comes back by learning.
    whole = [node for node in whole if node not in broken] or whole
    if whole:  # Keeps I1.
        return _Members((*whole, *added), sealed, is_lossy=False)
    dirty = [node for node in old if sealed[node].standing is Standing.DIRTY]
    if dirty and len(old) == len(current.chain):  # Keeps I4.
        return _Members(tuple(dirty), sealed, is_lossy=True)
    missing = [node for node in current.chain if node not in sealed]
    return _TryAgain(Epoch(0), f"no whole member of the chain answers; silent: {missing}")


def _admit(log: LogId, epoch: Epoch, members: _Members) -> Procedure[str | None]:
    strangers = [
        node for node in members.chain if members.sealed[node].standing is not Standing.MEMBER
    ]
    answers = yield from ask_all([Ask(node, Admit(log, epoch)) for node in strangers])
    for node, answer in zip(strangers, answers, strict=True):
        if not isinstance(answer, Admitted):
            return f"node {node} was not admitted: {answer}"
    return None


def _appoint(
    change: Change, current: Projection, epoch: Epoch, next_lsn: Lsn
) -> Procedure[tuple[NodeId, Bootstrapped] | _TryAgain]:
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return _TryAgain(epoch, view.detail)
    candidates = sequencer_candidates(current.log, current.sequencer, view.nodes, view.live)
    # A suspected sequencer is asked last: waiting for it would only cost time.
    candidates.sort(key=lambda node: node in change.suspects or node in change.remove)
    return (yield from _bootstrap_first(current.log, candidates, epoch, next_lsn))


def _bootstrap_first(
    log: LogId, candidates: Sequence[NodeId], epoch: Epoch, next_lsn: Lsn
) -> Procedure[tuple[NodeId, Bootstrapped] | _TryAgain]:
    """The first that serves the epoch, and where it begins."""
    for node in candidates:
        answer = yield from ask(node, Bootstrap(log, epoch, next_lsn), SEAL_TIMEOUT_MS)
        if isinstance(answer, Bootstrapped):
            return node, answer
        if isinstance(answer, Refused) and answer.reason is Refusal.EPOCH:
            return _TryAgain(answer.epoch, f"the sequencer is at epoch {answer.epoch}")
    return _TryAgain(epoch, f"no sequencer answers; asked {list(candidates)}")


def create(
    log: LogId, chain: tuple[NodeId, ...], replication: int, proposer: Token
) -> Procedure[Projection | Failure]:
    """A new log's first projection: epoch 0 -> seal(1) -> propose (varlog 1.2)."""
    epoch = Epoch(1)
    sealed: dict[NodeId, Sealed] = {}
    answers = yield from ask_all([Ask(node, Seal(log, epoch, proposer)) for node in chain])
    for node, answer in zip(chain, answers, strict=True):
        if not isinstance(answer, Sealed):
            return Failure(FailureKind.LOST, f"node {node} did not seal: {answer}")
        sealed[node] = answer
    trouble = yield from _admit(log, epoch, _Members(chain, sealed, is_lossy=False))
    if trouble is not None:
        return Failure(FailureKind.LOST, trouble)
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view
    candidates = sequencer_candidates(log, NodeId(0), view.nodes, view.live)
    appointed = yield from _bootstrap_first(log, candidates, epoch, Lsn(1))
    if isinstance(appointed, _TryAgain):
        return Failure(FailureKind.LOST, appointed.detail)
    projection = Projection(log, epoch, chain, appointed[0], replication, issuing_since=epoch)
    replaced: bool | Failure = yield ReplaceProjection(projection, 0)
    if replaced is not True:
        return Failure(FailureKind.LOST, "the projection of a new log exists already")
    return projection
