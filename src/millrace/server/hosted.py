"""One log's sequencer on a node, from the claim of an epoch to its end.

I1  Whoever asks while an epoch is being claimed waits for the outcome; no more than WAITING_MAX
    do (G13).
I2  A sequencer that lost its place is forgotten: the next request finds out who has it.
I3  Recovery is tried until it succeeds or the sequencer is gone, so that what is appended becomes
    readable.
I4  A log is marked as sealed when nothing is in flight and all before it is recovered.
I5  A move to other nodes (`moving.py`) ends in the next epoch, or with this sequencer.
I6  Appends that are held back go on when the nodes that they wait for are back (`waking.py`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from millrace.core.effects import Ticket
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    Activate,
    AppendBlock,
    AskTail,
    ChangeNodeset,
    LogSealed,
    Message,
    Redirected,
    Refusal,
    Refused,
    Release,
    SealLog,
    Tail,
)
from millrace.core.procedure import (
    Answer,
    Failure,
    FailureKind,
)
from millrace.core.repair import MakeJunk
from millrace.core.replication import can_replicate
from millrace.core.sequenced import effects as e
from millrace.core.sequenced.activation import Activated, NotMine, newest_epoch
from millrace.core.sequenced.copysets import Availability, CopysetChooser, StickyCopysets
from millrace.core.sequenced.epoch_start import EpochStart
from millrace.core.sequenced.recover_log import recover_log
from millrace.core.sequenced.recovery import Recovered
from millrace.core.sequenced.sealing import mark_sealed
from millrace.core.sequenced.sequencer import LogSequencer, Place, SequencerState
from millrace.core.sequenced.taking_over import change_over, take_over
from millrace.server.moving import Move
from millrace.server.needs import Surroundings as Surroundings
from millrace.server.probing import probe
from millrace.server.waking import Waking
from millrace.types import NO_NODE, LogId, NodeId

WAITING_MAX: Final = 1_024
ACTIVATE_TIMEOUT_MS: Final = 10_000
RECOVER_TIMEOUT_MS: Final = 30_000
RECOVER_PAUSE_MS: Final = 200
SEAL_TIMEOUT_MS: Final = 10_000
SEAL_PAUSE_MS: Final = 200
REPEAT_RELEASE_MS: Final = 1_000
RELEASE_PAUSE_MS: Final = 25  # Between two to all nodes: each costs as much as a small Store.
RELEASE_QUIET_MS: Final = 2  # Without news: then no Store is about to tell it.

SequencerRequest = AppendBlock | AskTail | Activate | SealLog | ChangeNodeset
T = TypeVar("T")


class Hosted:
    """One log's sequencer, or the attempt to become it."""

    def __init__(
        self,
        log: LogId,
        me: NodeId,
        surroundings: Surroundings,
        place: Place,
        make_junk: MakeJunk,
        forget: Callable[["Hosted"], None],
    ) -> None:
        self.log = log
        self._me = me
        self._around = surroundings
        self._place = place
        self._make_junk = make_junk
        self._forget = forget
        self._record: EpochRecord | None = None
        self._sequencer: LogSequencer | None = None
        self._availability: Availability | None = None
        self._waking: Waking | None = None
        self._disabled: frozenset[NodeId] | None = None  # As it was heard last.
        self._is_activating = False
        self._waves: Iterator[int] = count(1)  # Attempts of this epoch's recovery.
        self._is_recovered = False
        self._waiting: list[tuple[Ticket, SequencerRequest]] = []
        self._sealing: list[Ticket] = []  # Who waits for the log to be sealed.
        self._is_marking = False
        self._move: Move | None = None
        self._release: Release | None = None  # The newest that was not sent yet.
        self._last_release: Release | None = None
        self._repeats_due = 0
        self._release_news_ms = 0  # When it last changed.
        self._release_due_ms = 0  # When all nodes are told, news or not.
        self._awaiting: frozenset[NodeId] = frozenset()  # To be told without such a pause.

    @property
    def is_active(self) -> bool:
        return self._sequencer is not None

    def handle(self, ticket: Ticket, request: SequencerRequest) -> None:
        if self._sequencer is not None:
            self._serve(self._sequencer, ticket, request)
            return
        if isinstance(request, AskTail) and request.is_glance:
            none = Refused(Refusal.NOT_READY, detail="this node does not sequence the log")
            self._around.answer(ticket, none)
            self._forget_if_idle()
            return
        self._wait(ticket, request)
        if not self._is_activating:
            suspects = request.suspects if isinstance(request, Activate) else ()
            self._begin(tuple(node for node in suspects if node != self._me))

    def _wait(self, ticket: Ticket, request: SequencerRequest) -> None:
        """Keeps I1."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((ticket, request))
            return
        busy = Refused(Refusal.BUSY, detail="many wait for this log's sequencer already")
        self._around.answer(ticket, busy)

    def _serve(self, sequencer: LogSequencer, ticket: Ticket, request: SequencerRequest) -> None:
        if self._move is not None and self._move.holds(request):
            self._wait(ticket, request)
            return
        match request:
            case AppendBlock():
                self._avoid_disabled()
                self._perform(sequencer.append(ticket, request, self._around.now_ms()))
            case AskTail():
                self._around.answer(ticket, sequencer.tail())
            case Activate(suspects=suspects) if set(suspects) - {self._me}:
                self._look_whether_replaced(sequencer, ticket)
            case Activate():
                self._around.answer(ticket, Redirected(self._me, sequencer.epoch))
            case SealLog():
                self._seal(sequencer, ticket)
            case ChangeNodeset():
                self._begin_move(sequencer, ticket, request)

    def _look_whether_replaced(self, sequencer: LogSequencer, ticket: Ticket) -> None:
        """Somebody looks for another node as the sequencer: one that was replaced, and that nobody
        has sealed yet, would not know."""

        def read(record: EpochRecord | None) -> None:
            answer: Message = Redirected(self._me, sequencer.epoch)
            is_mine = sequencer is self._sequencer
            if is_mine and record is not None and record.epoch > sequencer.epoch:
                detail = f"another node began epoch {record.epoch}: ask again"
                answer = Refused(Refusal.NOT_READY, record.epoch, detail)
                self._end()
            self._around.answer(ticket, answer)

        self._around.run(newest_epoch(self.log), ACTIVATE_TIMEOUT_MS, read)

    def _avoid_disabled(self) -> None:
        """Unless it cannot be done without them: then they decide."""
        disabled, record, availability = self._around.disabled(), self._record, self._availability
        if record is None or availability is None or disabled is self._disabled:
            return
        self._disabled = disabled
        others = set(record.nodeset) - disabled
        can = can_replicate(record.replication, others, self._around.locations())
        availability.disable(disabled if can else frozenset())
        if self._sequencer is not None:
            self._sequencer.statuses_changed(self._around.now_ms())

    def _forget_if_idle(self) -> None:
        """Nobody has asked it to begin."""
        if not self._is_activating:
            self._forget(self)

    # -- Activating ---------------------------------------------------------------------------

    def _begin(self, suspects: tuple[NodeId, ...]) -> None:
        """Look whether those whom somebody could not reach are really away."""
        self._is_activating = True
        probe(self._around, suspects, AskTail(self.log), (Tail, Redirected), self._activate)

    def _activate(self, suspects: tuple[NodeId, ...]) -> None:
        procedure = take_over(self.log, self._me, suspects)
        self._around.run(procedure, ACTIVATE_TIMEOUT_MS, self._activated)

    def _activated(self, result: Activated | NotMine | Failure) -> None:
        self._is_activating = False
        waiting, self._waiting = self._waiting, []
        if self._move is not None:  # The epoch tells what of it is done.
            waiting.append((self._move.ticket, self._move.change))
            self._move = None
        if isinstance(result, Activated):
            self._send_release()  # To the nodes that it was on.
            self._retire()
            self._open(result.record)
            for ticket, request in waiting:
                if self._sequencer is None:
                    # One before it ended the epoch already: whoever asks again begins anew.
                    self._around.answer(ticket, Refused(Refusal.NOT_READY, result.record.epoch))
                else:
                    self._serve(self._sequencer, ticket, request)
            return
        answer = _not_activated(result)
        for ticket, _ in waiting:
            self._around.answer(ticket, answer)
        self._end()

    def _open(self, record: EpochRecord) -> None:
        locations = self._around.locations()
        chooser = CopysetChooser(record.replication, record.nodeset, locations, self._around.draw)
        start = EpochStart(self.log, record.epoch, record.replication, locations, tail=record.tail)
        self._record = record
        self._availability = Availability(record.nodeset, record.replication.copies)
        self._disabled = None
        self._sequencer = LogSequencer(
            start,
            StickyCopysets(chooser, record.settings, self._me),
            self._availability,
            self._place,
            record.settings,
        )
        self._waking = Waking(self._around, self._sequencer, self._avoid_disabled, self.probed)
        if record.is_sealed:
            self._sequencer.sealed()
        self._waves = count(1)
        self._is_recovered = False
        self._recover(record)

    # -- Recovering ---------------------------------------------------------------------------

    def _recover(self, record: EpochRecord) -> None:
        if self._record is not record:
            return  # Another epoch has begun meanwhile.

        def done(result: Any) -> None:
            self._recovered(record, result)

        procedure = recover_log(record, self._make_junk, self._waves)
        self._around.run(procedure, RECOVER_TIMEOUT_MS, done)

    def _recovered(self, record: EpochRecord, result: Any) -> None:
        if self._record is not record or self._sequencer is None:
            return
        if isinstance(result, Recovered):
            self._is_recovered = True
            self._perform(self._sequencer.recovered(result.record.tail))
            self._mark_if_idle()
        elif isinstance(result, Failure) and result.kind is not FailureKind.UNKNOWN_LOG:
            self._around.later(RECOVER_PAUSE_MS, lambda: self._recover(record))  # Keeps I3.
        else:
            self._end()

    # -- Moving -------------------------------------------------------------------------------

    def _begin_move(self, sequencer: LogSequencer, ticket: Ticket, change: ChangeNodeset) -> None:
        unknown = set(change.nodeset).difference(self._around.locations())
        if change.epoch != sequencer.epoch:
            self._around.answer(ticket, Redirected(self._me, sequencer.epoch))
        elif self._move is not None or self._sealing:
            busy = Refused(Refusal.BUSY, sequencer.epoch, "the log is being moved or sealed")
            self._around.answer(ticket, busy)
        elif unknown:
            detail = f"this node has not heard of nodes {sorted(unknown)} yet"
            self._around.answer(ticket, Refused(Refusal.NOT_READY, sequencer.epoch, detail))
        else:
            around, is_idle = self._around, lambda: sequencer.is_idle
            self._move = Move(ticket, change, around, is_idle, self._leave, self._stay)
            self._move.begin()

    def _leave(self, move: Move) -> None:
        if self._move is not move:
            return
        if self._sealing:
            self._stay(move, Failure(FailureKind.CROWDED, "the log is being sealed"))
            return
        self._is_activating = True
        procedure = change_over(move.change, self._me)
        self._around.run(procedure, ACTIVATE_TIMEOUT_MS, self._activated)

    def _stay(self, move: Move, failure: Failure) -> None:
        if self._move is not move:
            return
        self._move = None
        self._around.answer(move.ticket, Refused(Refusal.NOT_READY, detail=failure.detail))
        waiting, self._waiting = self._waiting, []
        for ticket, request in waiting:
            self.handle(ticket, request)

    # -- Sealing ------------------------------------------------------------------------------

    def _seal(self, sequencer: LogSequencer, ticket: Ticket) -> None:
        if sequencer.state is SequencerState.SEALED:
            self._around.answer(ticket, LogSealed(sequencer.epoch, sequencer.tail().last))
        elif len(self._sealing) >= WAITING_MAX:
            busy = Refused(Refusal.BUSY, detail="many wait for this log to be sealed already")
            self._around.answer(ticket, busy)
        else:
            self._sealing.append(ticket)
            sequencer.seal()
            self._mark_if_idle()

    def _mark_if_idle(self) -> None:
        """Keeps I4."""
        record, sequencer = self._record, self._sequencer
        if not self._sealing or self._is_marking or record is None or sequencer is None:
            return
        if self._is_recovered and sequencer.is_idle:
            self._is_marking = True
            procedure = mark_sealed(record, sequencer.tail().last)
            self._around.run(procedure, SEAL_TIMEOUT_MS, partial(self._marked, record))

    def _marked(self, record: EpochRecord, result: EpochRecord | NotMine | Failure) -> None:
        if self._record is not record or self._sequencer is None:
            return
        self._is_marking = False
        match result:
            case EpochRecord():
                self._sequencer.sealed()
                sealed = LogSealed(record.epoch, self._sequencer.tail().last)
                tickets, self._sealing = self._sealing, []
                for ticket in tickets:
                    self._around.answer(ticket, sealed)
            case Failure(kind) if kind is not FailureKind.UNKNOWN_LOG:
                self._around.later(SEAL_PAUSE_MS, self._mark_if_idle)
            case _:
                self._end()

    # -- Carrying out -------------------------------------------------------------------------

    def _perform(self, effects: list[e.SequencerEffect]) -> None:
        around = self._around
        sequencer = self._sequencer
        for effect in effects:
            match effect:
                case e.AskStore(tag, node, message, timeout_ms):
                    around.ask(node, message, timeout_ms, _Stored(self, sequencer, node, tag))
                case e.Answer(ticket, message):
                    around.answer(ticket, message)
                case e.TellRelease(message, awaiting):
                    self._tell_release(message, awaiting)
                case e.TellNode(node, message):
                    around.tell(node, message)
                case e.SetTimer(tag, ms):
                    around.later(ms, _Timer(self, sequencer, tag))
                    if self._waking is not None:
                        self._waking.look()  # Keeps I6.
                case e.Exhausted() | e.Preempted():
                    self._end()  # Whoever comes next begins another epoch.

    def stored(
        self, sequencer: LogSequencer | None, node: NodeId, tag: e.Tag, answer: Answer
    ) -> None:
        if sequencer is self._sequencer and sequencer is not None:
            self._go_on(sequencer.answered(node, tag, answer, self._around.now_ms()))

    def timer_fired(self, sequencer: LogSequencer | None, tag: e.Tag) -> None:
        if sequencer is self._sequencer and sequencer is not None:
            self._go_on(sequencer.timer_fired(tag, self._around.now_ms()))

    def probed(self, sequencer: LogSequencer, node: NodeId, answer: Answer) -> None:
        if sequencer is self._sequencer:
            self._go_on(sequencer.probed(node, answer, self._around.now_ms()))

    def _go_on(self, effects: list[e.SequencerEffect]) -> None:
        """What is in flight may be done with this."""
        self._perform(effects)
        if self._sealing:
            self._mark_if_idle()
        if self._move is not None:
            self._move.look()

    def _tell_release(self, release: Release, awaiting: frozenset[NodeId]) -> None:
        """While appends follow each other closely each Store says how far the log was released
        before it, and nodes without readers are told of many blocks at once."""
        self._release_news_ms = now_ms = self._around.now_ms()
        if self._release is None:
            wait_ms = RELEASE_QUIET_MS if now_ms < self._release_due_ms else 0
            self._around.later(wait_ms, self._send_when_quiet)
        self._release = release
        if awaiting and not self._awaiting:
            self._around.later(0, self._send_awaited)
        self._awaiting |= awaiting

    def _send_awaited(self) -> None:
        awaiting, self._awaiting = self._awaiting, frozenset()
        if self._release is not None and self._record is not None:  # Else all know it by now.
            for node in sorted(awaiting):
                self._around.tell(node, self._release)

    def _send_when_quiet(self) -> None:
        now_ms = self._around.now_ms()
        has_news = now_ms - self._release_news_ms < RELEASE_QUIET_MS
        if self._release is not None and has_news and now_ms < self._release_due_ms:
            self._around.later(RELEASE_QUIET_MS, self._send_when_quiet)
        else:
            self._send_release()

    def _send_release(self) -> None:
        release, self._release = self._release, None
        if release is not None and self._record is not None:
            self._last_release = release
            self._release_due_ms = self._around.now_ms() + RELEASE_PAUSE_MS
            for node in self._record.nodeset:
                self._around.tell(node, release)
            self._repeats_due += 1
            self._around.later(REPEAT_RELEASE_MS, self._repeat_release)

    def _repeat_release(self) -> None:
        """Once more when all is quiet, for nodes that could not be reached."""
        self._repeats_due -= 1
        if self._repeats_due or self._last_release is None or self._record is None:
            return
        for node in self._record.nodeset:
            self._around.tell(node, self._last_release)

    # -- Ending -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Keeps I2.  While a move begins another epoch here, which may be what ended this one, it
        is the move that ends."""
        if self._is_activating:
            self._retire()
            return
        self.close()
        self._forget(self)

    def _retire(self) -> None:
        """End the sequencer, if there is one."""
        sequencer, self._sequencer = self._sequencer, None
        self._record = None
        if sequencer is not None:
            for effect in sequencer.close():
                if isinstance(effect, e.Answer):
                    self._around.answer(effect.ticket, effect.message)

    def close(self) -> None:
        self._retire()
        tickets = [*(ticket for ticket, _ in self._waiting), *self._sealing]
        tickets += [] if self._move is None else [self._move.ticket]
        self._waiting, self._sealing, self._move = [], [], None
        gone = Refused(Refusal.NOT_READY, detail="this node does not sequence the log any more")
        for ticket in tickets:
            self._around.answer(ticket, gone)

    def explain(self) -> dict[str, object]:
        if self._sequencer is None:
            return {"state": "activating" if self._is_activating else "none"}
        return self._sequencer.explain(self._around.now_ms())


