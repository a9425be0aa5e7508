"""How long the keeper leaves a log alone after a step that failed.

Only a few steps run at a time.  Without a pause, logs that cannot be helped just now would take
the places in every round, and those that can be helped would never get one.

I1  A log's pause doubles with each failure in a row, up to a bound; a success forgets it.
I2  A node that came or went is news for every log: all of them may be tried again.
"""

from millrace.types import LogId, NodeId

PAUSE_S = 1.0
PAUSE_S_MAX = 15.0


class Backoff:
    def __init__(self) -> None:
        self._pauses: dict[LogId, tuple[float, float]] = {}  # Until when, and how long it was.
        self._live: frozenset[NodeId] = frozenset()

    def is_resting(self, log: LogId, now_s: float) -> bool:
        pause = self._pauses.get(log)
        return pause is not None and now_s < pause[0]

    def failed(self, log: LogId, now_s: float) -> None:
        _, before_s = self._pauses.get(log, (0.0, 0.0))
        pause_s = min(2 * before_s, PAUSE_S_MAX) or PAUSE_S
        self._pauses[log] = (now_s + pause_s, pause_s)

    def succeeded(self, log: LogId) -> None:
        self._pauses.pop(log, None)

    def look(self, live: frozenset[NodeId], logs: set[LogId]) -> None:
        """Take note of who is alive and which logs there are."""
        if live != self._live:
            self._live = live
            self._pauses.clear()
        for log in self._pauses.keys() - logs:
            del self._pauses[log]
