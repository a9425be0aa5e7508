"""How a new or returning node becomes a copy of a log (C5: a node joins only by sync).

The learner compares its index with the tail's, page by page: what is the same stays, what
differs or lies above is taken out, what is missing is copied.  The tail's readable prefix is
committed, so it never changes under the copy.  Runs on the learner; requests to `me` are steps
it says to itself.  It counts as a member only after a reconfiguration has admitted it.
"""

from collections.abc import Sequence

from millrace.core.messages import (
    BeginLearn,
    Fetch,
    Fetched,
    Found,
    Index,
    IndexPage,
    Learned,
    Message,
    Read,
    Refusal,
    Refused,
    Revise,
    Revised,
)
from millrace.core.procedure import Answer, Failure, Procedure, ask, note
from millrace.types import LSN_MAX, Block, Epoch, Extent, LogId, Lsn, NodeId

FETCH_BYTES_MAX = 4 * 1024 * 1024


def learn(
    log: LogId, epoch: Epoch, source: NodeId, me: NodeId, others: Sequence[NodeId] = ()
) -> Procedure[Message]:
    """Answers Learned, or the Refused that stopped it; starting again resumes."""
    begun = yield from ask(me, BeginLearn(log, epoch))
    if not isinstance(begun, Revised):
        return _refused(begun)
    copied = removed = 0
    at, end = Lsn(1), LSN_MAX
    while at < end:
        page = yield from ask(source, Index(log, epoch, at, end))
        if not isinstance(page, IndexPage):
            return _refused(page)
        end = min(end, page.readable_end)
        page_end = min(page.next_lsn, end)
        wanted = [extent for extent in page.extents if extent.first < end]
        counts = yield from _level(
            log, epoch, (source, *others), me, at, page_end, wanted, page.trim_end
        )
        if not isinstance(counts, tuple):
            return counts
        copied, removed = copied + counts[0], removed + counts[1]
        at = max(page_end, page.trim_end)
    # Also a block across `end`: at the source a block ends there, so this one differs.
    above = yield from _own_extents(log, epoch, me, end, LSN_MAX)
    if not isinstance(above, list):
        return above
    done = yield from ask(me, Revise(log, epoch, Lsn(0), tuple(above)))
    if not isinstance(done, Revised):
        return _refused(done)
    yield from note("log.learned", log=log, copied=copied, removed=removed + len(above))
    return Learned(done.contiguous_end, copied, removed + len(above))


def differences(
    mine: Sequence[Extent], theirs: Sequence[Extent]
) -> tuple[list[Extent], list[Extent]]:
    """What to take out of mine and what to copy from theirs."""
    have, want = set(mine), set(theirs)
    return (
        [extent for extent in mine if extent not in want],
        [extent for extent in theirs if extent not in have],
    )


def _level(
    log: LogId,
    epoch: Epoch,
    sources: Sequence[NodeId],
    me: NodeId,
    first: Lsn,
    end: Lsn,
    theirs: Sequence[Extent],
    trim_end: Lsn,
) -> Procedure[tuple[int, int] | Message]:
    """Make [first, end) here what it is at the source."""
    mine = yield from _own_extents(log, epoch, me, first, end)
    if not isinstance(mine, list):
        return mine
    surplus, missing = differences(mine, theirs)
    surplus = [extent for extent in surplus if extent.last >= trim_end]
    revised = yield from ask(me, Revise(log, epoch, trim_end, tuple(surplus)))
    if not isinstance(revised, Revised):
        return _refused(revised)
    wanted = {extent.first for extent in missing}
    at = missing[0].first if missing else end
    while wanted:
        answer = yield from ask(sources[0], Fetch(log, epoch, at, end, FETCH_BYTES_MAX))
        if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
            damaged = next(extent for extent in theirs if at <= extent.last)
            if damaged.first in wanted:
                lsn = max(damaged.first, trim_end)
                answer = yield from _fetch_elsewhere(log, epoch, sources[1:], lsn, answer)
            else:
                answer = Fetched((), Lsn(damaged.last + 1))
        if not isinstance(answer, Fetched):
            return _refused(answer)
        blocks = tuple(block for block in answer.blocks if block.first in wanted)
        wanted -= {block.first for block in answer.blocks}
        stored = yield from _store(log, epoch, me, blocks, trim_end)
        if stored is not None:
            return stored
        if answer.next_lsn <= at:
            return Refused(Refusal.UNAVAILABLE, epoch, f"the source lost blocks above {at}")
        at = answer.next_lsn
    return len(missing), len(surplus)


def _fetch_elsewhere(
    log: LogId, epoch: Epoch, others: Sequence[NodeId], lsn: Lsn, refused: Refused
) -> Procedure[Answer]:
    """The block is damaged at the source, so it is committed: any other member's copy will do."""
    for node in others:
        answer = yield from ask(node, Read(log, epoch, lsn))
        if isinstance(answer, Found):
            return Fetched((answer.block,), answer.block.end)
    return refused


def _store(
    log: LogId, epoch: Epoch, me: NodeId, blocks: tuple[Block, ...], trim_end: Lsn
) -> Procedure[Message | None]:
    answer = yield from ask(me, Revise(log, epoch, trim_end, (), blocks))
    return None if isinstance(answer, Revised) else _refused(answer)


def _own_extents(
    log: LogId, epoch: Epoch, me: NodeId, first: Lsn, end: Lsn
) -> Procedure[list[Extent] | Message]:
    extents: list[Extent] = []
    while first < end:
        page = yield from ask(me, Index(log, epoch, first, end))
        if not isinstance(page, IndexPage):
            return _refused(page)
        extents += page.extents
        first = page.next_lsn
    return extents


def _refused(answer: Answer) -> Message:
    if isinstance(answer, Failure):
        return Refused(Refusal.UNAVAILABLE, detail=f"{answer.kind.value} {answer.detail}")
    if isinstance(answer, Refused):
        return answer
    return Refused(Refusal.BAD_REQUEST, detail=f"unexpected {type(answer).__name__}")
