"""Appending one block to a sequenced log, as the client does it.

One request to the log's sequencer, wherever it is by now.  A sequencer that cannot be reached is
replaced: the next one in the log's order is asked to take over, and looks for itself before it
does.  What became of a request without an answer is found out before it is sent to another epoch.

  I1  Acknowledged only when a sequencer said so, or a block of this writer's token was found in an
      epoch that is recovered.
  I2  "Not appended" only when no epoch can hold the block; else the outcome is unknown (L6).
  I3  While an epoch may hold the block it is sent only to that epoch, whose sequencer knows the
      token or says that it cannot tell: there is never a second copy.
"""

import msgspec

from millrace.core.append import (
    Appended,
    AppendOutcome,
    AppendUnknown,
    NotAppended,
    NotAppendedReason,
)
from millrace.core.attempts import append_by_attempts
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    Activate,
    AppendBlock,
    AppendUnsettled,
    BlockAppended,
    Redirected,
    Refusal,
    Refused,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    Failure,
    ListNodes,
    Procedure,
    ReadEpochs,
    ask,
)
from millrace.core.sequenced.preferred import preferred_sequencers
from millrace.core.sequenced.settling import find_append
from millrace.lsn import first_of
from millrace.types import Ack, Block, Epoch, Extent, LogId, Lsn, NodeId

ACTIVATE_TIMEOUT_MS = 5_000
CANDIDATES_MAX = 3  # Nodes asked to take over before the append pauses.


class Seat(msgspec.Struct, frozen=True):
    """Who a log's sequencer was when it was last heard of."""

    node: NodeId
    epoch: Epoch


class Seats:
    """What a process knows of sequencers; shared by all its appends."""

    def __init__(self) -> None:
        self._seats: dict[LogId, Seat] = {}
        self._suspects: dict[LogId, set[NodeId]] = {}

    def find(self, log: LogId) -> Seat | None:
        return self._seats.get(log)

    def suspects(self, log: LogId) -> tuple[NodeId, ...]:
        return tuple(sorted(self._suspects.get(log, ())))

    def learn(self, log: LogId, seat: Seat) -> None:
        known = self._seats.get(log)
        if known is None or seat.epoch >= known.epoch:
            self._seats[log] = seat

    def doubt(self, log: LogId, seat: Seat) -> None:
        """The node does not answer, or says that it is not the one."""
        self._suspects.setdefault(log, set()).add(seat.node)
        if self._seats.get(log) == seat:
            del self._seats[log]

    def served(self, log: LogId) -> None:
        self._suspects.pop(log, None)

    def forget(self, log: LogId) -> None:
        self._seats.pop(log, None)
        self._suspects.pop(log, None)


