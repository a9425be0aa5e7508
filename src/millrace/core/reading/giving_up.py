"""When the stream gives up a missing position: the decision of `gaps.py`, and the time it takes.

I1  A grace period at one position is never begun anew while it runs, whatever arrives.
I2  A loss is told after all nodes were asked once more, once for each position (second chance).
"""

from collections.abc import Collection, Sequence
from enum import Enum

from millrace.core.reading.gaps import AuthorityOf, Head, Voice, Wait, decide, is_waited_for
from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import Gap, GapKind, Lsn


class Hold(Enum):
    """What is to be done before the position is given up."""

    WAIT = "wait"
    LOOK_BEYOND = "look_beyond"
    ASK_AGAIN = "ask_again"


class GivingUp:
    def __init__(self, settings: SequencedReadSettings) -> None:
        self.due_ms: int | None = None  # The end of the grace period.
        self.wait: Wait | None = None  # Why nothing is given up, as it was decided last.
        self._settings = settings
        self._grace_at: Lsn | None = None
        self._asked_again_at: Lsn | None = None

    def decide(
        self, head: Head, voices: Sequence[Voice], authority_of: AuthorityOf, now_ms: int
    ) -> Gap | Hold:
        decision = decide(head, voices, authority_of, self._settings)
        self.wait = decision if isinstance(decision, Wait) else None
        if decision is not Wait.GRACE:
            self.due_ms = None
        match decision:
            case Wait.GRACE:
                self._begin_grace(head.next_lsn, now_ms)
                return Hold.WAIT
            case Wait.BEYOND_WINDOW:
                return Hold.LOOK_BEYOND
            case Wait():
                return Hold.WAIT
        if decision.kind is GapKind.DATALOSS and self._has_second_chance(head.next_lsn):
            self._asked_again_at = head.next_lsn
            return Hold.ASK_AGAIN
        return decision

    def forget(self) -> None:
        """There is nothing to give up, or it is to be looked at anew."""
        self.due_ms = self.wait = None

    def timer_fired(self, read_set: ReadSet, voices: Collection[Voice], now_ms: int) -> None:
        """The grace period is over: a strike for everybody who was waited for."""
        if self.due_ms is None or now_ms < self.due_ms:
            return
        self.due_ms = None
        for voice in voices:
            if is_waited_for(voice, self._settings):
                read_set.senders[voice.node].strikes += 1

    def _begin_grace(self, next_lsn: Lsn, now_ms: int) -> None:
        if self.due_ms is None or self._grace_at != next_lsn:  # Keeps I1.
            self.due_ms = now_ms + self._settings.grace_period_ms
            self._grace_at = next_lsn

    def _has_second_chance(self, next_lsn: Lsn) -> bool:
        """Without single copy delivery there is nothing that another look could mend."""
        is_on = self._settings.has_second_chance and self._settings.is_single_copy
        return is_on and self._asked_again_at != next_lsn
