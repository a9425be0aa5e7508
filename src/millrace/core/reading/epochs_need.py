"""Asking for the epochs of the log, and asking again when the answer did not help."""

from millrace.core.reading.effects import NeedEpochs
from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import Epoch


class EpochsNeed:
    """One question at a time, with pauses that double, within bounds."""

    def __init__(self, settings: SequencedReadSettings) -> None:
        self.due_ms: int | None = None  # When it is time to ask again.
        self.is_overtaken = False  # Statuses were heard while the question was under way.
        self._settings = settings
        self._is_asked = False
        self._pause_ms = settings.epochs_retry_ms_min

    def ask(self, epoch: Epoch) -> list[NeedEpochs]:
        if self._is_asked or self.due_ms is not None:
            return []
        self._is_asked = True
        self.is_overtaken = False
        return [NeedEpochs(epoch)]

    def ask_again(self, epoch: Epoch) -> list[NeedEpochs]:
        """At once: the answer is older than what was heard meanwhile."""
        self._is_asked = False
        return self.ask(epoch)

    def heard_statuses(self) -> None:
        """They came by themselves."""
        self.is_overtaken = self._is_asked

    def answered(self, is_news: bool) -> None:
        """It is known where the next blocks lie."""
        self._is_asked = False
        self.due_ms = None
        if is_news:
            self._pause_ms = self._settings.epochs_retry_ms_min

    def not_answered(self, now_ms: int) -> None:
        """There was no answer, or one that is too old."""
        self._is_asked = False
        self.due_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._settings.epochs_retry_ms_max)

    def look_again(self, now_ms: int) -> None:
        """What is known will not do for long."""
        if not self._is_asked and self.due_ms is None:
            self.not_answered(now_ms)

    def hasten(self) -> None:
        """There is news, so the next question need not wait."""
        self.due_ms = None

    def timer_fired(self, now_ms: int) -> bool:
        """Whether it is time to ask again."""
        is_due = self.due_ms is not None and now_ms >= self.due_ms
        if is_due:
            self.due_ms = None
        return is_due
