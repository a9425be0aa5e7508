"""Making the members of a new chain equal before it opens.

Between the lowest first hole and the highest block of the sealed nodes, some nodes hold blocks
that others lack: appends that were on their way down.  Each is completed from the node nearest to
the head, whose copy is the truth.  Positions that no member holds are left to their writer, who
goes on with the same position, or to readers' hole filling; after a lossy recovery they are
marked lost.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from millrace.core.messages import (
    Fill,
    Filled,
    Found,
    Index,
    IndexPage,
    Read,
    Refusal,
    Refused,
    Sealed,
    Trim,
    Trimmed,
    Write,
    Written,
)
from millrace.core.procedure import Answer, Ask, Failure, Procedure, ask, ask_all, note
from millrace.core.repair import MakeJunk
from millrace.types import Ack, EntryKind, Epoch, Extent, LogId, Lsn, NodeId

PARALLEL_BLOCKS = 4  # Blocks held in memory at once while they are passed on.


class Trouble(msgspec.Struct, frozen=True):
    epoch: Epoch
    detail: str
    broken: tuple[NodeId, ...] = ()  # Members whose copy of something is the only one, damaged.


def reconcile(
    log: LogId,
    epoch: Epoch,
    chain: Sequence[NodeId],
    sealed: dict[NodeId, Sealed],
    is_lossy: bool,
    make_junk: MakeJunk,
) -> Procedure[Trouble | None]:
    answers = [sealed[node] for node in chain]
    trim_end = max(answer.trim_end for answer in answers)
    low = Lsn(max(trim_end, min(answer.contiguous_end for answer in answers)))
    high = max(answer.end for answer in answers)
    held: dict[NodeId, list[Extent]] = {}
    if low < high:
        for node in chain:
            extents = yield from _extents(log, epoch, node, low, high)
            if isinstance(extents, Trouble):
                return extents
            held[node] = extents
    truth = merge(held, chain)
    if isinstance(truth, Extent):
        yield from note("chain.diverged", log=log, first=truth.first)
        return Trouble(epoch, f"members hold different blocks at {truth.first}")
    trouble = yield from _pass_on(log, epoch, tuple(chain), low, held, truth)
    if trouble is None and is_lossy:
        lost = holes(low, high, [extent for extent, _ in truth])
        trouble = yield from mark_lost(log, epoch, tuple(chain), lost, make_junk)
    if trouble is None:
        trouble = yield from _trim(log, epoch, tuple(chain), sealed, trim_end, make_junk)
    return trouble


def merge(
    held: dict[NodeId, list[Extent]], chain: Sequence[NodeId]
) -> list[tuple[Extent, NodeId]] | Extent:
    """All extents with their holder nearest to the head, in order; or one that contradicts
    another."""
    truth: dict[Lsn, tuple[Extent, NodeId]] = {}
    for node in chain:
        for extent in held.get(node, ()):
            known = truth.setdefault(extent.first, (extent, node))
            if known[0] != extent:
                return extent
    merged = [truth[first] for first in sorted(truth)]
    for (before, _), (after, _) in pairwise(merged):
        if after.first <= before.last:
            return after
    return merged


def holes(low: Lsn, high: Lsn, extents: Sequence[Extent]) -> list[tuple[Lsn, Lsn]]:
    """The (first, end) ranges of [low, high) that no extent covers."""
    found = []
    at = low
    for extent in extents:
        if extent.first > at:
            found.append((at, extent.first))
        at = Lsn(max(at, extent.last + 1))
    if at < high:
        found.append((at, high))
    return found


def _extents(
    log: LogId, epoch: Epoch, node: NodeId, low: Lsn, high: Lsn
) -> Procedure[list[Extent] | Trouble]:
    extents: list[Extent] = []
    at = low
    while at < high:
        page = yield from ask(node, Index(log, epoch, at, high))
        if not isinstance(page, IndexPage):
            return _trouble(epoch, node, page)
        extents += page.extents
        assert page.next_lsn > at, "an index page must make progress"
        at = page.next_lsn
    return extents


def _pass_on(
    log: LogId,
    epoch: Epoch,
    chain: tuple[NodeId, ...],
    low: Lsn,
    held: dict[NodeId, list[Extent]],
    truth: list[tuple[Extent, NodeId]],
) -> Procedure[Trouble | None]:
    has = {node: {extent.first for extent in extents} for node, extents in held.items()}
    lacking = [
        (extent, holder, [node for node in chain if extent.first not in has[node]])
        for extent, holder in truth
    ]
    lacking = [item for item in lacking if item[2]]
    for at in range(0, len(lacking), PARALLEL_BLOCKS):
        some = lacking[at : at + PARALLEL_BLOCKS]
        # Not below `low`: the beginning of a block across the trim point is not readable.
        reads = [
            Ask(holder, Read(log, epoch, max(extent.first, low))) for extent, holder, _ in some
        ]
        found = yield from ask_all(reads)
        writes: list[Ask] = []
        for request, (extent, holder, targets), answer in zip(reads, some, found, strict=True):
            if isinstance(answer, Refused) and answer.reason is Refusal.CORRUPT:
                holders = [node for node in chain if node != holder and extent.first in has[node]]
                answer = yield from _read_elsewhere(request, holders, answer)
                if not isinstance(answer, Found):
                    return Trouble(epoch, f"node {holder}: {extent.first} is damaged", (holder,))
            if not isinstance(answer, Found):
                return _trouble(epoch, holder, answer)
            write = Write(log, epoch, answer.block, chain, Ack.DISK)
            writes += [Ask(node, write) for node in targets]
        trouble = yield from _all_ok(epoch, writes)
        if trouble is not None:
            return trouble
    if lacking:
        yield from note("chain.reconciled", log=log, epoch=epoch, blocks=len(lacking))
    return None


def _read_elsewhere(request: Ask, holders: Sequence[NodeId], refused: Answer) -> Procedure[Answer]:
    """The copy is damaged: another member's is the same, byte for byte."""
    for node in holders:
        answer = yield from ask(node, request.message)
        if isinstance(answer, Found):
            return answer
    return refused