class _Stored:
    """Waits for the answer to one Store."""

    __slots__ = ("_hosted", "_node", "_sequencer", "_tag")

    def __init__(
        self, hosted: Hosted, sequencer: LogSequencer | None, node: NodeId, tag: e.Tag
    ) -> None:
        self._hosted = hosted
        self._sequencer = sequencer
        self._node = node
        self._tag = tag

    def __call__(self, answer: Answer) -> None:
        self._hosted.stored(self._sequencer, self._node, self._tag, answer)


class _Timer:
    __slots__ = ("_hosted", "_sequencer", "_tag")

    def __init__(self, hosted: Hosted, sequencer: LogSequencer | None, tag: e.Tag) -> None:
        self._hosted = hosted
        self._sequencer = sequencer
        self._tag = tag

    def __call__(self) -> None:
        self._hosted.timer_fired(self._sequencer, self._tag)


def _not_activated(result: NotMine | Failure) -> Redirected | Refused:
    """Nobody is sent to an epoch that was begun for nobody: whoever asks again begins another."""
    match result:
        case NotMine(node, epoch) if node != NO_NODE:
            return Redirected(node, epoch)
        case NotMine(_, epoch):
            return Refused(Refusal.NOT_READY, detail=f"epoch {epoch} has no sequencer yet")
        case Failure():
            detail = f"no epoch could be claimed: {result.detail}"
            return Refused(Refusal.NOT_READY, detail=detail)
