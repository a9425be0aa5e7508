"""Giving a stream another set of replicas: after a failure, when a replica joins or leaves, and
when the stream is made (M6, M8).

Three procedures, because between them the record is changed, which only the committer does:
`seal_replicas` fences all that may be replicas and finds out who can go on, `join_replicas` gives
those that join what they lack, `open_replicas` tells all when the record names them.  Whoever dies
in between leaves sealed replicas, which the next committer finds and reforms again.

What those that go on hold is committed before others join: these get committed entries alone, and
would cut off the rest.

  I1  Whoever goes on holds every committed entry, and is valid.
  I2  Nothing of the generation before is stored after the seal, so that what lies above the end of
      the new one is certainly nowhere: it was never committed, and can be appended again.
  I3  A replica that joins has been given all that is committed by one that goes on, after the seal.
  I4  Above what is committed only those count that were open in the generation before: the others
      may hold what an opening that they missed has cut off.
  I5  Whoever yields leaves only if as many as the stream should have go on without it.
  I6  What is committed is given up only when every replica has answered and none has all of it: the
      one that has most goes on alone, and the record says how much is lost.  By itself only what
      memory lost: a disk that is gone may come back, so that an operator has to say it.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from millrace.core.commit.record import StreamRecord
from millrace.core.messages import (
    Commit,
    CommitTaken,
    Dropped,
    OpenStream,
    Refusal,
    Refused,
    RetireStream,
    SealStream,
    StreamOpened,
    StreamReport,
    StreamSealed,
    StreamSynced,
    SyncStream,
)
from millrace.core.procedure import Answer, Ask, DeadlinePassed, Procedure, ask, ask_all, note
from millrace.types import Epoch, LogId, Lsn, NodeId

SEAL_TIMEOUT_MS: Final = 2_000
OPEN_TIMEOUT_MS: Final = 2_000
CATCH_UP_TIMEOUT_MS: Final = 2_000
SYNC_TIMEOUT_MS: Final = 10_000  # What is left to be sent then is little.
BULK_SYNC_TIMEOUT_MS: Final = 600_000
GENERATIONS_TRIED_MAX: Final = 4
SYNC_REST_ENTRIES: Final = 10_000  # So few are sent within a moment.
SYNC_ROUNDS_MAX: Final = 8  # Each is shorter than the one before, unless appends are faster.


class ReformPlan(msgspec.Struct, frozen=True):
    """`catch_up` brings replicas to the record's version before they are a source.  Those that are
    `leaving` do so at once, those that are `yielding` when `copies` others go on."""

    log: LogId
    stream: StreamRecord
    catch_up: Commit
    joining: tuple[NodeId, ...] = ()
    leaving: tuple[NodeId, ...] = ()
    yielding: tuple[NodeId, ...] = ()
    copies: int = 0
    gives_up: bool = False  # An operator knows that no disk will come back.


class SealedReplicas(msgspec.Struct, frozen=True):
    """They can go on in `generation`, the primary first, with what lies below `end`.  Those that
    are `waiting` are sealed, and may join them."""

    generation: Epoch
    replicas: tuple[NodeId, ...]
    end: Lsn
    waiting: tuple[NodeId, ...] = ()
    is_lossy: bool = False  # Of what is committed only that below `end` is left ...
    last: Lsn = Lsn(0)  # ... the last of it here in the log.


class CannotReform(msgspec.Struct, frozen=True):
    why: str


class OpenedReplicas(msgspec.Struct, frozen=True):
    reports: dict[NodeId, StreamReport]
    failed: tuple[NodeId, ...]


def seal_replicas(plan: ReformPlan) -> Procedure[SealedReplicas | CannotReform]:
    try:
        return (yield from _seal(plan))
    except DeadlinePassed:
        return CannotReform("it took too long")


def _seal(plan: ReformPlan) -> Procedure[SealedReplicas | CannotReform]:
    generation = Epoch(plan.stream.generation + 1)
    nodes = tuple(dict.fromkeys((*plan.stream.replicas, *plan.joining)))
    for _ in range(GENERATIONS_TRIED_MAX):
        answers = yield from _ask_seals(plan, nodes, generation)
        higher = [epoch for epoch in map(_fence_of, answers.values()) if epoch]
        if not higher:
            break
        generation = Epoch(max(higher) + 1)  # An earlier attempt came as far as this.
    else:
        return CannotReform(f"others seal it all the time, by now for generation {generation}")
    ends = _who_goes_on(plan, answers)
    if isinstance(ends, CannotReform):
        return (yield from _save_what_is_left(plan, generation, answers)) or ends
    can_join = (node for node in plan.joining if node not in plan.stream.replicas)
    waiting = tuple(node for node in can_join if isinstance(answers[node], StreamSealed))
    stays = tuple(node for node in ends if node not in plan.leaving) or tuple(ends)
    if not waiting:
        stays = _relieved(plan, stays)
    return SealedReplicas(generation, stays, min(ends[node] for node in stays), waiting)


def _relieved(plan: ReformPlan, stays: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Keeps I5."""
    surplus = max(0, len(stays) - plan.copies)
    leaves = [node for node in plan.yielding if node in stays][:surplus]
    return tuple(node for node in stays if node not in leaves)


