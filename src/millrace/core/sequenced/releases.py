"""A storage node finds out by itself how far a log is released, when its readers wait for that.

Sequencers tell the nodes of their nodeset, once and over connections that they have.  A node that
was away, crashed before the mark was on its disk, or is of a nodeset of earlier epochs hears
nothing; what it holds up for its readers would be held up until the next append, or for ever.

  I1  Asked is only about logs that readers wait for, and less and less often while that is of no
      use: idle logs with patient readers cost next to nothing.
"""

from collections.abc import Mapping
from typing import Final

from millrace.core.epochs import EpochRecord
from millrace.core.messages import AskTail, Release, Tail
from millrace.core.procedure import DeadlinePassed, Failure, Procedure, ReadEpochs, ask
from millrace.types import NO_LSN, LogId, Lsn

LOOK_MS: Final = 500  # How often to look whether it is time to ask.
PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 30_000
ASK_TIMEOUT_MS: Final = 3_000


class _Wait:
    __slots__ = ("due_ms", "pause_ms", "released")

    def __init__(self, released: Lsn, now_ms: int) -> None:
        self.released = released
        self.pause_ms = PAUSE_MS
        self.due_ms = now_ms + PAUSE_MS


class ReleaseLookout:
    """When to ask about which log; keeps I1."""

    def __init__(self) -> None:
        self._waits: dict[LogId, _Wait] = {}

    def due(self, waiting: Mapping[LogId, Lsn], now_ms: int) -> list[LogId]:
        """`waiting` are the logs with readers that have all that is released, and up to where."""
        self._waits = {log: wait for log, wait in self._waits.items() if log in waiting}
        due: list[LogId] = []
        for log, released in waiting.items():
            wait = self._waits.get(log)
            if wait is None or wait.released != released:
                self._waits[log] = _Wait(released, now_ms)
            elif now_ms >= wait.due_ms:
                wait.pause_ms = min(2 * wait.pause_ms, PAUSE_MS_MAX)
                wait.due_ms = now_ms + wait.pause_ms
                due.append(log)
        return due


def find_release(log: LogId) -> Procedure[Release | None]:
    """As the sequencer knows it; None if it cannot be asked now."""
    try:
        read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
        if isinstance(read, Failure) or read[0] is None or not read[0].sequencer:
            return None
        answer = yield from ask(read[0].sequencer, AskTail(log), ASK_TIMEOUT_MS)
    except DeadlinePassed:
        return None
    return Release(log, answer.epoch, NO_LSN, answer.released) if isinstance(answer, Tail) else None
