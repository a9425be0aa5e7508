"""What a reader does at a position that the tail does not hold (C1, seed 002's TBD closed).

Peek first: a position nobody was given is never filled.  Then the head is probed: a block there
is a partial write, which is completed down the chain without waiting.  Only an empty head is
waited for and then filled, from the head down, so that the head decides between a late writer
and the filler (write-once).  Two repairers, or a repairer and the writer, push the same bytes.
"""

from collections.abc import Callable
from enum import Enum

import msgspec

from millrace.core.messages import (
    Describe,
    Described,
    Fill,
    Filled,
    Found,
    Index,
    IndexPage,
    Peek,
    Peeked,
    Read,
    Refusal,
    Refused,
    Write,
    Written,
)
from millrace.core.procedure import Answer, Failure, Pause, Procedure, ask, note
from millrace.core.projection import Projection, ReconfigureReason
from millrace.limits import BLOCK_RECORDS_MAX
from millrace.types import Ack, Block, EntryKind, Epoch, LogId, Lsn, NodeId

MakeJunk = Callable[[LogId, Lsn, int, EntryKind], Block]
ROUNDS_MAX = 8


class FillPolicy(msgspec.Struct, frozen=True):
    """How long a reader waits for a writer before it fills: None is never, 0 is at once."""

    wait_ms: int | None = 1_000


class Patience:
    """What a repairer has waited for already.  Positions up to `lsn` were issued before a wait
    that is over, so their writers have had their time: of many holes only the first is waited
    for."""

    __slots__ = ("lsn",)

    def __init__(self) -> None:
        self.lsn = Lsn(0)


class RepairResult(Enum):
    NOT_ISSUED = "not_issued"  # Nobody was given the position: wait for an append.
    COMPLETED = "completed"  # A partial write was completed.
    FILLED = "filled"
    WAITING = "waiting"  # The policy says not to fill.
    READABLE = "readable"  # It was written, or trimmed, meanwhile.


class ChainTrouble(msgspec.Struct, frozen=True):
    """The chain cannot be repaired as `projection` has it: it must change because of `cause`,
    or has changed if `epoch` is newer."""

    node: NodeId
    cause: ReconfigureReason | None
    epoch: Epoch = Epoch(0)
    detail: str = ""


def repair(
    projection: Projection,
    lsn: Lsn,
    policy: FillPolicy,
    make_junk: MakeJunk,
    patience: Patience | None = None,
) -> Procedure[RepairResult | ChainTrouble]:
    patience = patience or Patience()
    log, epoch = projection.log, projection.epoch
    has_waited = False
    for _ in range(ROUNDS_MAX):
        peeked = yield from ask(projection.sequencer, Peek(log, epoch, lsn))
        if not isinstance(peeked, Peeked):
            return _trouble(projection.sequencer, peeked)
        if lsn > peeked.last:
            return RepairResult.NOT_ISSUED
        probed = yield from ask(projection.head, Read(log, epoch, lsn))
        if isinstance(probed, Found):
            lacked = yield from complete(projection, probed.block)
            if isinstance(lacked, ChainTrouble):
                return lacked
            below = None if lacked else (yield from _hole_below(projection, lsn))
            if below is None:
                return RepairResult.COMPLETED
            lsn = below
            continue
        if not isinstance(probed, Refused) or probed.reason not in (
            Refusal.UNWRITTEN,
            Refusal.TRIMMED,
        ):
            return _trouble(projection.head, probed)
        if probed.reason is Refusal.TRIMMED:
            return RepairResult.READABLE
        if policy.wait_ms is None:
            return RepairResult.WAITING
        # A range that the sequencer does not remember was issued by one that is gone, or very long
        # ago: nobody is on the way there, so waiting would only hold up readers (I4 of append).
        is_forgotten = not peeked.range_first
        is_due = is_forgotten or has_waited or lsn <= patience.lsn
        if not is_due and policy.wait_ms > 0:
            yield Pause(policy.wait_ms)
            patience.lsn = max(patience.lsn, peeked.last)
            has_waited = True
            continue
        result = yield from _fill(projection, lsn, peeked, make_junk)
        if result is not None:
            return result
    return RepairResult.WAITING


