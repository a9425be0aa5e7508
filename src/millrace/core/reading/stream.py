"""One reader of one sequenced log: answers of many nodes in, one sequence of blocks and gaps out.

Nodes are asked with START, send blocks and claims, and are told with WINDOW how far they may go on
(seed 003).  In the steady state one node sends each block (single copy delivery, seed 000).  When
a node fails, others are told to send in its place; when nobody is left to send a position, all
nodes send all they have, until the window slides.  Every such change is a rewind: START again,
with a new version.

Invariants (logdevice, section 8); in brackets the module that keeps one:

  I1   Blocks and gaps tile [first, end), in order (`delivery.py`).
  I2   No block that a node can send is covered by a gap, but for TRIM and what a recovery wrote.
  I3   No DATALOSS before an f-majority has spoken; who is UNAVAILABLE is waited for (`gaps.py`).
  I4   In the steady state each block is received once; with fewer nodes down than a block has
       copies, reading goes on.
  I5   Slow nodes never fill up a copyset together with those that are down (`slow_nodes.py`).
  I6   Versions only go up, and nothing of an old one is handed over; nor does the position go back.
  I7   Nothing that was not released is handed over, as nodes send no such thing, and nothing below
       the trim point (`delivery.py`).
  I8   Whatever the stream waits for has a name, which `explain` tells (`explaining.py`).
  I9   A failure that lasts causes a constant number of rewinds (`rewinds.py`).
  I10  All holders of a block agree on who ships it (`core/shipping.py`); one that breaks the rules
       of the stream is taken for a node that is down (`validation.py`).

`now_ms` comes with every event and never goes back.  There is one timer; it may fire early or late.
A driver passes on an answer to START (Started, Refused, Failure) only while that START
`is_current`.
"""

from collections.abc import Callable

from millrace.core.epochs import EpochRange
from millrace.core.messages import Message
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading import failover
from millrace.core.reading.conversation import Conversation, Reader
from millrace.core.reading.credit import Credit
from millrace.core.reading.delivery import Delivery
from millrace.core.reading.effects import (
    DeliverGap,
    Fail,
    FailReason,
    Finish,
    SequencedReadEffect,
    SetTimer,
)
from millrace.core.reading.epochs_need import EpochsNeed
from millrace.core.reading.explaining import WaitsFor, describe, missing_nodes, reading_waits_for
from millrace.core.reading.gaps import Head, Voice
from millrace.core.reading.giving_up import GivingUp, Hold
from millrace.core.reading.health import Health
from millrace.core.reading.hearing import Hearing
from millrace.core.reading.lists import Lists
from millrace.core.reading.progress import ProgressClock
from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.receiving import Receiver
from millrace.core.reading.rewinds import RewindReason, RewindSchedule
from millrace.core.reading.roster import Roster
from millrace.core.reading.senders import Sender, SenderState, Trouble
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.slow_nodes import SlowNodes
from millrace.core.reading.validation import Rules
from millrace.core.reading.window import SlidingWindow
from millrace.core.replication import Locations
from millrace.core.statuses import Statuses
from millrace.lsn import epoch_of, offset_of, show
from millrace.types import AuthoritativeStatus, Epoch, GapKind, LogId, Lsn, NodeId, Selection

Effects = list[SequencedReadEffect]


def no_jitter(_: int) -> int:
    return 0


