"""Answers that are read from the store: the core has decided that they may be given."""

from collections.abc import Callable
from typing import assert_never

from millrace.core.effects import (
    AnswerBlock,
    AnswerCopies,
    AnswerDescribe,
    AnswerFetch,
    AnswerFind,
    AnswerIndex,
    AnswerInspection,
    AnswerPage,
    AnswerRuns,
    AnswerSequenced,
    AnswerStreamToken,
    AnswerToken,
    AnswerWeigh,
    AnswerWritten,
)
from millrace.core.messages import (
    CopiesPage,
    Described,
    Fetched,
    Found,
    IndexPage,
    Inspected,
    Message,
    Position,
    Refusal,
    Refused,
    RunsFound,
    SequencedDescribed,
    Standing,
    TokenFound,
    Weighed,
)
from millrace.errors import CorruptBlock
from millrace.limits import (
    INDEX_PAGE_EXTENTS,
    READ_BATCH_BYTES,
    RUNS_PAGE,
    TOKEN_JUNK_MAX,
    TOKEN_PAGES_MAX,
)
from millrace.lsn import epoch_of, first_of
from millrace.server import stream_answers
from millrace.store.contract import Store
from millrace.types import FIRST_LSN, LSN_MAX, NO_LSN, Copy, EntryKind, Epoch, LogId, Lsn

StoreAnswer = (
    AnswerBlock
    | AnswerWritten
    | AnswerIndex
    | AnswerCopies
    | AnswerInspection
    | AnswerSequenced
    | AnswerToken
    | AnswerFetch
    | AnswerFind
    | AnswerWeigh
    | AnswerRuns
    | AnswerDescribe
    | AnswerPage
    | AnswerStreamToken
)
Answered = tuple[Message, Callable[[], None] | None]


def answer(store: Store, effect: StoreAnswer) -> Answered:
    """The message, and what to call once it has been sent."""
    try:
        match effect:
            case AnswerBlock():
                return _block(store, effect), None
            case AnswerWritten():
                return _written(store, effect)
            case AnswerIndex():
                return _index(store, effect), None
            case AnswerCopies():
                return _copies(store, effect), None
            case AnswerInspection():
                return _inspection(store, effect)
            case AnswerToken():
                return _token(store, effect), None
            case AnswerSequenced(_, log):
                return _sequenced(store, log), None
            case AnswerFetch():
                return _fetch(store, effect)
            case AnswerFind():
                return _find(store, effect), None
            case AnswerWeigh(_, log, first, end, pieces):
                return Weighed(tuple(store.weigh(log, first, end, pieces))), None
            case AnswerRuns():
                return _runs(store, effect), None
            case AnswerDescribe():
                return _describe(store, effect), None
            case AnswerPage():
                return stream_answers.page(store, effect)
            case AnswerStreamToken():
                return stream_answers.token(store, effect), None
            case _:
                assert_never(effect)
    except CorruptBlock as error:
        return Refused(Refusal.CORRUPT, detail=str(error)), None


def _block(store: Store, effect: AnswerBlock) -> Message:
    block = store.block_at(effect.log, effect.lsn)
    if block is None:
        return Refused(Refusal.UNWRITTEN, effect.epoch)
    return Found(block)


def _written(store: Store, effect: AnswerWritten) -> Answered:
    scan = store.scan(effect.log, effect.first, effect.end, READ_BATCH_BYTES)
    blocks = tuple(scan.blocks)
    if not blocks:
        # Trimmed between the decision and the look: the positions are taken all the same.
        scan.release()
        return Refused(Refusal.TRIMMED, effect.epoch), None
    return Refused(Refusal.WRITTEN, effect.epoch, blocks=blocks), scan.release


def _index(store: Store, effect: AnswerIndex) -> Message:
    extents = store.index(effect.log, effect.first, effect.end, INDEX_PAGE_EXTENTS)
    is_full_page = len(extents) == INDEX_PAGE_EXTENTS
    next_lsn = Lsn(extents[-1].last + 1) if is_full_page else effect.end
    return IndexPage(tuple(extents), next_lsn, effect.trim_end, effect.readable_end)


def _copies(store: Store, effect: AnswerCopies) -> Message:
    copies = store.copies(effect.log, effect.first, effect.end, INDEX_PAGE_EXTENTS)
    is_full_page = len(copies) == INDEX_PAGE_EXTENTS
    next_lsn = Lsn(copies[-1].extent.last + 1) if is_full_page else effect.end
    return CopiesPage(tuple(copies), next_lsn, effect.trim_end)


