"""Whether enough nodes serve a stream for it to find every block, or to know that it is lost.

Good news is told at once, bad news after a while: a node that restarts is no reason for alarm
(logdevice 2.17).
"""

from millrace.core.reading.effects import HealthChanged


class Health:
    def __init__(self, stalled_grace_ms: int) -> None:
        self.is_healthy: bool | None = None  # None: nothing was told yet.
        self.due_ms: int | None = None
        self._grace_ms = stalled_grace_ms

    def observe(self, has_authority: bool, now_ms: int) -> list[HealthChanged]:
        """`has_authority`: those that serve are an f-majority, or all that can be."""
        if has_authority:
            self.due_ms = None
        elif self.is_healthy is not False and self.due_ms is None:
            self.due_ms = now_ms + self._grace_ms
        is_late = self.due_ms is not None and now_ms >= self.due_ms
        if self.is_healthy is has_authority or not (has_authority or is_late):
            return []
        self.is_healthy, self.due_ms = has_authority, None
        return [HealthChanged(has_authority)]
