"""When a node tells the committer of a log what its replicas hold, and to whom it does.

I1  At most one report is under way; what changes meanwhile goes with the next one.
I2  A node that has nothing new reports all the same from time to time, more often while a replica
    is not open: somebody has to do something about that.
I3  The committer of the newest term that was heard of is the one; nobody knows it after a failure.
"""

from typing import Final

from millrace.core.effects import AskCommitter, NodeEffect, SetStreamTimer
from millrace.core.messages import Redirected, Report, Reported, StreamReport
from millrace.core.procedure import Answer
from millrace.types import NO_NODE, Epoch, LogId, NodeId

REPORT_TIMEOUT_MS: Final = 2_000
REPORT_IDLE_MS: Final = 5_000
REPORT_UNREST_MS: Final = 200
REDIRECTS_MAX: Final = 4  # Followed at once; then there is a pause.

Reports = tuple[StreamReport, ...]


class Reporter:
    def __init__(self, log: LogId, me: NodeId) -> None:
        self.log = log
        self.committer = NO_NODE
        self.term = Epoch(0)
        self._me = me
        self._is_asking = False
        self._has_news = False
        self._told: Reports = ()
        self._is_pausing = False  # The last one failed: the next one waits for the timer.
        self._redirects = 0
        self._timer = 0  # The newest one counts.
        self._timer_ms: int | None = None
        self._has_asked = False  # Since the timer was set.

    def heard(self, committer: NodeId, term: Epoch) -> bool:
        """Whether this is the committer, as far as this node knows (I3)."""
        if term < self.term:
            return False
        self.committer, self.term = committer, term
        return True

    def look(self, reports: Reports) -> list[NodeEffect]:
        """What the replicas say now: it may be news."""
        self._has_news |= reports != self._told
        return self._go_on(reports)

    def told(self, reports: Reports) -> None:
        """The committer hears it with an answer."""
        self._told = reports
        self._has_news = False

    def answered(self, order: AskCommitter, answer: Answer, reports: Reports) -> list[NodeEffect]:
        self._is_asking = False
        match answer:
            case Reported(term):
                self.heard(order.node, term)
                self._redirects = 0
            case Redirected(node, term) if self._redirects < REDIRECTS_MAX:
                self._redirects += 1
                self._has_news = True
                self.committer, self.term = node, max(self.term, term)
            case _:
                self.committer = NO_NODE
                self._redirects = 0
                self._has_news = True
                self._is_pausing = True
        return self._go_on(reports)

    def timer_fired(self, number: int, reports: Reports) -> list[NodeEffect]:
        if number != self._timer:
            return []
        self._timer_ms = None
        self._is_pausing = False
        self._has_news |= not self._has_asked
        return self._go_on(reports)

    def _go_on(self, reports: Reports) -> list[NodeEffect]:
        if not reports:
            return []
        effects: list[NodeEffect] = []
        if self._has_news and not self._is_asking and not self._is_pausing:  # Keeps I1.
            report = Report(self.log, self.term, self._me, reports)
            self._is_asking = self._has_asked = True
            self.told(reports)
            effects.append(AskCommitter(self.log, self.committer, report, REPORT_TIMEOUT_MS))
        return [*effects, *self._set_timer(reports)]

    def _set_timer(self, reports: Reports) -> list[NodeEffect]:
        """Keeps I2."""
        is_restless = self._is_pausing or not all(each.local for each in reports)
        ms = REPORT_UNREST_MS if is_restless else REPORT_IDLE_MS
        if self._timer_ms is not None and self._timer_ms <= ms:
            return []
        self._timer += 1
        self._timer_ms = ms
        self._has_asked = self._is_asking
        return [SetStreamTimer(self.log, NO_NODE, self._timer, ms)]


def strangers(order: AskCommitter, answer: Answer) -> tuple[StreamReport, ...]:
    """What was reported of streams that the node has nothing to do with any more."""
    if not isinstance(answer, Reported):
        return ()
    return tuple(each for each in order.message.reports if each.stream in answer.strangers)
