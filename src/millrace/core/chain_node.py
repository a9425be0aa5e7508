"""One node's part in one chain log (seed 002, storage node).

I1  Write-once: a position that holds a block never takes another (C8: whole ranges only).
I2  Nothing is accepted in an epoch other than the fence's; the fence only grows and is durable
    before a seal is answered (C3, G7).
I3  An acknowledgement, and a refusal that says "written", leave only when what they speak of
    is safe.
I4  Readers see only what is safe: [trim_end, readable_end).
I5  A node that may have lost data speaks for the log only to the one who sealed it since.
"""

from millrace.core.effects import (
    AnswerBlock,
    AnswerDescribe,
    AnswerFetch,
    AnswerFind,
    AnswerIndex,
    AnswerWeigh,
    AnswerWritten,
    NodeEffect,
    RemoveBlocks,
    Reply,
    SetFence,
    Settle,
    StoreBlock,
    Ticket,
    TrimLog,
)
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import (
    Admit,
    Admitted,
    BeginLearn,
    Describe,
    Fetch,
    Fill,
    Filled,
    FindSize,
    FindTime,
    Index,
    Message,
    Read,
    Refusal,
    Refused,
    Revise,
    Revised,
    Seal,
    Sealed,
    Standing,
    Trim,
    Trimmed,
    Weigh,
    Write,
    Written,
)
from millrace.core.ranges import TakenRanges
from millrace.limits import SPARSE_EXTENTS_MAX, WEIGH_PIECES_MAX
from millrace.types import (
    FIRST_LSN,
    NO_TOKEN,
    Ack,
    Block,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    Placement,
)

ChainRequest = (
    Write
    | Read
    | Fill
    | Trim
    | Seal
    | Admit
    | Index
    | Fetch
    | FindTime
    | FindSize
    | Weigh
    | Describe
    | BeginLearn
    | Revise
)

_WRITTEN = Written()
_FILLED = Filled()