def mark_lost(
    log: LogId,
    epoch: Epoch,
    chain: tuple[NodeId, ...],
    lost: Sequence[tuple[Lsn, Lsn]],
    make_junk: MakeJunk,
) -> Procedure[Trouble | None]:
    """Say on every member that an acknowledged record may have been at these (first, end)."""
    for first, end in lost:
        junk = make_junk(log, first, end - first, EntryKind.LOSS)
        fill = Fill(log, epoch, junk, chain)
        trouble = yield from _all_ok(epoch, [Ask(node, fill) for node in chain])
        if trouble is not None:
            return trouble
    if lost:
        yield from note("chain.lost", log=log, epoch=epoch, ranges=lost)
    return None


def _trim(
    log: LogId,
    epoch: Epoch,
    chain: tuple[NodeId, ...],
    sealed: dict[NodeId, Sealed],
    end: Lsn,
    make_junk: MakeJunk,
) -> Procedure[Trouble | None]:
    """A node trims only what it holds.  One that lost blocks which the others have trimmed is
    given junk up to the trim point, to be trimmed at once."""
    high = max(sealed[node].end for node in chain)
    short = [node for node in chain if sealed[node].end < end and end >= high]
    if short:
        fill = Fill(log, epoch, make_junk(log, Lsn(end - 1), 1, EntryKind.LOSS), chain)
        trouble = yield from _all_ok(epoch, [Ask(node, fill) for node in short])
        if trouble is not None:
            return trouble
    behind = [node for node in chain if sealed[node].trim_end < end]
    return (yield from _all_ok(epoch, [Ask(node, Trim(log, epoch, end)) for node in behind]))


def _all_ok(epoch: Epoch, asks: list[Ask]) -> Procedure[Trouble | None]:
    answers = yield from ask_all(asks)
    for request, answer in zip(asks, answers, strict=True):
        is_there = isinstance(answer, Refused) and answer.reason is Refusal.WRITTEN
        if not isinstance(answer, Written | Filled | Trimmed) and not is_there:
            return _trouble(epoch, request.node, answer)
    return None


def _trouble(epoch: Epoch, node: NodeId, answer: Answer) -> Trouble:
    if isinstance(answer, Failure):
        return Trouble(epoch, f"node {node}: {answer.kind.value} {answer.detail}")
    if isinstance(answer, Refused):
        return Trouble(
            max(epoch, answer.epoch), f"node {node}: {answer.reason.value} {answer.detail}"
        )
    return Trouble(epoch, f"node {node} answered {type(answer).__name__}")
