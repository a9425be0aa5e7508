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
  I6  A holder that was not told where the copies lie by now finds out by asking its donor, and does
      not wait for one that has no copy: two that wait for each other, each for a block that the
      other need not give, would never finish.
  I7  A record is lost when all that held it say that they have no whole copy, or have lost their
      disks for good: there is nothing to give, and readers are told of it.  Who is silent may have
      one.  What says that there is no record is made anew from what the index knows of it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from millrace.core.epochs import range_of
from millrace.core.messages import (
    Amend,
    Amended,
    Copies,
    CopiesPage,
    Rebuild,
    Refused,
    Stored,
    Trimmed,
    TrimSequenced,
)
from millrace.core.procedure import Answer, Ask, Failure, FailureKind, Procedure, ask, ask_all, note
from millrace.core.repair import MakeJunk
from millrace.core.sequenced.giving import Job, Site, Tally, batches, look_up
from millrace.core.sequenced.other_holders import OtherHolders
from millrace.core.sequenced.replacing import Copyset, Ward, replace
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

ROUNDS_MAX: Final = 4  # Copysets tried for a block before it is left to the next walk.

_Trouble = Failure | None


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
        self._others = OtherHolders(log)

    def run(self) -> Procedure[_Trouble]:
        """None when all was looked at; the tally says what is left."""
        if self._first > FIRST_LSN:
            trouble = yield from self._pass_on()
            if trouble is not None:
                return trouble
        site: Site | None = None
        at = self._first
        while at < self._end:
            page = yield from ask(self._ward.me, Copies(self._log, at, self._end))
            if not isinstance(page, CopiesPage) or page.next_lsn <= at:
                detail = f"log {self._log}: its own index is not told: {_shown(page)}"
                return Failure(FailureKind.LOST, detail)
            at = page.next_lsn
            if page.copies and site is None:
                found = yield from look_up(self._log)
                if not isinstance(found, Site):
                    return found
                site = found
            if page.copies and site is not None:
                yield from self._page(site, page.copies)
        return None

    def _pass_on(self) -> Procedure[_Trouble]:
        """Keeps I5."""
        site = yield from look_up(self._log)
        if not isinstance(site, Site):
            return site
        nodes = {node for span in site.spans for node in span.nodeset} - {self._ward.me}
        trim = TrimSequenced(self._log, self._first)
        answers = yield from ask_all([Ask(node, trim) for node in sorted(nodes)])
        if not answers or any(isinstance(answer, Trimmed) for answer in answers):
            return None
        detail = f"log {self._log}: nobody hears that it begins at {show(self._first)}"
        return Failure(FailureKind.LOST, detail)

    def _page(self, site: Site, copies: Sequence[Copy]) -> Procedure[None]:
        mine: list[Job] = []
        waiting: list[Job] = []
        for job in (yield from self._wanting(site, copies)):
            if job.copy.extent.last >= self._readable_end:  # Keeps I3.
                self._tally.unsettled += 1
                self._leave(job, "it is not released yet")
            else:
                (mine if self._donor_of(job) == self._ward.me else waiting).append(job)
        done_before = self._tally.blocks_done
        yield from self._give_all(site, mine)
        if self._tally.blocks_done > done_before:
            # While there is more to do here, others may well be doing it there.
            for job in waiting:
                self._leave(job, f"node {self._donor_of(job)} is to give it")
        else:
            yield from self._give_all(site, (yield from self._inherited(site, waiting)))

    def _wanting(self, site: Site, copies: Sequence[Copy]) -> Procedure[list[Job]]:
        """What lacks the copy of a lost node that has not got it back meanwhile."""
        jobs: list[Job] = []
        for copy in copies:
            epoch = epoch_of(copy.extent.first)
            lost = site.lacking(self._ward, epoch, copy.placement.copyset)
            if lost:
                jobs.append(Job(copy, lost))
        lacked = {node for job in jobs for node in job.lost}
        for node in sorted(lacked & self._ward.refillable):
            held = yield from self._others.held_by(node, [job.copy for job in jobs])
            if held is not None:
                jobs = [each for job in jobs if (each := job.without(node, held.placements))]
        return jobs

    def _donor_of(self, job: Job) -> NodeId:
        if job.copy.extent.kind is not EntryKind.DATA:
            # Each recovery has placed holes and bridges as it saw fit, so that the holders disagree
            # on who is the first of them: everybody looks after its own, which is small.
            return self._ward.me
        return self._ward.donor_of(job.copy.placement, job.lost, job.gone - job.lost)

    def _inherited(self, site: Site, waiting: list[Job]) -> Procedure[list[Job]]:
        """Those that are to be given here, since those before this node have nothing.  Keeps I6."""
        mine: list[Job] = []
        while waiting:
            of_donors: dict[NodeId, list[Job]] = {}
            for job in waiting:
                of_donors.setdefault(self._donor_of(job), []).append(job)
            mine += of_donors.pop(self._ward.me, [])
            waiting = []
            for donor, jobs in sorted(of_donors.items()):
                waiting += yield from self._hear(site, donor, jobs)
        return mine

    def _hear(self, site: Site, donor: NodeId, jobs: list[Job]) -> Procedure[list[Job]]:
        """Adopt what the donor has given by now, or holds by a later decision; those of which it
        has nothing."""
        held = yield from self._others.held_by(donor, [job.copy for job in jobs])
        passed_on: list[Job] = []
        given: list[Job] = []
        for job in jobs:
            if held is not None and held.has_nothing_of(job.copy.extent):
                job.gone.add(donor)
                passed_on.append(job)
                continue
            found = None if held is None else held.placements.get(job.copy.extent)
            if found is None or not self._is_given(site, job, found):
                self._leave(job, f"node {donor} is to give it")
                continue
            job.placement = found
            given.append(job)
        yield from self._adopt(site, given)
        return passed_on

    def _is_given(self, site: Site, job: Job, found: Placement) -> bool:
        is_later = found.precedence >= job.placement.precedence
        return is_later and job.lost.isdisjoint(self._lacking(site, job, found.copyset))

    def _adopt(self, site: Site, given: Sequence[Job]) -> Procedure[None]:
        if not given:
            return
        amended = yield from ask(self._ward.me, self._amend(given))
        for job in given:
            if not isinstance(amended, Amended):
                self._leave(job, "this node does not take down where it is")
            elif lacking := self._lacking(site, job, job.placement.copyset):  # Keeps I1.
                self._tally.leave(job.copy, lacking, "it has been given to a node that is lost")

    def _lacking(self, site: Site, job: Job, copyset: Copyset) -> frozenset[NodeId]:
        return site.lacking(self._ward, epoch_of(job.first), copyset)

    # -- Giving -------------------------------------------------------------------------------

    def _give_all(self, site: Site, jobs: Iterable[Job]) -> Procedure[None]:
        for batch in batches(jobs):  # Keeps I4.
            yield from self._give(site, batch)

    def _give(self, site: Site, jobs: list[Job]) -> Procedure[None]:
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

    def _leave(self, job: Job, why: str) -> None:
        self._tally.leave(job.copy, job.lost, why)

    def _choose(self, site: Site, job: Job) -> bool:
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

    def _fetch(self, jobs: Iterable[Job]) -> Procedure[None]:
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

    def _others_asked(self, job: Job) -> list[NodeId]:
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

    def _not_lost(self, jobs: Sequence[Job]) -> Procedure[list[Job]]:
        """Keeps I7."""
        left: list[Job] = []
        for job in jobs:
            unheard = {self._ward.me, *job.members} - job.in_vain - self._ward.forsaken
            if job.block is None and job.targets and not unheard:
                yield from note("rebuilding.lost", log=self._log, lsn=show(job.first))
            else:
                left.append(job)
        return left

    def _send(self, jobs: Iterable[Job]) -> Procedure[None]:
        asks: list[Ask] = []
        owners: list[Job] = []
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

    def _tell(self, site: Site, jobs: Sequence[Job]) -> Procedure[list[Job]]:
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

    def _amend(self, jobs: Sequence[Job]) -> Amend:
        changes = tuple((job.first, job.placement) for job in jobs)
        return Amend(self._log, Epoch(0), changes, is_rebuilding=True)

    def _settle(self, site: Site, jobs: list[Job]) -> list[Job]:
        for job in jobs:
            self._tally.blocks_done += 1
            self._tally.bytes_done += job.copy.extent.size
            still_lost = self._lacking(site, job, job.placement.copyset).difference(job.targets)
            if still_lost:
                self._tally.leave(job.copy, still_lost, "too few other nodes can take it")
        return jobs


def _shown(answer: Answer) -> str:
    if isinstance(answer, Failure):
        return f"{answer.kind.value} {answer.detail}".strip()
    if isinstance(answer, Refused):
        return f"{answer.reason.value} {answer.detail}".strip()
    return type(answer).__name__