class ChainNode:
    def __init__(self, log: LogId, state: LogState | None) -> None:
        self.log = log
        self.fence = Fence(Epoch(0), NO_TOKEN, Standing.BLANK)
        self.taken = TakenRanges(FIRST_LSN, FIRST_LSN)
        self.refuse_writes: Refusal | None = None  # Set by the host: disk full or busy.
        self._resealed = False  # Sealed since this process opened the log (I5).
        self._settles = 0
        self._unsafe: dict[int, tuple[Lsn, Lsn]] = {}  # Settle number -> range not yet safe.
        if state is not None:
            self.reload(state)

    def reload(self, state: LogState) -> None:
        """Begin from what the store holds: at start, and after it failed to keep blocks."""
        if state.fence.standing is Standing.DIRTY:
            self._resealed = False  # Keeps I5, also when it happens while the process runs.
        self.fence = state.fence
        self.taken = TakenRanges(state.trim_end, state.contiguous_end)
        for extent in state.sparse:
            self.taken.take(extent.first, Lsn(extent.last + 1))

    def lose(self) -> None:
        """The store has nothing of the log any more.  Keeps I5."""
        self.fence = Fence(self.fence.epoch, self.fence.proposer, Standing.DIRTY)
        self._resealed = False
        self.taken = TakenRanges(FIRST_LSN, FIRST_LSN)

    @property
    def trim_end(self) -> Lsn:
        return self.taken.trim_end

    @property
    def readable_end(self) -> Lsn:
        end = self.taken.contiguous_end
        for first, _ in self._unsafe.values():
            if first < end:
                end = first
        return max(end, self.taken.trim_end)

    def step(self, ticket: Ticket, request: ChainRequest) -> list[NodeEffect]:
        match request:
            case Write():
                return self._accept(
                    ticket, request.epoch, request.block, request.copyset, request.ack, _WRITTEN
                )
            case Describe():
                return [AnswerDescribe(ticket, self.log, self.fence.epoch, self.readable_end)]
            case Seal():
                return self._seal(ticket, request)
            case BeginLearn():
                return self._begin_learn(ticket, request)
            case _:
                refusal = self.refuse(request.epoch)
                return (
                    self._step_fenced(ticket, request)
                    if refusal is None
                    else [Reply(ticket, refusal)]
                )

    def _step_fenced(
        self,
        ticket: Ticket,
        request: Read | Fill | Trim | Admit | Index | Fetch | FindTime | FindSize | Weigh | Revise,
    ) -> list[NodeEffect]:
        match request:
            case Read():
                return self._read(ticket, request.lsn)
            case Fill():
                return self._fill(ticket, request)
            case Trim():
                return self._trim(ticket, request.end)
            case Admit():
                return self._admit(ticket)
            case Index():
                return [
                    AnswerIndex(
                        ticket,
                        self.log,
                        max(request.first, self.taken.trim_end),
                        request.end,
                        self.taken.trim_end,
                        self.readable_end,
                    )
                ]
            case Fetch():
                return [
                    AnswerFetch(
                        ticket,
                        self.log,
                        self.fence.epoch,
                        max(request.first, self.taken.trim_end),
                        request.end,
                        request.bytes_max,
                    )
                ]
            case FindTime():
                return [AnswerFind(ticket, self.log, request.timestamp_us, None)]
            case FindSize():
                return [AnswerFind(ticket, self.log, None, request.bytes_kept)]
            case Weigh():
                return self._weigh(ticket, request)
            case Revise():
                return self._revise(ticket, request)

    def settled(self, number: int, answer: Message) -> Message:
        """What settle `number` covered is safe now; the answer as it stands by now.

        Blocks that were on their way to the disk at a seal may have failed since: the seal must
        not speak of them, or the reconciliation would not look for them."""
        self._unsafe.pop(number, None)
        return self._sealed(answer.epoch_before) if isinstance(answer, Sealed) else answer

    # -- Writing ------------------------------------------------------------------------------

    def _accept(
        self,
        ticket: Ticket,
        epoch: Epoch,
        block: Block,
        copyset: tuple[NodeId, ...],
        ack: Ack,
        answer: Message,
    ) -> list[NodeEffect]:
        refusal = self.refuse(epoch)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        taken = self.taken
        if block.log != self.log or block.first < FIRST_LSN:
            return [Reply(ticket, self._bad(f"{block!r} does not belong here"))]
        if block.end <= taken.trim_end:
            return [Reply(ticket, Refused(Refusal.TRIMMED, epoch, f"below {taken.trim_end}"))]
        # A block across the trim point is taken for its upper part: the rest of it is still read.
        first = max(block.first, taken.trim_end)
        if taken.overlaps(first, block.end):
            return self._refuse_written(ticket, first, block.end)
        if self.refuse_writes is not None and not self._fits_all_the_same(block):
            return [Reply(ticket, Refused(self.refuse_writes, epoch))]
        if len(taken.islands) >= SPARSE_EXTENTS_MAX:
            return [Reply(ticket, Refused(Refusal.BUSY, epoch, "too many holes below this block"))]
        taken.take(first, block.end)
        settle = self._settle(ticket, ack, answer)
        self._unsafe[settle.number] = (first, block.end)
        return [StoreBlock(block, Placement(copyset), ack), settle]

    def _fits_all_the_same(self, block: Block) -> bool:
        """Junk is small and has a place set aside: a full log can still be read to its end, past
        the positions of the writers that were refused."""
        return self.refuse_writes is Refusal.DISK_FULL and block.kind is not EntryKind.DATA

    def _refuse_written(self, ticket: Ticket, first: Lsn, end: Lsn) -> list[NodeEffect]:
        if any(low < end and first < high for low, high in self._unsafe.values()):
            # Keeps I3: "written" would be taken for an acknowledgement by the block's writer.
            busy = Refused(Refusal.BUSY, self.fence.epoch, "the same block is being written")
            return [Reply(ticket, busy)]
        return [AnswerWritten(ticket, self.log, self.fence.epoch, first, end)]

    def _fill(self, ticket: Ticket, request: Fill) -> list[NodeEffect]:
        if request.block.kind is EntryKind.DATA:
            return [Reply(ticket, self._bad("a fill carries no data"))]
        return self._accept(
            ticket, request.epoch, request.block, request.copyset, Ack.DISK, _FILLED
        )

    # -- Reading ------------------------------------------------------------------------------

    def _read(self, ticket: Ticket, lsn: Lsn) -> list[NodeEffect]:
        if lsn < self.taken.trim_end:
            return [Reply(ticket, Refused(Refusal.TRIMMED, self.fence.epoch))]
        is_unsafe = any(first <= lsn < end for first, end in self._unsafe.values())
        if is_unsafe or not self.taken.holds(lsn):
            return [Reply(ticket, Refused(Refusal.UNWRITTEN, self.fence.epoch))]
        return [AnswerBlock(ticket, self.log, self.fence.epoch, lsn)]

    def _weigh(self, ticket: Ticket, request: Weigh) -> list[NodeEffect]:
        if not 1 <= request.pieces <= WEIGH_PIECES_MAX:
            detail = f"a range is weighed in 1 to {WEIGH_PIECES_MAX} pieces, not {request.pieces}"
            return [Reply(ticket, self._bad(detail))]
        first = max(request.first, self.taken.trim_end)
        end = min(request.end, self.readable_end)
        return [AnswerWeigh(ticket, self.log, first, end, request.pieces)]

    # -- Epochs -------------------------------------------------------------------------------

    def _seal(self, ticket: Ticket, request: Seal) -> list[NodeEffect]:
        before = self.fence.epoch
        is_again = request.epoch == before and request.proposer == self.fence.proposer
        if request.epoch <= before and not (is_again and self._resealed):
            return [Reply(ticket, Refused(Refusal.EPOCH, before, "sealed already"))]
        effects: list[NodeEffect] = []
        if not is_again:
            self.fence = Fence(request.epoch, request.proposer, self.fence.standing)
            effects.append(SetFence(self.log, self.fence))
        self._resealed = True
        return [*effects, self._settle(ticket, Ack.DISK, self._sealed(before))]

    def _sealed(self, before: Epoch) -> Sealed:
        return Sealed(
            before,
            self.fence.standing,
            self.taken.trim_end,
            self.taken.contiguous_end,
            self.taken.end,
        )

    def _admit(self, ticket: Ticket) -> list[NodeEffect]:
        self.fence = Fence(self.fence.epoch, self.fence.proposer, Standing.MEMBER)
        return [SetFence(self.log, self.fence), self._settle(ticket, Ack.DISK, Admitted())]

    def _trim(self, ticket: Ticket, end: Lsn) -> list[NodeEffect]:
        if end > self.taken.end:
            detail = f"cannot trim up to {end}: the log ends at {self.taken.end}"
            return [Reply(ticket, Refused(Refusal.UNWRITTEN, self.fence.epoch, detail))]
        if end <= self.taken.trim_end:
            return [Reply(ticket, Trimmed(self.taken.trim_end))]
        self.taken.trim(end)
        return [TrimLog(self.log, end), self._settle(ticket, Ack.DISK, Trimmed(end))]

    # -- Learning -----------------------------------------------------------------------------

    def _begin_learn(self, ticket: Ticket, request: BeginLearn) -> list[NodeEffect]:
        # A member of this very epoch may be told to learn: it was sealed into it by somebody who
        # then lost to another proposer of the same epoch, whose chain does without it.
        if request.epoch < self.fence.epoch:
            return [Reply(ticket, Refused(Refusal.EPOCH, self.fence.epoch))]
        self.fence = Fence(request.epoch, NO_TOKEN, Standing.BLANK)
        self._resealed = True
        revised = Revised(self.taken.contiguous_end)
        return [SetFence(self.log, self.fence), self._settle(ticket, Ack.DISK, revised)]

    def _revise(self, ticket: Ticket, request: Revise) -> list[NodeEffect]:
        if self.fence.standing is Standing.MEMBER:
            return [Reply(ticket, self._bad("a member does not learn"))]
        if request.blocks and self.refuse_writes is not None:
            return [Reply(ticket, Refused(self.refuse_writes, self.fence.epoch))]
        taken = self.taken.copy()
        effects: list[NodeEffect] = []
        for extent in request.remove:
            if not taken.covers(extent.first, Lsn(extent.last + 1)):
                return [Reply(ticket, self._changed_meanwhile())]
            taken.release(extent.first, Lsn(extent.last + 1))
        if request.remove:
            firsts = tuple(extent.first for extent in request.remove)
            effects.append(RemoveBlocks(self.log, firsts))
        if request.trim_end > taken.trim_end:
            taken.trim(request.trim_end)
            effects.append(TrimLog(self.log, request.trim_end))
        placement = Placement(request.copyset)
        for block in request.blocks:
            first = max(block.first, taken.trim_end)
            if block.end <= first:
                continue
            if taken.overlaps(first, block.end):
                return [Reply(ticket, self._changed_meanwhile())]
            taken.take(first, block.end)
            effects.append(StoreBlock(block, placement, Ack.DISK))
        self.taken = taken
        return [*effects, self._settle(ticket, Ack.DISK, Revised(taken.contiguous_end))]

    def _changed_meanwhile(self) -> Refused:
        """Two learn at once, because the first was given up for dead: the later one begins
        again."""
        return Refused(Refusal.BUSY, self.fence.epoch, "the log changed while it was learned")

    # -- Shared -------------------------------------------------------------------------------

    def refuse(self, epoch: Epoch) -> Refused | None:
        if epoch != self.fence.epoch:
            return Refused(Refusal.EPOCH, self.fence.epoch)
        if self.fence.standing is not Standing.MEMBER and not self._resealed:
            return Refused(Refusal.INCOMPLETE, self.fence.epoch, self.fence.standing.value)
        return None

    def _bad(self, detail: str) -> Refused:
        return Refused(Refusal.BAD_REQUEST, self.fence.epoch, detail)

    def _settle(self, ticket: Ticket, ack: Ack, answer: Message) -> Settle:
        self._settles += 1
        return Settle(self.log, self._settles, ack, ticket, answer)