class SequencedAppend:
    """One append; `run` is the procedure.  After an unknown outcome `run` may be called again: it
    goes on with the same token, so it never makes a second copy (L6)."""

    def __init__(self, block: Block, ack: Ack, seats: Seats, if_tail: Lsn | None = None) -> None:
        self._log = block.log
        self._block = block
        self._ack = ack
        self._seats = seats
        self._if_tail = if_tail
        self._open_in: Epoch | None = None  # The epoch that may hold the block (I3).
        self._trouble = ""

    def run(self) -> Procedure[AppendOutcome]:
        return append_by_attempts(self._attempt, self._stop, "no sequencer serves")

    def _stop(self, reason: NotAppendedReason, detail: str) -> AppendOutcome:
        return self._give_up(reason, f"{detail}{self._trouble}")

    def _attempt(self) -> Procedure[AppendOutcome | None]:
        """None: try again."""
        seat = self._seats.find(self._log)
        if seat is None:
            found = yield from find_seat(self._log, self._seats)
            if isinstance(found, str):
                self._note(found)
                return None
            if isinstance(found, NotAppended):
                return found if self._is_final(found) else None
            seat = found
        if self._open_in is not None and self._open_in < seat.epoch:
            outcome = yield from self._settle(seat, self._open_in)
            if outcome is not None or self._open_in is not None:
                return outcome
        was_open = self._open_in
        # Never in "whichever it is": the request may be late, and another epoch know it already.
        only_in = seat.epoch if was_open is None else was_open
        is_repeated = was_open is not None
        request = AppendBlock(
            self._log, only_in, self._block, self._ack, self._if_tail, is_repeated
        )
        self._open_in = only_in
        answer: Answer = yield Ask(seat.node, request)
        if isinstance(answer, BlockAppended):
            self._seats.served(self._log)
            return Appended(answer.first, answer.last)
        if isinstance(answer, Refused | Redirected) or (
            isinstance(answer, Failure) and answer.is_definite
        ):
            self._open_in = was_open  # This request was certainly not done.
        return self._failed(seat, answer)

    def _failed(self, seat: Seat, answer: Answer) -> AppendOutcome | None:
        match answer:
            case Redirected(node, epoch):
                if Seat(node, epoch) == seat:
                    self._doubt(seat, "it sends us to itself")
                self._seats.learn(self._log, Seat(node, epoch))
            case AppendUnsettled(epoch):
                # Its epoch is over, or it has forgotten the token: only the log can tell.
                self._doubt(seat, f"the sequencer was replaced in epoch {epoch}")
            case Failure():
                self._note(f"node {seat.node}: {answer.kind.value} {answer.detail}")
                if not answer.is_crowded:
                    self._seats.doubt(self._log, seat)
            case Refused(reason, epoch, detail):
                return self._refused(seat, reason, epoch, detail)
            case _:
                self._doubt(seat, f"unexpected {type(answer).__name__}")
        return None

    def _refused(
        self, seat: Seat, reason: Refusal, epoch: Epoch, detail: str
    ) -> AppendOutcome | None:
        self._note(f"node {seat.node}: {reason.value} {detail}")
        match reason:
            case Refusal.EPOCH if epoch > seat.epoch:
                self._seats.learn(self._log, Seat(seat.node, epoch))
            case Refusal.BUSY | Refusal.UNAVAILABLE:
                pass
            case Refusal.CONFLICT:
                return self._give_up(NotAppendedReason.CONFLICT, detail)
            case Refusal.SEALED:
                # Certain, also when it was sent before: the epoch's own sequencer would know it.
                return NotAppended(NotAppendedReason.SEALED, "the log is sealed")
            case Refusal.DISK_FULL:
                return self._give_up(NotAppendedReason.DISK_FULL, detail)
            case Refusal.BAD_REQUEST:
                return self._give_up(NotAppendedReason.REFUSED, detail)
            case _:
                self._seats.doubt(self._log, seat)
        return None

    def _doubt(self, seat: Seat, why: str) -> None:
        self._note(f"node {seat.node}: {why}")
        self._seats.doubt(self._log, seat)

    def _note(self, trouble: str) -> None:
        self._trouble = f" ({trouble})"

    # -- What became of it ----------------------------------------------------------------------

    def _is_final(self, outcome: NotAppended) -> bool:
        """Whatever was written: a log that was deleted holds nothing and never will, and one that
        is sealed takes nothing that it has not taken (I2)."""
        is_deleted = outcome.reason is NotAppendedReason.UNKNOWN_LOG
        return is_deleted or self._open_in is None

    def _settle(self, seat: Seat, open_in: Epoch) -> Procedure[AppendOutcome | None]:
        """Look for the block in the epoch that may hold it, which is over; `_open_in` is None
        afterwards if it is certainly not there."""
        record = yield from _read(self._log)
        if isinstance(record, str):
            self._note(record)
            return None
        if isinstance(record, NotAppended):
            return record
        if record.clean < open_in:
            self._note(f"epoch {record.clean + 1} is not recovered yet")
            yield from self._wake(seat)
            return None
        found = yield from find_append(record, open_in, self._block.token)
        if isinstance(found, Extent):
            return Appended(found.first, found.last)
        if isinstance(found, str):
            self._note(found)
        else:
            self._open_in = None
        return None

    def _wake(self, seat: Seat) -> Procedure[None]:
        """Whoever is to recover the epochs may have died since: then somebody begins anew."""
        answer = yield from ask(seat.node, Activate(self._log), ACTIVATE_TIMEOUT_MS)
        if isinstance(answer, Redirected):
            self._seats.learn(self._log, Seat(answer.node, answer.epoch))
        else:
            self._seats.doubt(self._log, seat)

    def _give_up(self, reason: NotAppendedReason, detail: str) -> AppendOutcome:
        """Keeps I2."""
        if self._open_in is not None:
            return AppendUnknown(first_of(self._open_in), self._open_in, detail)
        return NotAppended(reason, detail)


def find_seat(log: LogId, seats: Seats) -> Procedure[Seat | NotAppended | str]:
    """Who sequences the log: by the epoch store, or by asking somebody to.  A text says what is
    in the way for now."""
    record = yield from _read(log)
    if not isinstance(record, EpochRecord):
        return record
    suspects = seats.suspects(log)
    if record.sequencer and record.sequencer not in suspects:
        seat = Seat(record.sequencer, record.epoch)
        seats.learn(log, seat)
        return seat
    return (yield from _activate(log, seats, suspects))


def _activate(log: LogId, seats: Seats, suspects: tuple[NodeId, ...]) -> Procedure[Seat | str]:
    """Ask the nodes in the log's order to take over; the first that answers knows."""
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view.detail
    candidates = preferred_sequencers(log, view.nodes, view.live)
    candidates.sort(key=lambda node: node in suspects)
    seats.forget(log)  # It looks for itself: whoever it names counts, suspected or not.
    trouble = "no live node may sequence"
    for node in candidates[:CANDIDATES_MAX]:
        answer = yield from ask(node, Activate(log, suspects), ACTIVATE_TIMEOUT_MS)
        if isinstance(answer, Redirected):
            seat = Seat(answer.node, answer.epoch)
            seats.learn(log, seat)
            return seat
        trouble = f"node {node} does not take over: {answer}"
    return trouble


def _read(log: LogId) -> Procedure[EpochRecord | NotAppended | str]:
    read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    if isinstance(read, Failure):
        return read.detail
    return _deleted(log) if read[0] is None else read[0]


def _deleted(log: LogId) -> NotAppended:
    """It holds nothing and never will, whatever was written (I2)."""
    return NotAppended(NotAppendedReason.UNKNOWN_LOG, f"log {log} does not exist")
