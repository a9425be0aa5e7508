"""The sequencer of one sequenced log, in one epoch (seed 000, LogDevice's write path).

It gives each block the next offsets of its epoch, has an appender carry it to a copyset, answers
the client when enough nodes have it, and tells the nodes how far readers may see.  All of this is
soft state: when it is lost, the recovery of the next epoch finds out what was stored.

  I1  Offsets are given out once and in order, so an append that began after another one was
      acknowledged lies behind it (G8).
  I2  Every append is answered once: appended when R nodes have it, refused when certainly no node
      does, unsettled in between.
  I3  A token that is in flight or among the newest answered is never appended again (L6).
  I4  `good` and `released` only go up.  Nothing is released before the earlier epochs are
      recovered, nor by a sequencer that has ended (G6).
  I5  A node that was sealed for a later epoch ends this sequencer, whichever block it was asked
      to store, and none is acknowledged after that (G7).
  I6  What is in flight, remembered, tried and waited for is bounded by the settings (G13).
  I7  What is held back goes on when a node is back that did not take it (`absences.py`), and need
      not wait for the end of a pause.
"""

from collections.abc import Callable, Collection
from enum import Enum
from itertools import islice
from typing import Protocol, assert_never

import msgspec

from millrace.core.effects import Ticket
from millrace.core.messages import (
    AppendBlock,
    AppendUnsettled,
    BlockAppended,
    Delete,
    EpochsSealed,
    Message,
    Refusal,
    Refused,
    Release,
    Store,
    Stored,
    Tail,
)
from millrace.core.procedure import Failure
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.absences import Absences
from millrace.core.sequenced.appender import Appender, Stage
from millrace.core.sequenced.blame import avoid_cause, is_absent, may_be_stored
from millrace.core.sequenced.copysets import Availability, AvoidCause, Copyset
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.recent import RecentAnswers
from millrace.core.sequenced.settings import SequencerSettings
from millrace.core.sequenced.window import AppendWindow, BlockInFlight
from millrace.lsn import first_of, lsn_of, show
from millrace.types import NO_LSN, Block, EntryKind, Epoch, Lsn, NodeId, Placement

Place = Callable[[Block, Epoch, Lsn], Block]  # Stamps a block with its position: `codec` does.
Effects = list[e.SequencerEffect]

EXPLAINED_MAX = 16  # Oldest blocks in flight that `explain` names.
STEPPED_DOWN = "this node has stepped down as sequencer: look for the next one"
TAKEN_OVER = "a sequencer of a later epoch has taken over: look for it"


class Copysets(Protocol):
    """StickyCopysets, for those who write."""

    def next(
        self, size_bytes: int, now_ms: int, avoided: Collection[NodeId], is_lone: bool
    ) -> Copyset | None: ...

    def another(
        self, than: Copyset, now_ms: int, avoided: Collection[NodeId]
    ) -> Copyset | None: ...

    def void(self) -> None: ...


class SequencerState(Enum):
    ACTIVE = "active"
    EXHAUSTED = "exhausted"  # Finishes what is in flight; the log needs a new epoch.
    SEALING = "sealing"  # Finishes what is in flight; the epoch store is to be told.
    SEALED = "sealed"  # The log is, for good.
    PREEMPTED = "preempted"
    CLOSED = "closed"


class SequencerCounts(msgspec.Struct):
    blocks: int = 0  # Acknowledged.
    records: int = 0
    bytes: int = 0
    repeats: int = 0  # Appends that were known by their token.
    waves: int = 0
    leaders_missed: int = 0  # Blocks that were complete without one of their leaders.


