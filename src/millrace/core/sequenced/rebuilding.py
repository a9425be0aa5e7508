"""Giving the copies of lost nodes to others: the part of one donor, for one log (R11).

Every live node walks its own index for blocks whose copyset names a node that is to be rebuilt.  Of
each such block one holder is the donor (`replacing.py`): it sends the block to another node of the
epoch's nodeset, and then tells the other holders of the new copyset.  Nobody plans the whole and
nothing is remembered: whoever starts again walks again and finds less.

  I1  A node has finished with a lost node when no block that it holds names it, be others done or
      not.  So when all have, nobody looks for a copy there.  A block that a node which lives again
      was given back goes on naming it, rightly.
  I2  Holders are told after the new copy is stored, with the precedence that was found: a later
      decision of a recovery is never overruled.
  I3  Only what is settled is touched: from `readable_end` on it is the sequencer's and the
      recovery's business.
  I4  Blocks in memory are bounded by a batch, index entries by a page.
  I5  Where the log begins is passed on as well: whoever takes the place of others in old epochs has
      to tell what was trimmed from what is lost.
  I6  A holder that was not told where the copies lie by now finds out by asking its donor: two that
      wait for each other, each for a block that the other need not give, would never finish.
  I7  A record is lost when all that held it say that they have no whole copy, or have lost their
      disks for good: there is nothing to give, and readers are told of it.  Who is silent may have
      one.  What says that there is no record is made anew from what the index knows of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord, NodesetChange, range_of, ranges
from millrace.core.messages import (
    Amend,
    Amended,
    Copies,
    CopiesPage,
    FetchCopies,
    Fetched,
    Rebuild,
    Refusal,
    Refused,
    Stored,
    Trimmed,
    TrimSequenced,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadEpochs,
    ReadNodesetChanges,
    ask,
    ask_all,
    note,
)
from millrace.core.repair import MakeJunk
from millrace.core.replication import Locations, can_replicate
from millrace.core.sequenced.replacing import Copyset, Ward, replace
from millrace.limits import MIB
from millrace.lsn import epoch_of, show
from millrace.types import (
    FIRST_LSN,
    Block,
    Copy,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    Placement,
)

BATCH_BYTES: Final = 16 * MIB
BATCH_BLOCKS: Final = 64
ROUNDS_MAX: Final = 4  # Copysets tried for a block before it is left to the next walk.

_Trouble = Failure | None


class Tally(msgspec.Struct):
    """What a walk did, and what it left, by the nodes that are to be rebuilt."""

    blocks_done: int = 0
    bytes_done: int = 0
    blocks_left: dict[NodeId, int] = {}
    bytes_left: dict[NodeId, int] = {}
    waits_for: str = ""  # Why the last of the blocks that are left is.
    unsettled: int = 0  # Blocks that are left because of I3.

    def leave(self, copy: Copy, lost: Iterable[NodeId], why: str) -> None:
        for node in lost:
            self.blocks_left[node] = self.blocks_left.get(node, 0) + 1
            self.bytes_left[node] = self.bytes_left.get(node, 0) + copy.extent.size
        self.waits_for = f"{show(copy.extent.first)}: {why}"


class _Site(msgspec.Struct, frozen=True):
    """Where copies of the log may lie."""

    spans: tuple[EpochRange, ...]
    locations: Locations

    def lacking(self, ward: Ward, epoch: Epoch, copyset: Copyset) -> frozenset[NodeId]:
        """The lost nodes in whose place a block needs others: those that it names, and if it is
        short, those that it might have."""
        named = ward.lost_of(copyset)
        span = range_of(self.spans, epoch)
        if span is None or can_replicate(span.replication, copyset, self.locations):
            return named
        return named | (ward.lost_of(span.nodeset) - ward.leaving)


class _Job:
    """A block to give: `lost` is why, `gone` do not hold it, `placement` is the new one."""

    def __init__(self, copy: Copy, lost: frozenset[NodeId]) -> None:
        self.copy = copy
        self.lost = lost
        self.gone = set(lost)
        self.placement: Placement = copy.placement
        self.targets: Copyset = ()
        self.stored: set[NodeId] = set()  # Those of the targets that have it.
        self.block: Block | None = None
        self.in_vain: set[NodeId] = set()  # Who said that it has no whole copy.

    @property
    def first(self) -> Lsn:
        return self.copy.extent.first

    @property
    def members(self) -> Copyset:
        return self.copy.placement.copyset

    def holders(self) -> list[NodeId]:
        return [node for node in self.members if node not in self.gone]

    def take(self, node: NodeId, answer: Answer) -> None:
        """What a node says when it is asked for the block."""
        blocks = answer.blocks if isinstance(answer, Fetched) else ()
        self.block = next((b for b in blocks if b.extent() == self.copy.extent), None)
        is_damaged = isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT
        if self.block is None and (is_damaged or isinstance(answer, Fetched)):
            self.in_vain.add(node)

    def place(self, copyset: Copyset, targets: Copyset) -> None:
        self.placement = msgspec.structs.replace(self.copy.placement, copyset=copyset)
        self.targets = targets
        self.stored = set()

    def fetch(self, log: LogId) -> FetchCopies:
        extent = self.copy.extent
        return FetchCopies(log, extent.first, Lsn(extent.last + 1), extent.size)


class LogWalk:
    """One walk through this node's index of one log, [first, end)."""

    def __init__(
        self,
        log: LogId,
        ward: Ward,
        first: Lsn,
        end: Lsn,
        readable_end: Lsn,
        tally: Tally,
        make_junk: MakeJunk,
    ) -> None:
        self._log = log
        self._ward = ward
        self._make_junk = make_junk
        self._first = first
        self._end = end
        self._readable_end = readable_end
        self._tally = tally
        self._failed: set[NodeId] = set()  # Did not take a copy: not asked again in this walk.

    def run(self) -> Procedure[_Trouble]:
        """None when all was looked at; the tally says what is left."""
        if self._first > FIRST_LSN:
            trouble = yield from self._pass_on()
            if trouble is not None:
                return trouble
        site: _Site | None = None
        at = self._first
        while at < self._end:
            page = yield from ask(self._ward.me, Copies(self._log, at, self._end))
            if not isinstance(page, CopiesPage) or page.next_lsn <= at:
                detail = f"log {self._log}: its own index is not told: {_shown(page)}"
                return Failure(FailureKind.LOST, detail)
            at = page.next_lsn
            if page.copies and site is None:
                found = yield from _look_up(self._log)
                if not isinstance(found, _Site):
                    return found
                site = found
            if page.copies and site is not None:
                yield from self._page(site, page.copies)
        return None

    def _pass_on(self) -> Procedure[_Trouble]:
        """Keeps I5."""
        site = yield from _look_up(self._log)
        if not isinstance(site, _Site):
            return site
        nodes = {node for span in site.spans for node in span.nodeset} - {self._ward.me}
        trim = TrimSequenced(self._log, self._first)
        answers = yield from ask_all([Ask(node, trim) for node in sorted(nodes)])
        if not answers or any(isinstance(answer, Trimmed) for answer in answers):
            return None
        detail = f"log {self._log}: nobody hears that it begins at {show(self._first)}"
        return Failure(FailureKind.LOST, detail)

    def _page(self, site: _Site, copies: Sequence[Copy]) -> Procedure[None]:
        wanting: list[tuple[Copy, frozenset[NodeId]]] = []
        for copy in copies:
            epoch = epoch_of(copy.extent.first)
            lost = site.lacking(self._ward, epoch, copy.placement.copyset)
            if lost:
                wanting.append((copy, lost))
        refilled = yield from self._refilled(wanting)
        jobs: list[_Job] = []
        of_others: dict[NodeId, list[_Job]] = {}
        for copy, lost in wanting:
            lost -= {node for node, held in refilled.items() if copy.extent in held}
            if not lost:
                continue
            if copy.extent.last >= self._readable_end:  # Keeps I3.
                self._tally.unsettled += 1
                self._tally.leave(copy, lost, "it is not released yet")
                continue
            donor = self._donor_of(copy, lost)
            of_donor = jobs if donor == self._ward.me else of_others.setdefault(donor, [])
            of_donor.append(_Job(copy, lost))
        for batch in _batches(jobs):
            yield from self._give(site, batch)
        for donor, waiting in sorted(of_others.items()):
            # While there is more to do here, others may well be doing it there.
            given = set() if jobs else (yield from self._given(site, donor, waiting))
            for job in waiting:
                if job.first not in given:
                    self._leave(job, f"node {donor} is to give it")

    def _donor_of(self, copy: Copy, lost: frozenset[NodeId]) -> NodeId:
        if copy.extent.kind is not EntryKind.DATA:
            # Each recovery has placed holes and bridges as it saw fit, so that the holders disagree
            # on who is the first of them: everybody looks after its own, which is small.
            return self._ward.me
        return self._ward.donor_of(copy.placement, lost)

    def _given(self, site: _Site, donor: NodeId, waiting: Sequence[_Job]) -> Procedure[set[Lsn]]:
        """Those that the donor has given by now, or holds by a later decision.  Keeps I6."""
        known = yield from self._held_by(donor, waiting[0].copy, waiting[-1].copy)
        given: list[_Job] = []
        for job in waiting:
            found = known.get(job.copy.extent)
            if found is None or found.precedence < job.placement.precedence:
                continue
            lacking = site.lacking(self._ward, epoch_of(job.first), found.copyset)
            if job.lost.isdisjoint(lacking):
                job.placement = found
                given.append(job)
        if not given:
            return set()
        amended = yield from ask(self._ward.me, self._amend(given))
        return {job.first for job in given} if isinstance(amended, Amended) else set()

    def _held_by(self, node: NodeId, first: Copy, last: Copy) -> Procedure[dict[Extent, Placement]]:
        """As far as it tells."""
        held: dict[Extent, Placement] = {}
        at, end = first.extent.first, Lsn(last.extent.last + 1)
        while at < end:
            page = yield from ask(node, Copies(self._log, at, end))
            if not isinstance(page, CopiesPage) or page.next_lsn <= at:
                break
            held.update((copy.extent, copy.placement) for copy in page.copies)
            at = page.next_lsn
        return held

    def _refilled(
        self, wanting: Sequence[tuple[Copy, frozenset[NodeId]]]
    ) -> Procedure[dict[NodeId, set[Extent]]]:
        """What nodes that live again, empty, have got meanwhile of these blocks."""
        found: dict[NodeId, set[Extent]] = {}
        lacked = {node for _, lost in wanting for node in lost}
        for node in sorted(lacked & self._ward.refillable):
            held = yield from self._held_by(node, wanting[0][0], wanting[-1][0])
            found[node] = set(held)
        return found

    # -- Giving -------------------------------------------------------------------------------

    def _give(self, site: _Site, batch: list[_Job]) -> Procedure[None]:
        jobs = batch
        for _ in range(ROUNDS_MAX):
            jobs = [job for job in jobs if self._choose(site, job)]
            yield from self._fetch(jobs)
            jobs = yield from self._not_lost(jobs)
            yield from self._send([job for job in jobs if job.block is not None])
            stored = [job for job in jobs if job.stored.issuperset(job.targets)]
            done = yield from self._tell(site, stored)
            jobs = [job for job in jobs if job not in done]
            if not jobs:
                return
        for job in jobs:
            why = "nobody takes a copy" if job.block is not None else "no whole copy was found"
            self._leave(job, why)

    def _leave(self, job: _Job, why: str) -> None:
        self._tally.leave(job.copy, job.lost, why)

    def _choose(self, site: _Site, job: _Job) -> bool:
        span = range_of(site.spans, epoch_of(job.first))
        if span is None:
            self._leave(job, "its epoch is newer than what the repository told")
            return False
        replaced = replace(
            self._log,
            job.members,
            job.gone,
            span,
            site.locations,
            self._ward,
            self._failed,
        )
        if replaced is None:
            self._leave(job, "no other node can take it")
            return False
        job.place(replaced.copyset, replaced.added)
        return True

    def _fetch(self, jobs: Iterable[_Job]) -> Procedure[None]:
        """Read the blocks that are to be sent: here, or if the copy is damaged, elsewhere."""
        missing = [job for job in jobs if job.block is None and job.targets]
        sources = {job.first: [self._ward.me, *self._others_asked(job)] for job in missing}
        while missing:
            asks = [Ask(sources[job.first].pop(0), job.fetch(self._log)) for job in missing]
            answers = yield from ask_all(asks)
            for asked, job, answer in zip(asks, missing, answers, strict=True):
                job.take(asked.node, answer)
                if job.block is None and not sources[job.first]:
                    job.block = self._made_anew(job.copy.extent)
            missing = [job for job in missing if job.block is None and sources[job.first]]

    def _others_asked(self, job: _Job) -> list[NodeId]:
        """Lost ones last: those that are drained have their copies, and others may have got theirs
        back."""
        asked = set(job.members) - {self._ward.me} - self._ward.forsaken
        return sorted(asked, key=lambda node: (node in job.lost, job.members.index(node)))

    def _made_anew(self, extent: Extent) -> Block | None:
        if extent.kind is EntryKind.DATA:
            return None
        count = extent.last - extent.first + 1
        made = self._make_junk(self._log, extent.first, count, extent.kind)
        return made if made.extent() == extent else None

    def _not_lost(self, jobs: Sequence[_Job]) -> Procedure[list[_Job]]:
        """Keeps I7."""
        left: list[_Job] = []
        for job in jobs:
            unheard = {self._ward.me, *job.members} - job.in_vain - self._ward.forsaken
            if job.block is None and job.targets and not unheard:
                yield from note("rebuilding.lost", log=self._log, lsn=show(job.first))
            else:
                left.append(job)
        return left

    def _send(self, jobs: Iterable[_Job]) -> Procedure[None]:
        asks: list[Ask] = []
        owners: list[_Job] = []
        for job in jobs:
            assert job.block is not None
            released = Lsn(self._readable_end - 1)
            request = Rebuild(self._log, job.block, job.placement, released)
            asks += [Ask(node, request) for node in job.targets]
            owners += [job] * len(job.targets)
        answers = yield from ask_all(asks)
        for sent, job, answer in zip(asks, owners, answers, strict=True):
            if isinstance(answer, Stored):
                job.stored.add(sent.node)
            elif sent.node not in self._failed:
                self._failed.add(sent.node)
                yield from note("rebuilding.not_taken", node=sent.node, answer=_shown(answer))

    def _tell(self, site: _Site, jobs: Sequence[_Job]) -> Procedure[list[_Job]]:
        """Tell the holders, this node last (I2); the jobs that are done.  Whoever turns out not to
        hold the block needs a copy too; whoever is silent will look for itself (I1)."""
        me, leaving = self._ward.me, self._ward.leaving
        told = {job.first: {*job.holders(), *leaving.intersection(job.members)} for job in jobs}
        others = sorted({node for nodes in told.values() for node in nodes if node != me})
        groups = [[job for job in jobs if node in told[job.first]] for node in others]
        asks = [Ask(n, self._amend(group)) for n, group in zip(others, groups, strict=True)]
        answers = yield from ask_all(asks)
        lacking: set[Lsn] = set()
        for node, group, answer in zip(others, groups, answers, strict=True):
            missing = answer.missing if isinstance(answer, Amended) else ()
            for job in group:
                if job.first in missing and node not in job.gone:
                    job.gone.add(node)
                    lacking.add(job.first)
        whole = [job for job in jobs if job.first not in lacking]
        if not whole:
            return []
        mine = yield from ask(me, self._amend(whole))
        return self._settle(site, whole) if isinstance(mine, Amended) else []

    def _amend(self, jobs: Sequence[_Job]) -> Amend:
        changes = tuple((job.first, job.placement) for job in jobs)
        return Amend(self._log, Epoch(0), changes, is_rebuilding=True)

    def _settle(self, site: _Site, jobs: list[_Job]) -> list[_Job]:
        for job in jobs:
            self._tally.blocks_done += 1
            self._tally.bytes_done += job.copy.extent.size
            lacking = site.lacking(self._ward, epoch_of(job.first), job.placement.copyset)
            still_lost = lacking.difference(job.targets)
            if still_lost:
                self._tally.leave(job.copy, still_lost, "too few other nodes can take it")
        return jobs


def _batches(jobs: Iterable[_Job]) -> Iterator[list[_Job]]:
    """Keeps I4."""
    batch: list[_Job] = []
    size_bytes = 0
    for job in jobs:
        size_bytes += job.copy.extent.size
        if batch and (len(batch) == BATCH_BLOCKS or size_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], job.copy.extent.size
        batch.append(job)
    if batch:
        yield batch


def _look_up(log: LogId) -> Procedure[_Site | Failure | None]:
    """None: there is no such log any more, and housekeeping drops what is left of it."""
    read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    if isinstance(read, Failure):
        return read
    record = read[0]
    if record is None:
        return None
    changes: tuple[NodesetChange, ...] | Failure = ()
    if record.since > 1:
        changes = yield ReadNodesetChanges(log)
    if isinstance(changes, Failure):
        return changes
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view
    return _Site(ranges(changes, record), {node.id: node.location for node in view.nodes})


def _shown(answer: Answer) -> str:
    if isinstance(answer, Failure):
        return f"{answer.kind.value} {answer.detail}".strip()
    if isinstance(answer, Refused):
        return f"{answer.reason.value} {answer.detail}".strip()
    return type(answer).__name__