def _ask_seals(
    plan: ReformPlan, nodes: Sequence[NodeId], generation: Epoch
) -> Procedure[dict[NodeId, Answer]]:
    seal = SealStream(plan.log, plan.stream.stream, generation)
    answers = yield from ask_all([Ask(node, seal, SEAL_TIMEOUT_MS) for node in nodes])
    return dict(zip(nodes, answers, strict=True))


def _fence_of(answer: Answer) -> Epoch | None:
    """The later generation that a node is sealed for already."""
    is_fenced = isinstance(answer, Refused) and answer.reason is Refusal.EPOCH
    return answer.epoch if is_fenced and isinstance(answer, Refused) else None


def _who_goes_on(
    plan: ReformPlan, answers: dict[NodeId, Answer]
) -> dict[NodeId, Lsn] | CannotReform:
    """The ends of those that can, in the order of the replicas, so that the primary stays one if it
    can.  Keeps I1."""
    ends: dict[NodeId, Lsn] = {}
    trouble: list[str] = []
    for node in plan.stream.replicas:
        answer = answers[node]
        if not isinstance(answer, StreamSealed):
            trouble.append(f"node {node} does not answer")
        elif not answer.is_valid:
            trouble.append(f"node {node}: {answer.why}")
        elif answer.end < plan.stream.local_end:
            lost = f"{answer.end}..{plan.stream.local_end - 1}"
            trouble.append(f"node {node} has lost the committed entries {lost}")
        elif answer.local_end < plan.stream.taken_end:
            lost = f"{answer.local_end}..{plan.stream.taken_end - 1}"
            trouble.append(f"node {node} does not know any more where {lost} are in the log")
        else:
            ends[node] = _certain_end(answer, plan.stream)
    return ends or CannotReform("; ".join(trouble) or "it has no replicas")


def _save_what_is_left(
    plan: ReformPlan, generation: Epoch, answers: dict[NodeId, Answer]
) -> Procedure[SealedReplicas | None]:
    """Keeps I6."""
    stream = plan.stream
    left = {
        node: answer
        for node in stream.replicas
        if isinstance(answer := answers[node], StreamSealed) and answer.is_valid
    }
    has_disks = all(answer.opened for answer in left.values())
    if len(left) < len(stream.replicas) or not (has_disks or plan.gives_up):
        return None
    heir = max(stream.replicas, key=lambda node: _known_end(left[node], stream))
    end = _known_end(left[heir], stream)
    lost = f"{end}..{stream.local_end - 1}"
    yield from note("stream.lost", log=plan.log, stream=stream.stream, entries=lost, left=heir)
    return SealedReplicas(generation, (heir,), end, is_lossy=True, last=left[heir].last)


def _known_end(answer: StreamSealed, stream: StreamRecord) -> Lsn:
    """Up to where a replica has what is committed, and somebody knows where it lies in the log."""
    if answer.local_end < stream.taken_end:
        return answer.local_end
    return min(answer.end, stream.local_end)


def _certain_end(answer: StreamSealed, stream: StreamRecord) -> Lsn:
    """A replica that missed the last opening may hold, above what is committed, what that opening
    forgot and others replaced since (I4)."""
    has_opened = answer.opened == stream.generation
    return answer.end if has_opened else min(answer.end, stream.local_end)


