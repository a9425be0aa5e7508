"""Answers about streams of commit logs that are read from the store."""

from collections.abc import Callable, Sequence

from millrace.core.commit.record import StreamCommit
from millrace.core.effects import AnswerPage, AnswerStreamToken
from millrace.core.messages import Message, Refusal, Refused, StreamPage, StreamTokenFound
from millrace.limits import INDEX_PAGE_EXTENTS, READ_BATCH_BYTES, TOKEN_PAGES_MAX
from millrace.store.contract import Store
from millrace.types import FIRST_LSN, NO_LSN, Block, LogId, Lsn


def page(store: Store, effect: AnswerPage) -> tuple[Message, Callable[[], None] | None]:
    """Blocks with their places in the log, and what to call once they have been sent."""
    state = store.state(effect.log)
    low = FIRST_LSN if state is None else state.trim_end
    first = max(effect.first, low)
    if first >= effect.end:
        return StreamPage(low, effect.high, (), ()), None
    scan = store.scan(effect.log, first, effect.end, min(effect.bytes_max, READ_BATCH_BYTES))
    blocks = tuple(scan.blocks)
    runs = _runs_of(store, effect.log, blocks, low)
    placed = blocks[: len(runs)]
    firsts = tuple(
        Lsn(run.first + block.first - run.local) for block, run in zip(placed, runs, strict=True)
    )
    versions = tuple(run.version for run in runs)
    return StreamPage(low, effect.high, placed, firsts, versions), scan.release


def _runs_of(store: Store, log: LogId, blocks: Sequence[Block], low: Lsn) -> list[StreamCommit]:
    """The run that each block lies in, up to the first that lies in none."""
    runs: list[StreamCommit] = []
    for block in blocks:
        local = max(block.first, low)
        if not runs or local >= runs[-1].local_end:
            place = store.locate(log, local)
            found = [] if place is None else store.commit_runs(log, place, Lsn(place + 1), 1)
            if not found:
                break
            runs.append(found[0])
        else:
            runs.append(runs[-1])
    return runs


def token(store: Store, effect: AnswerStreamToken) -> Message:
    """A bounded search: what was appended lately lies in few entries."""
    state = store.state(effect.log)
    if state is not None and state.trim_end > effect.first:
        detail = f"what lies below {state.trim_end} was trimmed"
        return Refused(Refusal.TRIMMED, detail=detail)
    first = effect.first
    for _ in range(TOKEN_PAGES_MAX):
        extents = store.index(effect.log, first, effect.end, INDEX_PAGE_EXTENTS)
        for extent in extents:
            if extent.token == effect.token:
                place = store.locate(effect.log, extent.first) or NO_LSN
                count = extent.last - extent.first + 1
                return StreamTokenFound(extent.first, count, place, effect.end)
        if len(extents) < INDEX_PAGE_EXTENTS:
            return StreamTokenFound(NO_LSN, 0, NO_LSN, effect.end)
        first = Lsn(extents[-1].last + 1)
    detail = f"more than {TOKEN_PAGES_MAX * INDEX_PAGE_EXTENTS} blocks to look at"
    return Refused(Refusal.BUSY, detail=detail)