def _inspection(store: Store, effect: AnswerInspection) -> Answered:
    """A page ends before a damaged block, which is a page of its own."""
    log, first, end = effect.log, effect.first, effect.end
    state = store.state(log)
    trim_end = FIRST_LSN if state is None else state.trim_end
    seen: list[Copy] = []

    def choose(copy: Copy) -> bool:
        seen.append(copy)
        return True

    try:
        shipment = store.ship(log, first, end, min(effect.bytes_max, READ_BATCH_BYTES), choose)
    except CorruptBlock as damage:
        damaged = seen[-1]
        next_lsn = Lsn(min(damaged.extent.last + 1, end))
        return Inspected((damaged,), (), next_lsn, trim_end, str(damage)), None
    blocks = tuple(shipment.blocks)
    page = Inspected(tuple(seen[: len(blocks)]), blocks, shipment.next_lsn, trim_end)
    return page, shipment.release


def _token(store: Store, effect: AnswerToken) -> Message:
    """A bounded search: what was appended lately lies in few entries."""
    first, junk = effect.first, list[Copy]()
    is_whole = effect.otherwise is None
    for _ in range(TOKEN_PAGES_MAX):
        page = store.copies(effect.log, first, effect.end, INDEX_PAGE_EXTENTS)
        for copy in page:
            if copy.extent.token == effect.token:
                return TokenFound(copy, tuple(junk), is_whole)
            if copy.extent.kind is not EntryKind.DATA:
                junk.append(copy)
        if len(junk) > TOKEN_JUNK_MAX:
            break
        if len(page) < INDEX_PAGE_EXTENTS:
            if effect.otherwise is not None:
                return Refused(effect.otherwise, detail="a part of the range is not here any more")
            return TokenFound(None, tuple(junk))
        first = Lsn(page[-1].extent.last + 1)
    detail = f"more than {TOKEN_PAGES_MAX * INDEX_PAGE_EXTENTS} blocks to look at"
    return Refused(Refusal.BUSY, detail=detail)


def _sequenced(store: Store, log: LogId) -> Message:
    state = store.state(log)
    if state is None:
        return SequencedDescribed(Epoch(0), Standing.BLANK, FIRST_LSN, NO_LSN, FIRST_LSN, 0, 0)
    return SequencedDescribed(
        state.fence.epoch,
        state.fence.standing,
        state.trim_end,
        state.marks.released,
        state.end,
        state.blocks,
        state.bytes,
    )


def _fetch(store: Store, effect: AnswerFetch) -> Answered:
    if effect.first >= effect.end:
        return Fetched((), effect.end), None
    scan = store.scan(effect.log, effect.first, effect.end, min(effect.bytes_max, READ_BATCH_BYTES))
    blocks = tuple(scan.blocks)
    next_lsn = blocks[-1].end if blocks else effect.end
    return Fetched(blocks, next_lsn), scan.release


def _find(store: Store, effect: AnswerFind) -> Message:
    if effect.timestamp_us is not None:
        lsn = store.find_time(effect.log, effect.timestamp_us)
        state = store.state(effect.log)
        # A node that holds a part of a log, or nothing, cannot tell where the log ends.
        is_nowhere = state is None or (state.is_scattered and lsn >= state.end)
        return Position(LSN_MAX if is_nowhere else lsn)
    assert effect.bytes_kept is not None
    return Position(store.find_size(effect.log, effect.bytes_kept))


def _runs(store: Store, effect: AnswerRuns) -> Message:
    runs = store.runs(effect.log, effect.first, effect.end, RUNS_PAGE)
    if len(runs) < RUNS_PAGE:
        return RunsFound(tuple(runs))
    return RunsFound(tuple(runs), first_of(Epoch(epoch_of(runs[-1].first) + 1)))


def _describe(store: Store, effect: AnswerDescribe) -> Message:
    state = store.state(effect.log)
    if state is None:
        nothing = (FIRST_LSN, FIRST_LSN, FIRST_LSN, FIRST_LSN, 0, 0)
        return Described(Epoch(0), Standing.BLANK, *nothing)
    return Described(
        state.fence.epoch,
        state.fence.standing,
        state.trim_end,
        state.contiguous_end,
        effect.readable_end,
        state.end,
        state.blocks,
        state.bytes,
    )
