"""How long a stream has made no progress although it should.

At the tail of a log nothing is expected, and no clock runs.  A stream is stalled when somebody has
passed the position that is next, or a node that could send has not said anything yet; and when the
application has taken what it was given, for a node waits for its credit with good reason.

  I1  A stall is acted on after `scd_timeout_ms`, and as the last resort, even where it should not
      be needed (logdevice 2.25), after `all_send_all_timeout_ms`; then again after as long.
"""

from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import NO_LSN, Lsn


class ProgressClock:
    def __init__(self, settings: SequencedReadSettings) -> None:
        self._settings = settings
        self._next_lsn = NO_LSN
        self._stalled_since_ms: int | None = None
        self._looked_ms = 0
        self._tried_ms = 0

    @property
    def stalled_since_ms(self) -> int | None:
        return self._stalled_since_ms

    def observe(self, next_lsn: Lsn, is_stalled: bool, now_ms: int) -> None:
        if not is_stalled:
            self._stalled_since_ms = None
        elif self._stalled_since_ms is None or next_lsn != self._next_lsn:
            self._stalled_since_ms = self._looked_ms = self._tried_ms = now_ms
        self._next_lsn = next_lsn

    @property
    def due_ms(self) -> int | None:
        """When there is something to do about it."""
        if self._stalled_since_ms is None:
            return None
        return min(self._silence_due_ms, self._last_resort_due_ms)

    def is_silence_due(self, now_ms: int) -> bool:
        """Nodes that say nothing are to be given up."""
        return self._stalled_since_ms is not None and now_ms >= self._silence_due_ms

    def is_last_resort_due(self, now_ms: int) -> bool:
        return self._stalled_since_ms is not None and now_ms >= self._last_resort_due_ms

    def looked_for_silent(self, now_ms: int) -> None:
        self._looked_ms = now_ms

    def tried_last_resort(self, now_ms: int) -> None:
        self._tried_ms = now_ms

    @property
    def _silence_due_ms(self) -> int:
        return self._looked_ms + self._settings.scd_timeout_ms

    @property
    def _last_resort_due_ms(self) -> int:
        return self._tried_ms + self._settings.all_send_all_timeout_ms