def join_replicas(plan: ReformPlan, sealed: SealedReplicas) -> Procedure[SealedReplicas]:
    """Those that go on, and whoever of the waiting could be given all that is committed: `plan` is
    by the record as it is now.  Keeps I3."""
    joined: list[NodeId] = []
    try:
        for node in sealed.waiting:
            if (yield from _join(plan, sealed, node)):
                joined.append(node)
    except DeadlinePassed:
        pass  # The others go on; whoever is late joins another time.
    end = min(sealed.end, plan.stream.local_end) if joined else sealed.end
    stays = _relieved(plan, (*sealed.replicas, *joined))
    return SealedReplicas(sealed.generation, stays, end)


def _join(plan: ReformPlan, sealed: SealedReplicas, node: NodeId) -> Procedure[bool]:
    source = sealed.replicas[0]
    taken = yield from ask(source, plan.catch_up, CATCH_UP_TIMEOUT_MS)
    if not isinstance(taken, CommitTaken):
        return False
    sync = SyncStream(plan.log, plan.stream.stream, sealed.generation, node)
    synced = yield from ask(source, sync, SYNC_TIMEOUT_MS)
    return isinstance(synced, StreamSynced) and synced.local_end >= plan.stream.local_end


def sync_replica(
    log: LogId, stream: StreamRecord, destination: NodeId
) -> Procedure[StreamSynced | CannotReform]:
    """Bring a node that is to join to about where the stream is, while the stream goes on."""
    trouble = "no replica could be its source"
    try:
        sealed = yield from _seal_learner(log, stream, destination)
        if not isinstance(sealed, StreamSealed):
            return CannotReform(f"node {destination} cannot join: {sealed}")
        sync = SyncStream(log, stream.stream, stream.generation, destination)
        for source in stream.replicas:
            synced = yield from _sync_from(source, sync, sealed.local_end)
            if isinstance(synced, StreamSynced):
                return synced
            trouble = f"node {source} could not be its source: {synced}"
    except DeadlinePassed:
        trouble = "it took too long; what has arrived stays"
    return CannotReform(trouble)


def _seal_learner(log: LogId, stream: StreamRecord, node: NodeId) -> Procedure[Answer]:
    """What it has of entries that were given up it must forget first: others lie there by now."""
    seal = SealStream(log, stream.stream, stream.generation)
    sealed = yield from ask(node, seal, SEAL_TIMEOUT_MS)
    if not isinstance(sealed, StreamSealed) or not _is_outdated(sealed, stream):
        return sealed
    retire = RetireStream(log, stream.stream, stream.generation)
    retired = yield from ask(node, retire, SEAL_TIMEOUT_MS)
    if not isinstance(retired, Dropped):
        return retired
    return (yield from ask(node, seal, SEAL_TIMEOUT_MS))


def _is_outdated(sealed: StreamSealed, stream: StreamRecord) -> bool:
    loss = stream.loss
    if loss is None:
        return False
    has_lost_ones = sealed.version <= loss.version and sealed.local_end > loss.local
    return has_lost_ones or not sealed.is_valid


def _sync_from(source: NodeId, sync: SyncStream, end: Lsn) -> Procedure[Answer]:
    """Again and again until little was new: the rest is sent while the stream stands still."""
    synced: Answer = yield from ask(source, sync, BULK_SYNC_TIMEOUT_MS)
    for _ in range(SYNC_ROUNDS_MAX):
        if not isinstance(synced, StreamSynced) or synced.local_end - end <= SYNC_REST_ENTRIES:
            break
        end = synced.local_end
        synced = yield from ask(source, sync, BULK_SYNC_TIMEOUT_MS)
    return synced


def open_replicas(log: LogId, stream: StreamRecord, end: Lsn) -> Procedure[OpenedReplicas]:
    """The record names them: `stream` is what it says."""
    message = OpenStream(
        log, stream.stream, stream.generation, stream.replicas, end, stream.is_open
    )
    asks = [Ask(node, message, OPEN_TIMEOUT_MS) for node in stream.replicas]
    try:
        answers = yield from ask_all(asks)
    except DeadlinePassed:
        return OpenedReplicas({}, stream.replicas)
    opened = {
        node: answer.report
        for node, answer in zip(stream.replicas, answers, strict=True)
        if isinstance(answer, StreamOpened)
    }
    return OpenedReplicas(opened, _missing(stream.replicas, opened))


def _missing(nodes: Sequence[NodeId], found: Collection[NodeId]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node not in found)
