"""A storage node's part in one sequenced log (seeds 000 and 003).

The node holds some of the log's blocks and knows nothing of the others.  It takes what sequencers
send it, remembers how far they said that readers may see, and refuses those that were replaced.

I1  Once sealed for an epoch, nothing of a sequencer of an earlier one is taken; the seal is durable
    before it is answered (G7).
I2  An acknowledgement leaves only when what it speaks of is safe.
I3  Readers see nothing above `released`, and `released` only goes up (G6).
I4  A block stands for its positions until one of a higher precedence overlaps it (the store's I5).
I5  A node that may have lost blocks says so with every claim.
I7  No copy is taken that names a node whose copies are being made elsewhere: such a node is not
    looked for later.  What donors send is good, and taken whatever the seal (rebuilding.py), but
    not by a node that is drained or emptied: not all donors may have heard of that yet, and it
    drops what it has.
"""

import msgspec

from millrace.core.effects import (
    AmendCopies,
    AnswerCopies,
    AnswerFetch,
    AnswerFind,
    AnswerRuns,
    AnswerSequenced,
    AnswerToken,
    AnswerWeigh,
    DeleteCopies,
    NodeEffect,
    RemoveBlocks,
    Reply,
    Scatter,
    SetFence,
    SetMarks,
    Settle,
    StoreBlock,
    Ticket,
    TrimLog,
)
from millrace.core.log_state import Fence, LogState, Marks
from millrace.core.messages import (
    Amend,
    CloseEpochs,
    Copies,
    Delete,
    DescribeSequenced,
    EpochsClosed,
    EpochsSealed,
    FetchCopies,
    FindRuns,
    FindSize,
    FindTime,
    FindToken,
    Message,
    Rebuild,
    Refusal,
    Refused,
    Release,
    SealEpochs,
    Standing,
    Store,
    Stored,
    Trimmed,
    TrimSequenced,
    Weigh,
)
from millrace.core.statuses import StatusBoard
from millrace.limits import WEIGH_PIECES_MAX
from millrace.lsn import epoch_of, first_of
from millrace.types import (
    FIRST_LSN,
    NO_NODE,
    NO_TOKEN,
    Ack,
    Block,
    EntryKind,
    Epoch,
    LogId,
    Lsn,
    Placement,
)

SequencedRequest = (
    Store
    | Rebuild
    | Release
    | Delete
    | Amend
    | SealEpochs
    | CloseEpochs
    | Copies
    | FetchCopies
    | TrimSequenced
    | DescribeSequenced
    | FindToken
    | FindTime
    | FindSize
    | FindRuns
    | Weigh
)

_STORED = Stored()
_CLOSED = EpochsClosed()
_NEW = Fence(Epoch(0), NO_TOKEN, Standing.MEMBER)


