"""Appending one block to a chain log, as the client does it (seed 002, append).

Next from the sequencer, then write down the chain, head first: four round trips with three
nodes (C7).  When a node fails the chain is changed and the append goes on with the same
positions (C4); a position that somebody else holds is given up for a new one (C8).

  I1  Acknowledged only when every node of one projection's chain holds the block.
  I2  "Not appended" only when no node can hold it at any position that still may become part of
      the log; in every other case the outcome is unknown (L6).
  I3  A position is given up only when the current chain does not hold the block there and nobody
      will put it there: then a second position makes no second copy.
  I4  A position is first written only while the sequencer that issued it still counts (G8).
"""

from collections.abc import Callable
from enum import Enum

import msgspec

from millrace.core.messages import (
    Found,
    Issued,
    Message,
    Next,
    Read,
    Refusal,
    Refused,
    Write,
    Written,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    DeadlinePassed,
    Failure,
    FailureKind,
    Pause,
    Procedure,
    Reconfigure,
    Refresh,
    ask,
    note,
)
from millrace.core.projection import Projection, ReconfigureReason
from millrace.limits import APPEND_ATTEMPTS_MAX
from millrace.types import Ack, Block, Epoch, LogId, Lsn, NodeId, Token

PlaceBlock = Callable[[Lsn, Epoch], Block]
BUSY_PAUSE_MS = 20


class Appended(msgspec.Struct, frozen=True):
    first: Lsn
    last: Lsn


class NotAppendedReason(Enum):
    SEALED = "sealed"
    DISK_FULL = "disk_full"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    REFUSED = "refused"
    UNKNOWN_LOG = "unknown_log"
    CONFLICT = "conflict"  # The condition that it was to be appended on does not hold.


class NotAppended(msgspec.Struct, frozen=True):
    """Definitely not in the log."""

    reason: NotAppendedReason
    detail: str = ""


class AppendUnknown(msgspec.Struct, frozen=True):
    """May be in the log at `first`, now or later; `resume` with it tells, or completes it."""

    first: Lsn
    epoch: Epoch
    detail: str = ""


AppendOutcome = Appended | NotAppended | AppendUnknown


class _Retry(msgspec.Struct, frozen=True):
    """Go on with this projection, at the same position."""

    projection: Projection


