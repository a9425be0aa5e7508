"""Answers that are read from the store: the core has decided that they may be given."""

from collections.abc import Callable
from typing import assert_never

from millrace.core.effects import (
    AnswerBlock,
    AnswerDescribe,
    AnswerFetch,
    AnswerFind,
    AnswerIndex,
    AnswerWeigh,
    AnswerWritten,
)
from millrace.core.messages import (
    Described,
    Fetched,
    Found,
    IndexPage,
    Message,
    Position,
    Refusal,
    Refused,
    Standing,
    Weighed,
)
from millrace.errors import CorruptBlock
from millrace.limits import INDEX_PAGE_EXTENTS, READ_BATCH_BYTES
from millrace.store.contract import Store
from millrace.types import FIRST_LSN, Epoch, Lsn

StoreAnswer = (
    AnswerBlock
    | AnswerWritten
    | AnswerIndex
    | AnswerFetch
    | AnswerFind
    | AnswerWeigh
    | AnswerDescribe
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
            case AnswerFetch():
                return _fetch(store, effect)
            case AnswerFind():
                return _find(store, effect), None
            case AnswerWeigh(_, log, first, end, pieces):
                return Weighed(tuple(store.weigh(log, first, end, pieces))), None
            case AnswerDescribe():
                return _describe(store, effect), None
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


def _fetch(store: Store, effect: AnswerFetch) -> Answered:
    if effect.first >= effect.end:
        return Fetched((), effect.end), None
    scan = store.scan(effect.log, effect.first, effect.end, min(effect.bytes_max, READ_BATCH_BYTES))
    blocks = tuple(scan.blocks)
    next_lsn = blocks[-1].end if blocks else effect.end
    return Fetched(blocks, next_lsn), scan.release


def _find(store: Store, effect: AnswerFind) -> Message:
    if effect.timestamp_us is not None:
        return Position(store.find_time(effect.log, effect.timestamp_us))
    assert effect.bytes_kept is not None
    return Position(store.find_size(effect.log, effect.bytes_kept))


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