def complete(projection: Projection, block: Block) -> Procedure[bool | ChainTrouble]:
    """Write the head's block to the rest of the chain; whoever has it already is fine.  Whether
    anybody lacked it."""
    has_lacked = False
    write = Write(projection.log, projection.epoch, block, projection.chain, Ack.DISK)
    for node in projection.chain[1:]:
        answer = yield from ask(node, write)
        if isinstance(answer, Written):
            has_lacked = True
            continue
        if not isinstance(answer, Refused):
            return _trouble(node, answer)
        if answer.reason is Refusal.WRITTEN:
            yield from _check_same(projection, node, block, answer)
        elif answer.reason is Refusal.TRIMMED:
            return True
        else:
            return _trouble(node, answer)
    return has_lacked


def _hole_below(projection: Projection, lsn: Lsn) -> Procedure[Lsn | None]:
    """A reader that begins above a hole is held up by it as well: the tail hands out nothing that
    lies behind one."""
    described = yield from ask(projection.tail, Describe(projection.log))
    if not isinstance(described, Described) or described.epoch != projection.epoch:
        return None
    return described.readable_end if described.readable_end < lsn else None


def _fill(
    projection: Projection, lsn: Lsn, peeked: Peeked, make_junk: MakeJunk
) -> Procedure[RepairResult | ChainTrouble | None]:
    """None: the head turned out to hold something; look again."""
    log, epoch = projection.log, projection.epoch
    first, last = peeked.range_first, peeked.range_last
    if not first:
        hole_last = yield from _hole_last(projection, lsn)
        if isinstance(hole_last, ChainTrouble):
            return hole_last
        first, last = lsn, hole_last
    junk = make_junk(log, first, last - first + 1, EntryKind.HOLE)
    answer = yield from ask(projection.head, Fill(log, epoch, junk, projection.chain))
    if isinstance(answer, Refused) and answer.reason in (Refusal.WRITTEN, Refusal.TRIMMED):
        if first == last or answer.reason is Refusal.TRIMMED:
            return None
        # Part of the issued range is taken, so it was issued again: fill the one position.
        first = last = lsn
        junk = make_junk(log, lsn, 1, EntryKind.HOLE)
        answer = yield from ask(projection.head, Fill(log, epoch, junk, projection.chain))
        if isinstance(answer, Refused) and answer.reason in (Refusal.WRITTEN, Refusal.TRIMMED):
            return None
    if not isinstance(answer, Filled):
        return _trouble(projection.head, answer)
    yield from note("hole.filled", log=log, first=first, last=last)
    lacked = yield from complete(projection, junk)
    return lacked if isinstance(lacked, ChainTrouble) else RepairResult.FILLED


def _hole_last(projection: Projection, lsn: Lsn) -> Procedure[Lsn | ChainTrouble]:
    """Where the hole at `lsn` ends at the head: a whole forgotten block is filled at once."""
    end = Lsn(lsn + BLOCK_RECORDS_MAX)
    page = yield from ask(projection.head, Index(projection.log, projection.epoch, lsn, end))
    if not isinstance(page, IndexPage):
        return _trouble(projection.head, page)
    above = [extent.first for extent in page.extents if extent.first > lsn]
    return Lsn(above[0] - 1) if above else lsn


def _check_same(
    projection: Projection, node: NodeId, block: Block, answer: Refused
) -> Procedure[None]:
    if [found.checksum for found in answer.blocks] != [block.checksum]:
        # Inside one epoch a node below the head can only hold what the head holds.
        yield from note("chain.diverged", log=projection.log, node=node, first=block.first)


_CAUSES = {
    Refusal.NOT_READY: ReconfigureReason.SEQUENCER_LOST,
    Refusal.INCOMPLETE: ReconfigureReason.INCOMPLETE,
    Refusal.DISK_FULL: ReconfigureReason.DISK_FULL,
    Refusal.UNAVAILABLE: ReconfigureReason.BROKEN,
}


def _trouble(node: NodeId, answer: Answer) -> ChainTrouble:
    if isinstance(answer, Failure):
        return ChainTrouble(node, ReconfigureReason.UNREACHABLE, detail=answer.detail)
    if isinstance(answer, Refused):
        return ChainTrouble(node, _CAUSES.get(answer.reason), answer.epoch, answer.detail)
    return ChainTrouble(node, None, detail=f"unexpected {type(answer).__name__}")