class Append:
    """One append; `run` is the procedure.  After an unknown outcome `run` may be called again:
    it goes on with the same position and token, so it never makes a second copy (L6)."""

    def __init__(self, log: LogId, count: int, token: Token, ack: Ack, place: PlaceBlock) -> None:
        self._log = log
        self._count = count
        self._token = token
        self._ack = ack
        self._place = place
        self._block: Block | None = None
        self._issued_in = Epoch(0)  # The epoch whose sequencer issued the block's position.
        self._acked: set[NodeId] = set()  # Nodes that hold the block, in epoch `_acked_epoch`.
        self._acked_epoch = Epoch(0)
        self._may_be_written = False  # Some node may hold the block at its present position.
        self._trouble = ""  # What the append met last, for whoever asks why it failed.

    def run(self, projection: Projection) -> Procedure[AppendOutcome]:
        try:
            for _ in range(APPEND_ATTEMPTS_MAX):
                step = yield from self._attempt(projection)
                if not isinstance(step, _Retry):
                    return step
                projection = step.projection
        except DeadlinePassed:
            detail = f"the time for the append is up{self._trouble}"
            return self._give_up(NotAppendedReason.DEADLINE, detail)
        return self._give_up(NotAppendedReason.UNAVAILABLE, "the chain kept changing")

    def _attempt(self, projection: Projection) -> Procedure[AppendOutcome | _Retry]:
        self._carry_over(projection)
        if projection.is_sealed:
            return (yield from self._settle_sealed(projection))
        if self._block is not None and self._issued_in < projection.issuing_since:
            step = yield from self._check_position(projection, self._block)
            if step is not None:
                return step
        if self._block is None:
            answer: Answer = yield Ask(
                projection.sequencer, Next(self._log, projection.epoch, self._count)
            )
            if not isinstance(answer, Issued):
                return (yield from self._sequencer_failed(projection, answer))
            self._block = self._place(answer.first, projection.epoch)
            self._issued_in = projection.epoch
        return (yield from self._write_down(projection, self._block))

    def _check_position(
        self, projection: Projection, block: Block
    ) -> Procedure[AppendOutcome | _Retry | None]:
        """Keeps I4: another sequencer counts now, and it may have begun below our position or
        long have passed it.  Writing there could put us below records that were acknowledged
        before we began, so the position is good only if the chain has the block already."""
        if not self._may_be_written:
            self._let_go()
            return None
        answer = yield from ask(projection.head, Read(self._log, projection.epoch, block.first))
        match answer:
            case Found(found) if found.token == self._token and found.first == block.first:
                self._issued_in = projection.epoch
                return None
            case Found() | Refused(Refusal.UNWRITTEN):
                # The chain was made equal before it opened: what its head lacks, it lacks.
                self._let_go()
                return None
        return (yield from self._node_failed(projection, projection.head, answer))

    def _settle_sealed(self, projection: Projection) -> Procedure[AppendOutcome | _Retry]:
        """Nothing can be written any more, and the chain was made equal when it was sealed: what
        its head holds is in the log on every node, what it lacks will never be."""
        sealed = NotAppended(NotAppendedReason.SEALED, "the log is sealed")
        if self._block is None or not self._may_be_written:
            return sealed
        first = self._block.first
        answer = yield from ask(projection.head, Read(self._log, projection.epoch, first))
        match answer:
            case Found(found) if found.token == self._token and found.first == first:
                return Appended(first, self._block.last)
            case Found() | Refused(Refusal.UNWRITTEN):
                self._let_go()
                return sealed
        return (yield from self._node_failed(projection, projection.head, answer))

    def _let_go(self) -> None:
        self._block = None
        self._may_be_written = False
        self._acked.clear()

    def _carry_over(self, projection: Projection) -> None:
        """Acknowledgements of the epoch directly before count for nodes that stayed: that
        epoch's end was reconciled from what they hold.  Across more epochs a node may have left
        and come back with something else, so it is asked again."""
        if projection.epoch == self._acked_epoch:
            return
        if projection.previous == self._acked_epoch:
            self._acked &= set(projection.chain)
        else:
            self._acked.clear()
        self._acked_epoch = projection.epoch

    def _write_down(
        self, projection: Projection, block: Block
    ) -> Procedure[AppendOutcome | _Retry]:
        write = Write(self._log, projection.epoch, block, projection.chain, self._ack)
        for node in projection.chain:
            if node in self._acked:
                continue
            answer = yield from self._write_to(node, write)
            if isinstance(answer, Written) or self._is_mine(answer, block):
                self._acked.add(node)
                self._may_be_written = True
                continue
            return (yield from self._node_failed(projection, node, answer))
        return Appended(block.first, block.last)  # Keeps I1.

    def _write_to(self, node: NodeId, write: Write) -> Procedure[Answer]:
        """A busy node or connection is waited for, as long as the append has time.  While a write
        is on its way it may be done, also when the time runs out before its answer (I2)."""
        while True:
            was_written, self._may_be_written = self._may_be_written, True
            answer: Answer = yield Ask(node, write)
            if isinstance(answer, Written):
                return answer
            if _is_not_done(answer):
                self._may_be_written = was_written
            if isinstance(answer, Failure) and answer.is_crowded:
                continue  # It has waited already.
            if not isinstance(answer, Refused) or answer.reason is not Refusal.BUSY:
                return answer
            yield Pause(BUSY_PAUSE_MS)

    def _is_mine(self, answer: Answer, block: Block) -> bool:
        """`err_written(value)` with my token at my position: repaired for me, or a retry."""
        return (
            isinstance(answer, Refused)
            and answer.reason is Refusal.WRITTEN
            and len(answer.blocks) == 1
            and answer.blocks[0].token == self._token
            and answer.blocks[0].first == block.first
        )

    def _node_failed(
        self, projection: Projection, node: NodeId, answer: Answer
    ) -> Procedure[AppendOutcome | _Retry]:
        if isinstance(answer, Failure) and answer.is_crowded:
            return _Retry(projection)
        if isinstance(answer, Failure):
            reason = ReconfigureReason.UNREACHABLE
            return (yield from self._reconfigure(projection, {node}, reason, answer.detail))
        refused = answer if isinstance(answer, Refused) else _unexpected(answer)
        match refused.reason:
            case Refusal.WRITTEN:
                return (yield from self._position_lost(projection))
            case Refusal.EPOCH:
                return (yield from self._epoch_differs(projection, node, refused.epoch))
            case Refusal.TRIMMED:
                return self._trimmed(projection)
            case Refusal.DISK_FULL:
                return (yield from self._cannot_store(projection, node, refused))
            case Refusal.UNAVAILABLE | Refusal.CORRUPT:  # Corrupt: what it holds there, it lost.
                return (yield from self._cannot_store(projection, node, refused))
            case Refusal.INCOMPLETE:
                reason = ReconfigureReason.INCOMPLETE
                return (yield from self._reconfigure(projection, {node}, reason, refused.detail))
            case _:
                detail = f"node {node}: {refused.reason.value} {refused.detail}"
                return self._give_up(NotAppendedReason.REFUSED, detail)

    def _cannot_store(
        self, projection: Projection, node: NodeId, refused: Refused
    ) -> Procedure[AppendOutcome | _Retry]:
        is_full = refused.reason is Refusal.DISK_FULL
        if projection.chain == (node,):
            why = NotAppendedReason.DISK_FULL if is_full else NotAppendedReason.UNAVAILABLE
            return self._give_up(
                why, f"node {node}, the last of the chain, cannot store: {refused.detail}"
            )
        reason = ReconfigureReason.DISK_FULL if is_full else ReconfigureReason.BROKEN
        return (yield from self._reconfigure(projection, {node}, reason, refused.detail))

    def _position_lost(self, projection: Projection) -> Procedure[AppendOutcome | _Retry]:
        """Somebody else's block or junk is there.  At the first node that is not known to hold
        ours this settles it: the chain's truth is what its head holds (I3)."""
        if self._acked:
            # Two blocks at one position in one chain: must never be.
            yield from note("append.diverged", log=self._log, epoch=projection.epoch)
            return self._unknown("the chain holds two blocks at one position")
        self._let_go()
        return _Retry(projection)

    def _trimmed(self, projection: Projection) -> AppendOutcome | _Retry:
        assert self._block is not None
        if self._acked:
            # Written, then trimmed before we reached the end of the chain (varlog 6.5, 2).
            return Appended(self._block.first, self._block.last)
        if self._may_be_written:
            return self._unknown("the position was trimmed before its outcome was known")
        self._let_go()
        return _Retry(projection)

    def _sequencer_failed(
        self, projection: Projection, answer: Answer
    ) -> Procedure[AppendOutcome | _Retry]:
        node = projection.sequencer
        if isinstance(answer, Failure) and answer.is_crowded:
            return _Retry(projection)
        if isinstance(answer, Failure):
            reason = ReconfigureReason.SEQUENCER_LOST
            return (yield from self._reconfigure(projection, {node}, reason, answer.detail))
        refused = answer if isinstance(answer, Refused) else _unexpected(answer)
        if refused.reason is Refusal.EPOCH:
            return (yield from self._epoch_differs(projection, node, refused.epoch))
        if refused.reason is Refusal.NOT_READY:
            reason = ReconfigureReason.SEQUENCER_LOST
            return (yield from self._reconfigure(projection, set(), reason, refused.detail))
        return self._give_up(NotAppendedReason.REFUSED, f"sequencer: {refused.detail}")

    def _epoch_differs(
        self, projection: Projection, node: NodeId, epoch: Epoch
    ) -> Procedure[AppendOutcome | _Retry]:
        if epoch < projection.epoch:
            # A member that is behind its own projection has lost its fence: its disk is gone.
            reason = ReconfigureReason.INCOMPLETE
            return (yield from self._reconfigure(projection, {node}, reason, "epoch behind"))
        answer: Projection | Failure = yield Refresh(self._log, epoch)
        if isinstance(answer, Failure):
            return self._no_projection(answer, answer.detail)
        if answer.epoch > projection.epoch:
            return _Retry(answer)
        reason = ReconfigureReason.FENCED
        return (yield from self._reconfigure(projection, set(), reason, f"sealed at {epoch}"))

    def _reconfigure(
        self,
        projection: Projection,
        suspects: set[NodeId],
        reason: ReconfigureReason,
        detail: str,
    ) -> Procedure[AppendOutcome | _Retry]:
        self._trouble = f" ({reason.value}: {detail})"
        answer: Projection | Failure = yield Reconfigure(projection, frozenset(suspects), reason)
        if isinstance(answer, Failure):
            what = f"{reason.value} ({detail}) and the chain cannot be changed: {answer.detail}"
            return self._no_projection(answer, what)
        return _Retry(answer)

    def _no_projection(self, failure: Failure, detail: str) -> AppendOutcome:
        if failure.kind is FailureKind.UNKNOWN_LOG:
            # A log that was deleted holds nothing and never will, whatever was written (I2).
            return NotAppended(NotAppendedReason.UNKNOWN_LOG, detail)
        return self._give_up(NotAppendedReason.UNAVAILABLE, detail)

    def _give_up(self, reason: NotAppendedReason, detail: str) -> AppendOutcome:
        """Keeps I2."""
        if self._may_be_written:
            return self._unknown(detail)
        return NotAppended(reason, detail)

    def _unknown(self, detail: str) -> AppendUnknown:
        assert self._block is not None
        return AppendUnknown(self._block.first, self._block.epoch, detail)


def _is_not_done(answer: Answer) -> bool:
    return isinstance(answer, Refused) or (isinstance(answer, Failure) and answer.is_definite)


def _unexpected(answer: Message) -> Refused:
    return Refused(Refusal.BAD_REQUEST, detail=f"unexpected {type(answer).__name__}")
