"""Carrying out what a recovery decided about an epoch (`digest.py`).

Every decision is written with the recovering epoch as its precedence, also where the right block
lies already: there it is only amended.  So nothing that a node still holds from before, wherever it
was during this recovery, can stand against what was decided.

  I1  A decision is done when no f-majority can do without the nodes that acknowledged it: they hold
      a copyset, or the others have lost their votes.
  I2  A node that fails is left out from then on, and the copyset is chosen anew without it.  It may
      still give what it has: one that is drained takes nothing, and may have the only copy.
  I3  Blocks in memory are bounded: a batch at a time.
  I4  Junk goes to everybody who can be reached, so that every reader sees it at once.
  I5  A block whose copies are all damaged is given up, as a LOSS, only if nobody who may have a
      sound one is missing.
  I6  Who carries it out is told if anything has fewer copies than are wanted: it is good only for
      as long as the others have no votes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from millrace.core.messages import (
    Amend,
    Amended,
    FetchCopies,
    Fetched,
    Refusal,
    Refused,
    Store,
    Stored,
)
from millrace.core.procedure import Answer, Ask, Failure, Procedure, ask_all, note
from millrace.core.repair import MakeJunk
from millrace.core.replication import (
    Authority,
    Locations,
    Replication,
    authority,
    can_replicate,
    domain_of,
    requirements,
)
from millrace.core.sequenced.digest import Decision
from millrace.limits import COPYSET_SIZE_MAX, MIB
from millrace.lsn import show
from millrace.types import (
    NO_LSN,
    AuthoritativeStatus,
    Block,
    Copy,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
)

BATCH_BYTES: Final = 32 * MIB  # Blocks read from one node to be stored on others.
BATCH_BLOCKS: Final = 256
ROUNDS_MAX: Final = 8  # Copysets tried before the recovery begins anew.


class Preempted(msgspec.Struct, frozen=True):
    """Somebody else recovers the log, in this later epoch."""

    epoch: Epoch


class Stuck(msgspec.Struct, frozen=True):
    detail: str


class Rewritten(msgspec.Struct, frozen=True):
    """`told` know of all decisions: who was reachable, without those that failed."""

    told: list[NodeId]
    is_short: bool  # Keeps I6.


class Terms(msgspec.Struct, frozen=True):
    """On whose behalf, and on which nodes."""

    log: LogId
    epoch: Epoch  # The recovering one.
    wave: int  # Of its attempts.
    replication: Replication
    nodeset: tuple[NodeId, ...]
    locations: Locations
    statuses: Mapping[NodeId, AuthoritativeStatus]
    make_junk: MakeJunk
    is_complete: bool  # Everybody who may have a copy told of it.


class _Job:
    """A decision under way: who has it by now, and what is to be sent to the others."""

    def __init__(self, decision: Decision, terms: Terms) -> None:
        self.decision = decision
        self.holders = set(decision.holders)
        self.placed: set[NodeId] = set()  # Who acknowledged this recovery's placement.
        self.copyset: tuple[NodeId, ...] = ()
        self.block: Block | None = None
        self.sources: list[NodeId] = []  # Holders that were not asked for it yet.
        self.damaged = 0  # Holders whose copy is.
        self.is_junk = False
        if isinstance(decision.winner, EntryKind):
            self.become_junk(decision.winner, terms)

    @property
    def size_bytes(self) -> int:
        winner = self.decision.winner
        return winner.extent.size if isinstance(winner, Copy) else 0

    def become_junk(self, kind: EntryKind, terms: Terms) -> None:
        first, last = self.decision.first, self.decision.last
        self.is_junk = True
        self.holders = set()
        self.block = terms.make_junk(terms.log, first, last - first + 1, kind)

    def in_preference(self, reachable: Sequence[NodeId]) -> list[NodeId]:
        """Who has the block, in its order; who must be written to anyway; the rest, from another
        one on for each block, so that what they get is spread."""
        winner, overwrite = self.decision.winner, self.decision.overwrite
        placed = winner.placement.copyset if isinstance(winner, Copy) else ()
        start = self.decision.first % max(1, len(reachable))
        order = dict.fromkeys([*placed, *reachable[start:], *reachable[:start]])
        known = set(reachable)
        return sorted(
            (node for node in order if node in known),
            key=lambda node: (node not in self.holders, node not in overwrite),
        )

    def targets(self, reachable: Collection[NodeId]) -> list[NodeId]:
        """Who is still to be sent the block itself."""
        # Keeps I4.
        wanted = reachable if self.is_junk else {*self.copyset, *self.decision.overwrite}
        return [node for node in reachable if node in wanted and node not in self.holders]

    def fetch(self, log: LogId) -> FetchCopies:
        end = Lsn(self.decision.last + 1)
        return FetchCopies(log, self.decision.first, end, self.size_bytes)

    def fetched(self, answer: Answer) -> None:
        winner = self.decision.winner
        assert isinstance(winner, Copy)
        if isinstance(answer, Fetched):
            found = [block for block in answer.blocks if block.extent() == winner.extent]
            self.block = found[0] if found else None
        elif isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            self.damaged += 1


def rewrite(
    terms: Terms, decisions: Sequence[Decision], reachable: Sequence[NodeId]
) -> Procedure[Preempted | Stuck | Rewritten]:
    left, is_short = list(reachable), False
    for jobs in _batches(_Job(decision, terms) for decision in decisions):
        for _ in range(ROUNDS_MAX):
            outcome = yield from _round(terms, jobs, left)
            if not isinstance(outcome, list):
                return outcome
            left = outcome
            is_short |= any(is_too_few(terms, job.copyset) for job in jobs)
            jobs = [job for job in jobs if not job.placed.issuperset(job.copyset)]
            if not jobs:
                break
        else:
            return Stuck(f"no copyset takes {show(jobs[0].decision.first)}; reachable: {left}")
    return Rewritten(left, is_short)


def is_too_few(terms: Terms, copyset: Collection[NodeId]) -> bool:
    return not can_replicate(terms.replication, copyset, terms.locations)


def _batches(jobs: Iterable[_Job]) -> Iterator[list[_Job]]:
    """Keeps I3."""
    batch: list[_Job] = []
    size_bytes = 0
    for job in jobs:
        is_full = len(batch) == BATCH_BLOCKS or size_bytes + job.size_bytes > BATCH_BYTES
        if batch and is_full:
            yield batch
            batch, size_bytes = [], 0
        batch.append(job)
        size_bytes += job.size_bytes
    if batch:
        yield batch


def _round(
    terms: Terms, jobs: Sequence[_Job], reachable: list[NodeId]
) -> Procedure[Preempted | Stuck | list[NodeId]]:
    """Give every job a copyset and send what it needs; jobs with a failed node in their copyset
    need another round."""
    for job in jobs:
        copyset = choose_copyset(terms, job.in_preference(reachable))
        if copyset is None:
            return Stuck(f"too few nodes for a copyset of {show(job.decision.first)}: {reachable}")
        job.copyset, job.placed = copyset, set()
    trouble = yield from _fetch(terms, [job for job in jobs if job.targets(reachable)], reachable)
    if trouble is not None:
        return trouble
    asks, owners = _writes(terms, jobs, reachable)
    answers = yield from ask_all(asks)
    failed: set[NodeId] = set()
    for request, owned, answer in zip(asks, owners, answers, strict=True):
        if isinstance(answer, Refused) and answer.epoch > terms.epoch:
            return Preempted(answer.epoch)
        lacking = answer.missing if isinstance(answer, Amended) else ()
        if not isinstance(answer, Stored | Amended) or lacking:
            failed.add(request.node)
            yield from note("recovery.node_left_out", node=request.node, answer=_shown(answer))
            continue
        for job in owned:
            job.placed.add(request.node)
            if not job.is_junk:
                job.holders.add(request.node)
    return [node for node in reachable if node not in failed]


def _writes(
    terms: Terms, jobs: Sequence[_Job], reachable: Sequence[NodeId]
) -> tuple[list[Ask], list[list[_Job]]]:
    """The requests of a round, and whose they are: one Amend for each node, the Stores apart."""
    asks: list[Ask] = []
    owners: list[list[_Job]] = []
    for node in reachable:
        amended = [job for job in jobs if node in job.holders]
        if amended:
            changes = tuple((job.decision.first, _placement(terms, job)) for job in amended)
            asks.append(Ask(node, Amend(terms.log, terms.epoch, changes)))
            owners.append(amended)
    for job in jobs:
        placement = _placement(terms, job)
        for node in job.targets(reachable):
            assert job.block is not None
            store = Store(terms.log, terms.epoch, job.block, placement, NO_LSN, NO_LSN)
            asks.append(Ask(node, store))
            owners.append([job])
    return asks, owners


def _placement(terms: Terms, job: _Job) -> Placement:
    return Placement(job.copyset, terms.wave, terms.epoch)


def choose_copyset(terms: Terms, candidates: Sequence[NodeId]) -> tuple[NodeId, ...] | None:
    """As many of the candidates as the replication asks for, the first ones if they will do."""
    chosen: list[NodeId] = []
    for scope, factor in requirements(terms.replication):
        taken = {domain_of(node, scope, terms.locations) for node in chosen}
        for node in candidates:
            domain = domain_of(node, scope, terms.locations)
            if len(taken) < factor and domain not in taken:
                taken.add(domain)
                chosen.append(node)
        if len(taken) < factor:
            return _all_of(terms, candidates)
    return tuple(chosen)


def _all_of(terms: Terms, candidates: Sequence[NodeId]) -> tuple[NodeId, ...] | None:
    """All candidates although they are too few, if the others can never outvote them (I1)."""
    others = set(terms.nodeset).difference(candidates)
    outvoted = authority(terms.replication, terms.nodeset, terms.locations, terms.statuses, others)
    if not candidates or outvoted in (Authority.COMPLETE, Authority.INCOMPLETE):
        return None
    return tuple(candidates[:COPYSET_SIZE_MAX])


# -- Fetching ---------------------------------------------------------------------------------


def _fetch(
    terms: Terms, jobs: Iterable[_Job], reachable: Sequence[NodeId]
) -> Procedure[Stuck | None]:
    """Read the blocks that are to be stored elsewhere, each from its holders in turn."""
    missing = [job for job in jobs if job.block is None]
    for job in missing:
        preferred = [node for node in job.in_preference(reachable) if node in job.holders]
        job.sources = [*preferred, *sorted(job.holders.difference(preferred))]  # Keeps I2.
        job.damaged = 0
    while missing:
        for job in missing:
            if not job.sources:
                trouble = yield from _give_up(terms, job)
                if trouble is not None:
                    return trouble
        missing = [job for job in missing if job.block is None]
        requests = [Ask(job.sources.pop(0), job.fetch(terms.log)) for job in missing]
        answers = yield from ask_all(requests)
        for job, answer in zip(missing, answers, strict=True):
            job.fetched(answer)
        missing = [job for job in missing if job.block is None]
    return None


def _give_up(terms: Terms, job: _Job) -> Procedure[Stuck | None]:
    """Keeps I5."""
    first, holders = job.decision.first, sorted(job.decision.holders)
    if not terms.is_complete or job.damaged < len(holders):
        return Stuck(f"none of nodes {holders} gives its copy of {show(first)}")
    yield from note("recovery.lost", log=terms.log, first=first, holders=holders)
    job.become_junk(EntryKind.LOSS, terms)
    return None


def _shown(answer: Answer) -> str:
    if isinstance(answer, Failure):
        return f"{answer.kind.value} {answer.detail}".strip()
    if isinstance(answer, Refused):
        return f"{answer.reason.value} {answer.detail}".strip()
    return type(answer).__name__