class LogSequencer:
    def __init__(
        self,
        start: EpochStart,
        copysets: Copysets,
        availability: Availability,
        place: Place,
        settings: SequencerSettings | None = None,
    ) -> None:
        self.log = start.log
        self.epoch = start.epoch
        self.state = SequencerState.ACTIVE
        self.ended_by = Epoch(0)  # The epoch that preempted this one.
        self.released = start.released
        self.counts = SequencerCounts()
        self._tail = start.tail
        self._is_recovered = False
        self._copysets = copysets
        self._availability = availability
        self._absences = Absences()
        self._place = place
        self._settings = settings = settings or SequencerSettings()
        self._copies = start.replication.copies
        self._of_appender = settings.of_appender(self._copies)
        self._replicates = start.replicates()
        self._issued = 0  # Offset of the last record that has a position.
        self._stored = NO_LSN  # The highest position that was acknowledged.
        begin = first_of(start.epoch)
        self._window = AppendWindow(settings.writes_in_flight, settings.bytes_in_flight, begin)
        self._recent = RecentAnswers(settings.tokens_remembered)
        self._told = begin, start.released
        self._awaiting: frozenset[NodeId] = frozenset()  # As they said with their last copy.

    @property
    def good(self) -> Lsn:
        return self._window.good

    @property
    def is_exhausted(self) -> bool:
        return self.state is SequencerState.EXHAUSTED

    @property
    def is_idle(self) -> bool:
        return not len(self._window)

    @property
    def is_held_back(self) -> bool:
        """Some block waits, and nodes are missing that may come back."""
        if self._has_ended or not self._absences.nodes:
            return False
        return any(pending.appender.stage is Stage.PAUSED for pending in self._window)

    @property
    def _has_ended(self) -> bool:
        return self.state in (SequencerState.PREEMPTED, SequencerState.CLOSED)

    # -- Appending ----------------------------------------------------------------------------

    def append(self, ticket: Ticket, request: AppendBlock, now_ms: int) -> Effects:
        known = self._repeated(ticket, request)
        if known is not None:
            return known
        refused = self._refuse(request)
        if refused is not None:
            return [e.Answer(ticket, refused)]
        if request.is_repeated and not self._recent.can_tell(request.block.token):
            # It may be a repetition of an append that was forgotten: only the log can tell.
            return [e.Answer(ticket, AppendUnsettled(self.epoch))]
        if self.state is SequencerState.SEALED:  # Refused only by one who knows all its tokens.
            sealed = Refused(Refusal.SEALED, self.epoch, "the log was sealed for good")
            return [e.Answer(ticket, sealed)]
        if self._issued + request.block.count > self._settings.records_per_epoch:
            full = Refused(Refusal.BUSY, self.epoch, "the epoch is full: a new one must begin")
            return [e.Answer(ticket, full), *self._exhaust(e.ExhaustedCause.OFFSETS)]
        return self._issue(ticket, request, now_ms)

    def _repeated(self, ticket: Ticket, request: AppendBlock) -> Effects | None:
        """Keeps I3."""
        token = request.block.token
        answer = self._recent.to(token)
        pending = self._window.of(token)
        if answer is None and pending is None:
            return None
        self.counts.repeats += 1
        if pending is not None and pending.appender.has_replied:
            answer = _appended(pending.block)
        if answer is not None:
            return [e.Answer(ticket, answer)]
        assert pending is not None
        pending.tickets.append(ticket)
        if len(pending.tickets) <= self._settings.tickets_per_append:
            return []
        return [e.Answer(pending.tickets.pop(0), self._unsettled(pending.block))]

    def _refuse(self, request: AppendBlock) -> Refused | None:
        block = request.block
        if block.log != self.log or block.kind is not EntryKind.DATA or block.is_cut:
            return Refused(Refusal.BAD_REQUEST, self.epoch, f"{block!r} cannot be appended")
        match self.state:
            case SequencerState.PREEMPTED:
                return Refused(Refusal.EPOCH, self.ended_by, TAKEN_OVER)
            case SequencerState.CLOSED:
                return Refused(Refusal.NOT_READY, self.epoch, STEPPED_DOWN)
            case SequencerState.EXHAUSTED:
                return Refused(Refusal.BUSY, self.epoch, "a new epoch must begin: try again")
            case SequencerState.SEALING:
                return Refused(Refusal.BUSY, self.epoch, "the log is being sealed: try again")
        if request.only_in not in (0, self.epoch):
            return Refused(Refusal.EPOCH, self.epoch, f"this is not epoch {request.only_in}")
        if not self._window.has_room(block.size):
            return Refused(Refusal.BUSY, self.epoch, f"{len(self._window)} blocks are in flight")
        return None if request.if_tail is None else self._compare(request.if_tail)

    def _compare(self, if_tail: Lsn) -> Refused | None:
        """Against what was given out: a record that is in flight will be there."""
        if not self._issued and not self._is_recovered:
            detail = "the last record is not known before earlier epochs are recovered: try again"
            return Refused(Refusal.BUSY, self.epoch, detail)
        last = self._last_issued if self._issued else self._tail
        if last == if_tail:
            return None
        return Refused(Refusal.CONFLICT, self.epoch, f"the last record is at {show(last)}")

    def _issue(self, ticket: Ticket, request: AppendBlock, now_ms: int) -> Effects:
        block = self._place(request.block, self.epoch, lsn_of(self.epoch, self._issued + 1))
        self._issued += block.count  # Keeps I1.
        appender = Appender(self._of_appender, self._replicates)
        pending = BlockInFlight(block, request.ack, appender, ticket)
        is_lone = self.is_idle
        self._window.add(pending)
        avoided = self._availability.avoided(now_ms)
        copyset = self._copysets.next(block.size, now_ms, avoided, is_lone)
        return self._carry_out(pending, appender.begin(copyset), now_ms)

    # -- Answers and timers -------------------------------------------------------------------

    def answered(self, node: NodeId, tag: e.Tag, answer: Message | Failure, now_ms: int) -> Effects:
        """To AskStore: one answer for each."""
        if self._has_ended:
            return []
        first, wave = tag
        pending = self._window.at(first)  # None: it is complete, this comes from a surplus copy.
        match answer:
            case Stored(is_awaited):
                if is_awaited is not (node in self._awaiting):
                    self._awaiting ^= {node}
                acked = pending.appender.stored(node, wave) if pending else []
                effects = self._step(pending, acked, now_ms)
                if node in self._absences or node in self._availability.avoided(now_ms):
                    effects += self._hear_again(node, now_ms)
                return effects
            case Refused(Refusal.EPOCH, epoch) if epoch > self.epoch:
                return self._preempt(epoch)
        is_behind_others = pending is None or pending.appender.has_acks(wave)
        self._blame(node, avoid_cause(answer, is_behind_others), now_ms)
        if is_absent(answer):
            self._absences.missed(node, now_ms)
        missed = pending.appender.missed(node, wave, may_be_stored(answer)) if pending else []
        return self._step(pending, missed, now_ms)

    def timer_fired(self, tag: e.Tag, now_ms: int) -> Effects:
        first, number = tag
        pending = self._window.at(first)
        if self._has_ended or pending is None:
            return []
        late = pending.appender.waits_for
        ordered = pending.appender.timer_fired(number)
        if ordered:
            for node in late:
                self._blame(node, AvoidCause.SLOW, now_ms)
        return self._step(pending, ordered, now_ms)

    def recovered(self, tail: Lsn) -> Effects:
        """All earlier epochs are; the last record in them is at `tail`."""
        self._is_recovered = True
        self._tail = tail
        return [] if self._has_ended else self._tell_release()

    def close(self) -> Effects:
        """Step down, for good."""
        if self._has_ended:
            return []
        self.state = SequencerState.CLOSED
        return self._end(Refused(Refusal.NOT_READY, self.epoch, STEPPED_DOWN))

    def _blame(self, node: NodeId, cause: AvoidCause | None, now_ms: int) -> None:
        if cause is not None:
            self._availability.avoid(node, cause, now_ms)
        if node not in self._availability.avoided(now_ms):
            self._copysets.void()  # A copyset with an avoided node ends by itself.

    def _hear_again(self, node: NodeId, now_ms: int) -> Effects:
        """A node that was given up takes copies: what waits for better times need not wait."""
        self._absences.stored(node)
        self._availability.cleared(node)
        return [] if node in self._availability.avoided(now_ms) else self._wake(now_ms)

    # -- Nodes that come back -----------------------------------------------------------------

    def missing(self, now_ms: int) -> list[NodeId]:
        """Whom to ask with SealEpochs whether they are back, now that blocks are held back; those
        that are disabled are not waited for."""
        return self._absences.due(now_ms, self._availability.disabled) if self.is_held_back else []

    def statuses_changed(self, now_ms: int) -> None:
        """Whoever took no copies before may do so now."""
        self._absences.hope(now_ms)

    def probed(self, node: NodeId, answer: Message | Failure, now_ms: int) -> Effects:
        """To such a question: one answer for each.  Keeps I7."""
        if self._has_ended:
            return []
        is_back = isinstance(answer, EpochsSealed)
        self._absences.answered(node, is_back, now_ms)
        match answer:
            case Refused(Refusal.EPOCH, epoch) if epoch > self.epoch:
                return self._preempt(epoch)
        if is_back:
            self._availability.returned(node)
            return self._wake(now_ms)
        self._availability.avoid(node, AvoidCause.UNREACHABLE, now_ms)
        return []

    def _wake(self, now_ms: int) -> Effects:
        effects: Effects = []
        for pending in tuple(self._window):
            effects += self._step(pending, pending.appender.retry(), now_ms)
        return effects

    # -- Carrying out what appenders order ----------------------------------------------------

    def _step(
        self, pending: BlockInFlight | None, ordered: list[e.AppenderEffect], now_ms: int
    ) -> Effects:
        if pending is None or not ordered:
            return []
        effects = self._carry_out(pending, ordered, now_ms)
        effects += self._tell_release()
        return effects

    def _carry_out(
        self, pending: BlockInFlight, ordered: list[e.AppenderEffect], now_ms: int
    ) -> Effects:
        effects: Effects = []
        for order in ordered:
            match order:
                case e.SendWave(wave, copyset):
                    effects += self._send(pending, wave, copyset)
                case e.Reply():
                    effects += self._acknowledge(pending)
                case e.Retire():
                    self._window.reap()
                case e.Complete(is_short):
                    self.counts.leaders_missed += is_short
                    self._window.forget(pending)
                case e.DropCopies(nodes, wave):
                    drop = Delete(self.log, self.epoch, ((pending.block.first, wave),))
                    effects += [e.TellNode(node, drop) for node in nodes]
                case e.StartTimer(number, ms):
                    effects.append(e.SetTimer((pending.block.first, number), ms))
                case e.NeedCopyset(than):
                    begun = pending.appender.begin(self._another(than, now_ms))
                    effects += self._carry_out(pending, begun, now_ms)
                case e.GiveUp():
                    effects += self._answer(pending, self._unsettled(pending.block))
                    effects += self._exhaust(e.ExhaustedCause.WAVES)
                case _:
                    assert_never(order)
        return effects

    def _send(self, pending: BlockInFlight, wave: int, copyset: Copyset) -> Effects:
        self.counts.waves += 1
        block = pending.block
        store = Store(
            self.log,
            self.epoch,
            block,
            Placement(copyset[: self._copies], wave),  # Extras do not ship (R2).
            self.good,
            self.released,
            pending.ack,
        )
        tag, timeout_ms = (block.first, wave), self._settings.store_timeout_of(wave)
        return [e.AskStore(tag, node, store, timeout_ms) for node in copyset]

    def _another(self, than: Copyset, now_ms: int) -> Copyset | None:
        """If it cannot be done without the nodes to avoid, one of them may be better by now; those
        that are disabled decide for themselves, if all else fails."""
        avoided = self._availability.avoided(now_ms)
        copyset = self._copysets.another(than, now_ms, avoided)
        for fewer in (self._availability.disabled, frozenset[NodeId]()):
            if copyset is None and fewer != avoided:
                copyset = self._copysets.another(than, now_ms, fewer)
        return copyset

    def _acknowledge(self, pending: BlockInFlight) -> Effects:
        block = pending.block
        self._stored = max(self._stored, block.last)
        self.counts.blocks += 1
        self.counts.records += block.count
        self.counts.bytes += block.size
        return self._answer(pending, _appended(block))

    def _answer(self, pending: BlockInFlight, answer: Message) -> Effects:
        """Keeps I2 and I3."""
        self._recent.remember(pending.block.token, answer)
        tickets, pending.tickets = pending.tickets, []
        return [e.Answer(ticket, answer) for ticket in tickets]

    def _tell_release(self) -> Effects:
        """Keeps I4.  Also nodes that get no Store now must know."""
        if self._is_recovered:
            self.released = max(self.released, self.good)
        marks = self.good, self.released
        if marks == self._told:
            return []
        self._told = marks
        return [e.TellRelease(Release(self.log, self.epoch, *marks), self._awaiting)]

    # -- Ending -------------------------------------------------------------------------------

    def seal(self) -> None:
        """Take no more appends; once all is done that is in flight the log can be `sealed`."""
        if self.state is SequencerState.ACTIVE:
            self.state = SequencerState.SEALING

    def sealed(self) -> None:
        """The epoch store says so."""
        if not self._has_ended:
            self.state = SequencerState.SEALED

    def _exhaust(self, cause: e.ExhaustedCause) -> Effects:
        if self.state not in (SequencerState.ACTIVE, SequencerState.SEALING):
            return []
        self.state = SequencerState.EXHAUSTED
        return [e.Exhausted(cause)]

    def _preempt(self, epoch: Epoch) -> Effects:
        """Keeps I5."""
        self.state = SequencerState.PREEMPTED
        self.ended_by = epoch
        refused = Refused(Refusal.EPOCH, epoch, TAKEN_OVER)
        return [*self._end(refused), e.Preempted(epoch)]

    def _end(self, refused: Refused) -> Effects:
        """Answer whoever waits: `refused` is for those whose block certainly is nowhere."""
        effects: Effects = []
        for pending in self._window:
            if not pending.appender.may_be_stored:
                effects += [e.Answer(ticket, refused) for ticket in pending.tickets]
            elif not pending.appender.has_replied:
                effects += self._answer(pending, self._unsettled(pending.block))
        self._window.clear()
        return effects

    def _unsettled(self, block: Block) -> AppendUnsettled:
        return AppendUnsettled(max(self.epoch, self.ended_by), block.first)

    # -- What it knows ------------------------------------------------------------------------

    @property
    def _last_issued(self) -> Lsn:
        return lsn_of(self.epoch, self._issued)

    def tail(self) -> Tail:
        return Tail(self.epoch, self.released, self._last_issued, self._stored or self._tail)

    def explain(self, now_ms: int) -> dict[str, object]:
        """What is in flight, and what the oldest of it waits for (G9)."""
        return {
            "state": self.state.value,
            "epoch": self.epoch,
            "issued": show(self._last_issued),
            "good": show(self.good),
            "released": show(self.released),
            "is_recovered": self._is_recovered,
            "blocks_in_flight": len(self._window),
            "bytes_in_flight": self._window.size_bytes,
            "avoided": sorted(self._availability.avoided(now_ms)),
            "missing": self._absences.nodes,
            "waits": [
                {
                    "first": show(pending.block.first),
                    "stage": pending.appender.stage.value,
                    "wave": pending.appender.wave,
                    "waits_for": list(pending.appender.waits_for),
                }
                for pending in islice(self._window, EXPLAINED_MAX)
            ],
        }


def _appended(block: Block) -> BlockAppended:
    return BlockAppended(block.first, block.last)