class SequencedReadStream:
    """`seed` is that of the client's session, for SHUFFLED_PER_CLIENT; `location` the reader's;
    `draw(n)` gives a random number from 0 to n-1.  `is_dense`: positions have no epochs in them (a
    commit log).  The parts are there for tests and `explain`."""

    def __init__(
        self,
        log: LogId,
        number: int,
        first: Lsn,
        end: Lsn,
        settings: SequencedReadSettings | None = None,
        selection: Selection | None = None,
        seed: int = 0,
        location: str = "",
        draw: Callable[[int], int] = no_jitter,
        is_dense: bool = False,
    ) -> None:
        assert 0 < first <= end
        settings = settings or SequencedReadSettings()
        self.log = log
        self.number = number
        self.is_over = False
        self.read_set = ReadSet(settings)
        self.lists = Lists(settings.is_single_copy)
        self.credit = Credit(settings)
        self._is_dense = is_dense
        self.delivery = Delivery(first, end, self.credit, is_dense)
        self.window = SlidingWindow(first, end, settings)
        self.rewinds = RewindSchedule(settings)
        self.slow_nodes = SlowNodes(1, draw, settings.slow_nodes)
        self.giving_up = GivingUp(settings)
        self.progress = ProgressClock(settings)
        self.health = Health(settings.stalled_grace_ms)
        self.epochs_need = EpochsNeed(settings)
        self.roster = Roster(self.read_set, self.lists, self.rewinds)
        reader = Reader(log, number, selection, seed, location)
        self._talk = Conversation(
            reader, settings, self.read_set, self.lists, self.delivery, self.window, self.credit
        )
        self.receiver = Receiver(Rules(log, end, selection is not None, is_dense), self.delivery)
        self.hearing = Hearing(
            self._talk, self.receiver, self.roster, self.slow_nodes, self.delivery, self.window
        )
        self._timer_ms: int | None = None  # When the timer is due that was set last.
        self._looked_up_at: Lsn | None = None  # A gap for which it was asked where epochs lie.

    @property
    def version(self) -> int:
        """Of the last rewind."""
        return self._talk.version

    def is_current(self, node: NodeId, version: int) -> bool:
        """Whether an answer of the node to START of this version still means something."""
        sender = self._connected(node)
        return sender is not None and sender.version == version

    @property
    def next_lsn(self) -> Lsn:
        return self.delivery.next_lsn

    def explain(self) -> dict[str, object]:
        """Why the stream is where it is (I8)."""
        lists, read_set, next_lsn = self.lists, self.read_set, self.next_lsn
        missing = [] if self.is_over else missing_nodes(read_set, lists, next_lsn)
        return {
            "log": self.log,
            "next_lsn": show(next_lsn),
            "end": show(self.delivery.end),
            "window_last": show(self.window.last),
            "waits_for": self._waits_for().value,
            "waits_for_nodes": missing,
            "mode": lists.mode.value,
            "down": sorted(lists.down),
            "slow": sorted(lists.slow),
            "nodes": {
                n: describe(s, read_set, lists, next_lsn) for n, s in read_set.senders.items()
            },
            "version": self.version,
            "rewinds": {reason.value: count for reason, count in self.rewinds.counts.items()},
            "rewind_pending": [reason.value for reason in self.rewinds.reasons],
            "is_healthy": self.health.is_healthy,
            "stalled_since_ms": self.progress.stalled_since_ms,
            "bytes_not_taken": self.credit.untaken_bytes,
            "blocks_waiting": len(self.delivery.buffer),
            "misbehaved": {wrong.value: n for wrong, n in self.hearing.misbehaviours.items()},
        }

    def _waits_for(self) -> WaitsFor:
        if self.is_over:
            return WaitsFor.NOTHING
        if not self.read_set.holds(self.next_lsn):
            return WaitsFor.EPOCHS
        if self.rewinds.is_pending:
            return WaitsFor.REWIND
        if self.credit.has_untaken:
            return WaitsFor.APPLICATION
        return reading_waits_for(self.read_set, self.lists, self.next_lsn, self.giving_up.wait)

    # -- Events -------------------------------------------------------------------------------

    def open(self, now_ms: int) -> Effects:
        return self._go_on(now_ms)

    def epochs_known(
        self,
        ranges: tuple[EpochRange, ...],
        released_epoch: Epoch,
        locations: Locations,
        statuses: Statuses,
        now_ms: int,
        clean: Epoch | None = None,
    ) -> Effects:
        """An answer to NeedEpochs; `released_epoch` is that of what was released when it was
        asked, and epochs up to `clean` had ended: if it is not said, all before that.  Whoever is
        empty by these statuses was so before the ranges were read; statuses that came by
        themselves meanwhile are newer than these."""
        if self.is_over:
            return []
        is_overtaken = self.epochs_need.is_overtaken
        if is_overtaken and self.read_set.is_outdated(ranges, statuses):
            return list(self.epochs_need.ask_again(epoch_of(self.next_lsn)))
        ended = Epoch(max(0, released_epoch - 1)) if clean is None else clean
        is_news = self.read_set.learn(ranges, released_epoch, locations, ended)
        if self.read_set.knows(self.next_lsn):
            self.epochs_need.answered(is_news)
        else:
            self.epochs_need.not_answered(now_ms)
        if not is_overtaken:
            self.roster.statuses_changed(statuses, now_ms)
        return self._go_on(now_ms)

    def epochs_failed(self, failure: Failure, now_ms: int) -> Effects:
        """There is no answer to NeedEpochs."""
        if self.is_over:
            return []
        if failure.kind is FailureKind.UNKNOWN_LOG:
            return self._end_with(Fail(FailReason.UNKNOWN_LOG, self.next_lsn))
        self.epochs_need.not_answered(now_ms)
        return self._go_on(now_ms)

    def statuses_changed(self, statuses: Statuses, now_ms: int) -> Effects:
        """They were heard, in the order in which they came to be."""
        if self.is_over:
            return []
        self.epochs_need.heard_statuses()
        emptied = self.roster.statuses_changed(statuses, now_ms)
        if self.read_set.needs(emptied):
            self.read_set.doubt()
            self.epochs_need.hasten()
        return self._go_on(now_ms)

    def arrived(self, node: NodeId, message: Message | Failure, now_ms: int) -> Effects:
        """Something from `node`, in answer to START or pushed."""
        sender = self._connected(node)
        if sender is None:
            return []
        return [*self.hearing.hear(sender, message, now_ms), *self._go_on(now_ms)]

    def lost(self, node: NodeId, now_ms: int) -> Effects:
        """The connection to `node` broke."""
        sender = self._connected(node)
        if sender is None:
            return []
        self.roster.failed(sender, Trouble.LOST, RewindReason.SENDER_LOST, now_ms)
        return self._go_on(now_ms)

    def took(self, size_bytes: int, now_ms: int) -> Effects:
        """The application took so much of what was delivered (`credit_bytes` of each block)."""
        self.credit.took(size_bytes)
        if self.is_over:
            return []
        effects: Effects = list(self._talk.widen())
        if self.credit.has_untaken:
            return effects
        # From here on it is the nodes that are waited for.
        return effects + self._observe(now_ms) + self._set_timer(now_ms)

    def memory_pressure(self, is_high: bool) -> None:
        """The window shrinks, or grows again, as it slides."""
        self.window.has_memory_pressure = is_high

    def timer_fired(self, now_ms: int) -> Effects:
        self._timer_ms = None
        if self.is_over:
            return []
        effects = self._rewind_if_due(now_ms)
        for sender in self.read_set.senders.values():
            if sender.due_ms is not None and now_ms >= sender.due_ms:
                effects += self._sender_due(sender, now_ms)
        self.giving_up.timer_fired(self.read_set, self._voices(), now_ms)
        if self.epochs_need.timer_fired(now_ms) and self.read_set.is_deserted:
            effects += self.epochs_need.ask(epoch_of(self.next_lsn))
        self.roster.end_stall(self.progress, self.next_lsn, now_ms)
        return effects + self._go_on(now_ms)

    def stop(self) -> Effects:
        return [] if self.is_over else self._end_with(Finish())

    def _connected(self, node: NodeId) -> Sender | None:
        sender = self.read_set.senders.get(node)
        is_heard = sender is not None and sender.is_connected and not self.is_over
        return sender if is_heard else None

    # -- Going on -----------------------------------------------------------------------------

    def _go_on(self, now_ms: int) -> Effects:
        """All that follows from what has just happened."""
        effects = self._deliver(now_ms)
        if self.is_over:
            return effects
        if self.read_set.holds(self.next_lsn):
            if self.window.is_due(self.next_lsn, self.delivery.bytes_delivered):
                self._slide(now_ms)
            self.roster.head_is_missing(self.next_lsn, now_ms)
            self._judge_slow(now_ms)
            if self.read_set.is_deserted:
                self.epochs_need.look_again(now_ms)
        effects += self._talk.widen()
        effects += self._observe(now_ms)
        return effects + self._set_timer(now_ms)

    def _deliver(self, now_ms: int) -> Effects:
        effects: Effects = []
        while True:
            effects += self.delivery.take()
            if self.delivery.is_done:
                return effects + self._end_with(Finish())
            if not self.read_set.holds(self.next_lsn):
                effects += self._enter_epoch(now_ms)
            gap = self._pass_begin_of_epoch() or self._give_up(now_ms)
            if gap is None:
                is_doubted = not self.read_set.holds(self.next_lsn)
                return effects + (self._enter_epoch(now_ms) if is_doubted else [])
            effects.append(gap)

    def _enter_epoch(self, now_ms: int) -> Effects:
        """Epochs of another nodeset begin, or such whose nodeset is not known yet."""
        leaving, joining = self.read_set.enter(self.next_lsn)
        current = self.read_set.current
        if current is None:
            return list(self.epochs_need.ask(epoch_of(self.next_lsn)))
        self.slow_nodes.copies_changed(current.replication.copies, now_ms)
        if self._looked_up_at == self.next_lsn and not (leaving or joining):
            return []  # It lies where it was sought.
        if self.version:
            self.roster.nodeset_changed(now_ms)
            self._slide(now_ms)
        else:
            self._talk.next_version()
            self.roster.begin()
            self.window.place(self.next_lsn, self.read_set.limit(self.delivery.end))
        stops = self._talk.stop(leaving)
        return [*stops, *(self._talk.start(sender, now_ms) for sender in joining)]

    def _pass_begin_of_epoch(self) -> DeliverGap | None:
        """No block ever lies at offset 0: one node that has passed it is enough."""
        next_lsn = self.next_lsn
        if self._is_dense or offset_of(next_lsn) or not self.read_set.holds(next_lsn):
            return None
        if not any(sender.next_lsn > next_lsn for sender in self.read_set.senders.values()):
            return None
        return self.delivery.give_up(GapKind.BRIDGE, Lsn(next_lsn + 1))

    def _give_up(self, now_ms: int) -> DeliverGap | None:
        """The gap that is next, if it is sure that there is one."""
        is_deciding = not self.lists.is_single_copy and not self.rewinds.is_pending
        if not is_deciding or not self.read_set.holds(self.next_lsn):
            self.giving_up.forget()
            return None
        head = self._head()
        decision = self.giving_up.decide(head, self._voices(), self.read_set.authority_of, now_ms)
        match decision:
            case Hold.WAIT:
                return None
            case Hold.LOOK_BEYOND:
                self.window.open_to(head.limit)
                return None
            case Hold.ASK_AGAIN:
                self.rewinds.schedule(RewindReason.SECOND_CHANCE, now_ms)
                return None
            case gap if gap.kind is not GapKind.TRIM and self._may_lie_elsewhere():
                self.read_set.doubt()
                return None
            case gap:
                return self.delivery.give_up(gap.kind, Lsn(gap.last + 1))

    def _may_lie_elsewhere(self) -> bool:
        """Keeps I5 of `read_set.py`: it is asked once for each position."""
        if self._is_dense or self._looked_up_at == self.next_lsn:
            return False
        self._looked_up_at = self.next_lsn
        return self.read_set.may_have_grown(self.next_lsn)

    def _head(self) -> Head:
        waiting = self.delivery.buffer.first
        return Head(
            self.next_lsn,
            None if waiting is None else waiting.first,
            self.read_set.limit(self.delivery.end),
            self.read_set.has_later_epochs,
            self.next_lsn == self.delivery.first,
            self._is_dense,
        )

    def _voices(self) -> list[Voice]:
        return [
            Voice(
                node,
                sender.gap_state(self.next_lsn),
                sender.next_lsn,
                self.read_set.status_of(sender),
                sender.strikes,
                sender.is_at_window_end,
            )
            for node, sender in self.read_set.senders.items()
        ]

    def _slide(self, now_ms: int) -> None:
        passed = self.next_lsn - self.window.first
        limit = self.read_set.limit(self.delivery.end)
        self.window.slide(self.next_lsn, self.delivery.bytes_delivered, limit)
        self.roster.window_slid(now_ms)
        if self.lists.is_single_copy:
            # As far ahead as was just read: the whole window may be more than the credit allows.
            measured = min(Lsn(self.next_lsn + passed), self.window.last)
            self.slow_nodes.window_slid(measured, now_ms, self.read_set.senders)

    def _judge_slow(self, now_ms: int) -> None:
        """A node is slow only while the reader waits for it, and not for its own application."""
        if not self.lists.is_single_copy or self.rewinds.is_pending:
            return
        found = self.slow_nodes.slow(now_ms) & self.read_set.senders.keys()
        is_hungry = not self.credit.has_untaken
        blocking = {
            node
            for node in found - self.lists.slow
            if is_hungry and self.read_set.senders[node].next_lsn <= self.next_lsn
        }
        self.roster.found_slow(found & self.lists.slow | blocking, now_ms)

    def _observe(self, now_ms: int) -> Effects:
        senders, listed = self.read_set.senders, self.lists.listed
        is_stalled = (
            self.read_set.holds(self.next_lsn)
            and not self.rewinds.is_pending
            and not self.credit.has_untaken
            and failover.is_stalled(senders.values(), listed, self.next_lsn)
        )
        self.progress.observe(self.next_lsn, is_stalled, now_ms)
        return list(self.health.observe(self.read_set.is_served, now_ms))

    # -- Time ---------------------------------------------------------------------------------

    def _rewind_if_due(self, now_ms: int) -> Effects:
        due_ms = self.rewinds.due_ms
        if due_ms is None or now_ms < due_ms or not self.read_set.holds(self.next_lsn):
            return []
        if not self.rewinds.take(self.lists.has_changes, now_ms):
            return []
        self.lists.apply()
        self._talk.next_version()
        self.delivery.buffer.clear()
        self.giving_up.forget()
        self.window.place(self.next_lsn, self.read_set.limit(self.delivery.end))
        self.slow_nodes.rewound()
        self.slow_nodes.down_changed(self._down_with_copies(), now_ms)
        return self._start_all(now_ms)

    def _start_all(self, now_ms: int) -> Effects:
        """Those that are down and wait to be asked again go on waiting; but when all send all,
        nobody is passed over."""
        effects: Effects = []
        for sender in self.read_set.senders.values():
            if sender.is_connected or not self.lists.is_single_copy:
                effects.append(self._talk.start(sender, now_ms))
            else:
                sender.forget_claims(self.next_lsn)
        return effects

    def _down_with_copies(self) -> list[NodeId]:
        empty = AuthoritativeStatus.AUTHORITATIVE_EMPTY
        senders = self.read_set.senders
        return [n for n in self.lists.down if self.read_set.status_of(senders[n]) is not empty]

    def _sender_due(self, sender: Sender, now_ms: int) -> Effects:
        if sender.state is SenderState.START_SENT:
            stop = self._talk.stop([sender])
            self.roster.failed(sender, Trouble.SILENT, RewindReason.STARTED_TIMEOUT, now_ms)
            return list(stop)
        return [self._talk.start(sender, now_ms)]

    def _set_timer(self, now_ms: int) -> Effects:
        """One that is set and fires too early does no harm, so it is only set to be earlier."""
        due_ms = min(self._dues(now_ms), default=None)
        is_set = self._timer_ms is not None and due_ms is not None and self._timer_ms <= due_ms
        if due_ms is None or is_set:
            return []
        self._timer_ms = due_ms
        return [SetTimer(max(0, due_ms - now_ms))]

    def _dues(self, now_ms: int) -> list[int]:
        dues = [sender.due_ms for sender in self.read_set.senders.values()]
        dues += [self.giving_up.due_ms, self.epochs_need.due_ms, self.health.due_ms]
        if self.read_set.holds(self.next_lsn):
            dues.append(self.rewinds.due_ms)
            if self.lists.is_single_copy and not self.rewinds.is_pending:
                dues.append(self.progress.due_ms)
                check_ms = self.slow_nodes.next_check_ms(now_ms)
                dues.append(None if check_ms is None else now_ms + check_ms)
        return [due_ms for due_ms in dues if due_ms is not None]

    def _end_with(self, last: Finish | Fail) -> Effects:
        self.is_over = True
        stops = self._talk.stop(self.read_set.senders.values())
        self.delivery.buffer.clear()
        return [*stops, last]