class SequencedStorage:
    def __init__(
        self, log: LogId, state: LogState | None, board: StatusBoard | None = None
    ) -> None:
        self.log = log
        self._board = board or StatusBoard(NO_NODE)
        self.fence = _NEW
        self.trim_end = FIRST_LSN
        self.end = FIRST_LSN
        self.marks = Marks()
        self.refuse_writes: Refusal | None = None  # Set by the host: disk full or busy.
        self._is_stored = False  # The store knows of the log.
        self._settles = 0
        if state is not None:
            self.reload(state)

    def reload(self, state: LogState) -> None:
        """Begin from what the store holds: at start, and after it failed to keep blocks."""
        self._is_stored = True
        self.fence = state.fence
        if self.fence.standing is Standing.BLANK:
            # The first change of the log was cut short: nothing was answered, nothing is lost.
            self.fence = msgspec.structs.replace(self.fence, standing=Standing.MEMBER)
        self.trim_end = state.trim_end
        self.end = state.end
        self.marks = state.marks

    def lose(self) -> None:
        """The store has nothing of the log any more.  Keeps I5."""
        self.fence = msgspec.structs.replace(self.fence, standing=Standing.DIRTY)

    @property
    def is_stored(self) -> bool:
        """Something was changed here: the log is worth remembering."""
        return self._is_stored

    @property
    def readable_end(self) -> Lsn:
        """Keeps I3 and I6."""
        if self.must_purge:
            return Lsn(good_in(self.marks, self.marks.closed) + 1)
        return Lsn(self.marks.released + 1)

    @property
    def must_purge(self) -> bool:
        return epoch_of(self.marks.released) > self.marks.closed

    @property
    def is_incomplete(self) -> bool:
        return self.fence.standing is not Standing.MEMBER or self._board.is_incomplete

    def step(self, ticket: Ticket, request: SequencedRequest) -> list[NodeEffect]:
        match request:
            case Store():
                return self._store(ticket, request)
            case Release(_, epoch, good, released):
                return [*self._open(epoch), *self._mark(good, released)]
            case CloseEpochs(_, epoch, first):
                return [*self._open(epoch), *self._close(epoch, first), Reply(ticket, _CLOSED)]
            case Delete(log, epoch, copies):
                return [] if self._refuse(epoch) else [DeleteCopies(log, copies)]
            case Copies(log, first, end):
                first = max(first, self.trim_end)
                return [AnswerCopies(ticket, log, first, end, self.trim_end)]
            case FetchCopies(log, first, end, bytes_max):
                first = max(first, self.trim_end)
                return [AnswerFetch(ticket, log, self.fence.epoch, first, end, bytes_max)]
            case SealEpochs(_, epoch):
                return self._seal(ticket, epoch)
            case Amend():
                return self._amend(ticket, request)
            case Rebuild():
                return self._rebuild(ticket, request)
            case TrimSequenced(_, end):
                return self._trim(ticket, end)
            case FindToken():
                return [self._find(ticket, request)]
            case DescribeSequenced():
                return [AnswerSequenced(ticket, self.log)]
            case FindTime(_, _, timestamp_us):
                return [AnswerFind(ticket, self.log, timestamp_us, None)]
            case FindSize(_, _, bytes_kept):
                return [AnswerFind(ticket, self.log, None, bytes_kept)]
            case FindRuns(_, first, end):
                return [AnswerRuns(ticket, self.log, *self._readable(first, end))]
            case Weigh():
                return self._weigh(ticket, request)

    def settled(self, answer: Message) -> Message:
        """The answer as it stands by now: blocks that were on their way to the disk at a seal may
        have failed since, and the recovery must not be told of them."""
        return self._sealed() if isinstance(answer, EpochsSealed) else answer

    def _find(self, ticket: Ticket, request: FindToken) -> AnswerToken:
        """A node that has forgotten or lost something cannot say that it never had it."""
        otherwise = Refusal.INCOMPLETE if self.is_incomplete else None
        if self.trim_end > request.first:
            otherwise = Refusal.TRIMMED
        first = max(request.first, self.trim_end)
        return AnswerToken(ticket, self.log, request.token, first, request.end, otherwise)

    def _weigh(self, ticket: Ticket, request: Weigh) -> list[NodeEffect]:
        if not 1 <= request.pieces <= WEIGH_PIECES_MAX:
            detail = f"a range is weighed in 1 to {WEIGH_PIECES_MAX} pieces, not {request.pieces}"
            return [Reply(ticket, Refused(Refusal.BAD_REQUEST, self.fence.epoch, detail))]
        first, end = max(request.first, self.trim_end), min(request.end, self.end)
        # All that it holds: the asker may have heard sooner what of it is released.
        return [AnswerWeigh(ticket, self.log, first, end, request.pieces)]

    def _readable(self, first: Lsn, end: Lsn) -> tuple[Lsn, Lsn]:
        return max(first, self.trim_end), min(end, self.readable_end)

    # -- Writing ------------------------------------------------------------------------------

    def _store(self, ticket: Ticket, request: Store) -> list[NodeEffect]:
        block = request.block
        refusal = self._refuse(request.epoch) or self._complain(request)
        refusal = refusal or self._take_nothing() or self._bar(request) or self._lack_room(block)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        before = [*self._open(request.epoch), *self._mark(request.good, request.released)]
        return [*before, *self._keep(ticket, block, request.placement, request.ack)]

    def _rebuild(self, ticket: Ticket, request: Rebuild) -> list[NodeEffect]:
        block, released = request.block, max(request.released, self.marks.released)
        refusal = self._take_nothing() or self._lack_room(block)
        if block.log != self.log or block.last > released:
            detail = f"{block!r} cannot be rebuilt: released is {released}"
            refusal = Refused(Refusal.BAD_REQUEST, self.fence.epoch, detail)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        before = [*self._open(epoch_of(released)), *self._mark(released, released)]
        return [*before, *self._keep(ticket, block, request.placement, Ack.DISK)]

    def _keep(
        self, ticket: Ticket, block: Block, placement: Placement, ack: Ack
    ) -> list[NodeEffect]:
        if block.end <= self.trim_end:
            return [Reply(ticket, _STORED)]
        self.end = max(self.end, block.end)
        return [StoreBlock(block, placement, ack), self._settle(ack, ticket, _STORED)]

    def _lack_room(self, block: Block) -> Refused | None:
        if self.refuse_writes is None or block.kind is not EntryKind.DATA:
            return None
        return Refused(self.refuse_writes, self.fence.epoch)

    def _bar(self, request: Store) -> Refused | None:
        """Keeps I7."""
        barred = self._board.barred_in(request.placement)
        if barred is None:
            return None
        # The sequencer will hear of it soon; this node is not to blame.
        detail = f"the copies of node {barred} are being made elsewhere"
        return Refused(Refusal.BUSY, self.fence.epoch, detail)

    def _take_nothing(self) -> Refused | None:
        if not self._board.refuses_copies():
            return None
        detail = "this node takes no copies: it is drained, or not itself again yet"
        return Refused(Refusal.NOT_READY, self.fence.epoch, detail)

    def _complain(self, request: Store) -> Refused | None:
        block, recovery = request.block, request.placement.recovery
        epoch = epoch_of(block.first)
        is_by_right_epoch = (
            recovery == request.epoch > epoch if recovery else epoch == request.epoch
        )
        if is_by_right_epoch and epoch == epoch_of(block.last) and block.log == self.log:
            return None
        detail = f"{block!r} does not belong to epoch {request.epoch} of log {self.log}"
        return Refused(Refusal.BAD_REQUEST, self.fence.epoch, detail)

    def _refuse(self, epoch: Epoch) -> Refused | None:
        """Keeps I1.  A release in an epoch says that all below it are closed, also to a node that
        could not be sealed then: a sequencer that was replaced may still have it as its own."""
        newest = max(self.fence.epoch, epoch_of(self.marks.released))
        if epoch >= newest:
            return None
        return Refused(Refusal.EPOCH, newest, f"sealed for epoch {newest}")

    def _amend(self, ticket: Ticket, request: Amend) -> list[NodeEffect]:
        refusal = None if request.is_rebuilding else self._refuse(request.epoch)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        return [AmendCopies(ticket, self.log, request.changes)]

    def _mark(self, good: Lsn, released: Lsn) -> list[NodeEffect]:
        """Keeps I3.  A sequencer that was replaced says nothing wrong: what it calls good is."""
        marks = raised(self.marks, good, released)
        if marks == self.marks:
            return []
        self.marks = marks
        return [SetMarks(self.log, marks)]

    def _close(self, epoch: Epoch, first: Epoch) -> list[NodeEffect]:
        if not first <= self.marks.closed < epoch:
            return []
        self.marks = closed_at(self.marks, epoch)
        return [SetMarks(self.log, self.marks)]

    def purged(self, until: Epoch, firsts: tuple[Lsn, ...]) -> list[NodeEffect]:
        """The blocks at `firsts` were outvoted; the others of epochs below `until` were not."""
        self.marks = closed_at(self.marks, max(until, self.marks.closed))
        return [RemoveBlocks(self.log, firsts), SetMarks(self.log, self.marks)]

    def _trim(self, ticket: Ticket, end: Lsn) -> list[NodeEffect]:
        if end <= self.trim_end:
            return [Reply(ticket, Trimmed(self.trim_end))]
        self.trim_end = end
        self.end = max(self.end, end)
        trimmed = self._settle(Ack.DISK, ticket, Trimmed(end))
        return [*self._open(epoch_of(end)), TrimLog(self.log, end), trimmed]

    def _open(self, epoch: Epoch) -> list[NodeEffect]:
        """The first change tells the store what kind of log this is.  Who holds nothing is right
        about everything below the epoch."""
        if self._is_stored:
            return []
        self._is_stored = True
        self.marks = closed_at(self.marks, epoch)
        return [
            Scatter(self.log),
            SetFence(self.log, self.fence),
            SetMarks(self.log, self.marks),
        ]

    # -- Sealing ------------------------------------------------------------------------------

    def _seal(self, ticket: Ticket, epoch: Epoch) -> list[NodeEffect]:
        refusal = self._refuse(epoch)
        if refusal is not None:
            return [Reply(ticket, refusal)]
        opening = self._open(epoch)
        self.fence = msgspec.structs.replace(self.fence, epoch=epoch)
        fencing = SetFence(self.log, self.fence)
        return [*opening, fencing, self._settle(Ack.DISK, ticket, self._sealed())]

    def _sealed(self) -> EpochsSealed:
        marks = self.marks
        # Keeps I5: whoever seals may not know of the node's status yet.
        standing = Standing.DIRTY if self._board.is_incomplete else self.fence.standing
        return EpochsSealed(standing, self.trim_end, marks.released, marks.good, self.end)

    def _settle(self, ack: Ack, ticket: Ticket, answer: Message) -> Settle:
        self._settles += 1
        return Settle(self.log, self._settles, ack, ticket, answer)


