"""What a node says is heard: in answer to START, pushed, or that nothing comes from it any more.

I1  What was said on an older version is not heard.
I2  What a node pushes is taken after its answer to START, which says what its claims are worth.
"""

from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Damaged,
    Ended,
    GapFound,
    Message,
    Refused,
    Started,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading.conversation import Conversation
from millrace.core.reading.delivery import Delivery
from millrace.core.reading.effects import TellSender
from millrace.core.reading.receiving import Receiver, has_data
from millrace.core.reading.rewinds import RewindReason
from millrace.core.reading.roster import Roster
from millrace.core.reading.senders import EARLY_MESSAGES_MAX, Push, Sender, Trouble
from millrace.core.reading.slow_nodes import SlowNodes
from millrace.core.reading.validation import Misbehaviour
from millrace.core.reading.window import SlidingWindow


class Hearing:
    def __init__(
        self,
        talk: Conversation,
        receiver: Receiver,
        roster: Roster,
        slow_nodes: SlowNodes,
        delivery: Delivery,
        window: SlidingWindow,
    ) -> None:
        self.misbehaviours: dict[Misbehaviour, int] = {}
        self._talk = talk
        self._receiver = receiver
        self._roster = roster
        self._slow_nodes = slow_nodes
        self._delivery = delivery
        self._window = window

    def hear(self, sender: Sender, message: Message | Failure, now_ms: int) -> list[TellSender]:
        """What there is to say to the node at once."""
        match message:
            case Blocks() | CaughtUp() | GapFound() | Damaged() | Ended() | Started():
                wrong = self._hear_stream(sender, message, now_ms)
                return [] if wrong is None else self._cast_out(sender, wrong, now_ms)
            case Refused() if not sender.is_reading:
                self._roster.failed(sender, Trouble.REFUSED, RewindReason.REFUSED, now_ms)
            case Failure(FailureKind.CROWDED) if not sender.is_reading:
                self._roster.failed(sender, Trouble.CROWDED, None, now_ms)
            case Failure() if not sender.is_reading:
                self._roster.failed(sender, Trouble.LOST, RewindReason.SENDER_LOST, now_ms)
            case Refused() | Failure():
                pass  # The answer to a START that is answered: an older one of this version.
            case _:
                return self._cast_out(sender, Misbehaviour.STRANGER, now_ms)
        return []

    def _hear_stream(
        self, sender: Sender, message: Push | Ended | Started, now_ms: int
    ) -> Misbehaviour | None:
        if message.stream != self._talk.number or message.version > sender.version:
            return Misbehaviour.STRANGER
        if message.version < sender.version:
            return None  # Keeps I1.
        match message:
            case Started(_, _, _, is_incomplete):
                return self._started(sender, is_incomplete, now_ms)
            case Ended():
                self._roster.failed(sender, Trouble.ENDED, RewindReason.ENDED, now_ms)
                return None
            case _ if sender.is_reading:
                return self._take(sender, message, now_ms)
        if len(sender.early) >= EARLY_MESSAGES_MAX:
            return Misbehaviour.TOO_MUCH
        sender.early.append(message)  # Keeps I2.
        return None

    def _started(self, sender: Sender, is_incomplete: bool, now_ms: int) -> Misbehaviour | None:
        if sender.is_reading:
            return None
        was_incomplete = sender.is_incomplete
        sender.started(is_incomplete, now_ms)
        self._roster.started(sender)
        if not is_incomplete:
            self._roster.found_complete(sender, now_ms, was_incomplete)
        early, sender.early = sender.early, []
        for push in early:
            wrong = self._take(sender, push, now_ms)
            if wrong is not None:
                return wrong
        return None

    def _take(self, sender: Sender, push: Push, now_ms: int) -> Misbehaviour | None:
        received_before, was_incomplete = sender.received_bytes, sender.is_incomplete
        wrong = self._receiver.take(sender, push, self._window.last)
        if wrong is not None:
            return wrong
        if was_incomplete and not sender.is_incomplete:
            self._roster.found_complete(sender, now_ms, was_incomplete)
        if has_data(push):
            self._roster.sent_data(sender, self._delivery.next_lsn)
        if isinstance(push, Damaged):
            self._roster.list_down(sender.node, RewindReason.DAMAGED, now_ms)
        sent_bytes = sender.received_bytes - received_before
        self._slow_nodes.sender_passed(sender.node, sender.next_lsn, now_ms, sent_bytes)
        if not sender.has_room:
            self._slow_nodes.sender_waits(sender.node, now_ms)
        return None

    def _cast_out(self, sender: Sender, wrong: Misbehaviour, now_ms: int) -> list[TellSender]:
        self.misbehaviours[wrong] = self.misbehaviours.get(wrong, 0) + 1
        stop = self._talk.stop([sender])
        self._roster.failed(sender, Trouble.MISBEHAVED, RewindReason.MISBEHAVED, now_ms)
        return stop