def good_in(marks: Marks, epoch: Epoch) -> Lsn:
    """The last position of the epoch that is known to be good, or where the epoch begins."""
    return next((good for good in marks.good if epoch_of(good) == epoch), first_of(epoch))


def raised(marks: Marks, good: Lsn, released: Lsn) -> Marks:
    """Both only go up.  What was released is good."""
    if len(marks.good) == 1:
        known, epoch = marks.good[0], epoch_of(good)
        epochs = epoch_of(known), epoch_of(marks.released), epoch_of(released)
        if epochs == (epoch, epoch, epoch) and marks.closed <= epoch:
            # With nearly every block: its sequencer's epoch is under way, nothing is to be dropped.
            best = max(good, known, marks.released)
            return Marks(max(marks.released, released), (best,), marks.closed)
    newest = {epoch_of(each): each for each in marks.good}
    for each in (good, marks.released):
        epoch = epoch_of(each)
        newest[epoch] = max(each, newest.get(epoch, each))
    return _without_needless(max(marks.released, released), newest, marks.closed)


def closed_at(marks: Marks, epoch: Epoch) -> Marks:
    newest = {epoch_of(each): each for each in marks.good}
    return _without_needless(marks.released, newest, epoch)


def _without_needless(released: Lsn, newest: dict[Epoch, Lsn], closed: Epoch) -> Marks:
    """Epochs that are both closed and released need no mark of their own."""
    floor = min(closed, Epoch(epoch_of(released) + 1))
    return Marks(released, tuple(newest[each] for each in sorted(newest) if each >= floor), closed)
