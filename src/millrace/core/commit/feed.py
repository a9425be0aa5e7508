"""What a primary sends to one backup: every block of its generation, in order.

Blocks are sent ahead of the answers.  When one is not taken, those behind it are not either, so the
feed goes back to the last one that was, and after a pause sends all from there (go back N).

  I1  A block is sent again until it is taken or the generation is over: without all backups nothing
      of the stream is committed.
  I2  One pause at a time, and each is longer than the last one until something is taken.
  I3  A backup that is merely late with its opening is no trouble; one that does not answer, or
      cannot take what it is sent, is.
"""

from collections.abc import Iterable
from typing import Final

from millrace.core.effects import AskReplicate, NodeEffect, SetStreamTimer, StreamTroubled
from millrace.core.messages import Refusal, Refused, StreamBlock, StreamStored
from millrace.core.procedure import Answer, Failure
from millrace.types import LogId, Lsn, NodeId

REPLICATE_TIMEOUT_MS: Final = 2_000
RETRY_MS: Final = 10
RETRY_MS_MAX: Final = 1_000
LATE_MAX: Final = 8  # Pauses, about two seconds, that a backup has for its opening.

_LATE: Final = (Refusal.NOT_READY, Refusal.UNWRITTEN, Refusal.BUSY)


class BackupFeed:
    def __init__(self, stream_log: LogId, node: NodeId, end: Lsn) -> None:
        """The backup has all below `end`."""
        self.node = node
        self.stored_end = end
        self.trouble = ""
        self._stream_log = stream_log
        self._sent_end = end
        self._attempt = 1  # Counts the times that the feed went back.
        self._failures = 0
        self._is_pausing = False

    def send(self, blocks: Iterable[StreamBlock]) -> list[NodeEffect]:
        """Those that were not sent yet, of these, which are in order."""
        if self._is_pausing:
            return []
        due = [each for each in blocks if each.block.first >= self._sent_end]
        if due:
            self._sent_end = due[-1].block.end
        return [
            AskReplicate(self._stream_log, self.node, self._attempt, each, REPLICATE_TIMEOUT_MS)
            for each in due
        ]

    def stored(self, end: Lsn) -> None:
        """It is known to have all below."""
        self.stored_end = max(self.stored_end, end)
        self._sent_end = max(self._sent_end, end)

    def answered(self, order: AskReplicate, answer: Answer) -> list[NodeEffect]:
        if isinstance(answer, StreamStored):
            self.stored(answer.end)
            self._failures = 0
            self.trouble = ""
            return []
        if order.attempt != self._attempt:
            return []  # It was sent behind one for which the feed went back.
        self._attempt += 1
        self._failures += 1
        self._sent_end = self.stored_end
        self._is_pausing = True
        pause_ms = min(RETRY_MS << min(self._failures - 1, 16), RETRY_MS_MAX)  # Keeps I2.
        timer = SetStreamTimer(self._stream_log, self.node, self._attempt, pause_ms)
        return [timer, *self._complain(answer)]

    def resume(self, blocks: Iterable[StreamBlock]) -> list[NodeEffect]:
        self._is_pausing = False
        return self.send(blocks)

    def _complain(self, answer: Answer) -> list[NodeEffect]:
        """Keeps I3."""
        is_late = isinstance(answer, Refused) and answer.reason in _LATE
        is_late = is_late or (isinstance(answer, Failure) and answer.is_crowded)
        if self.trouble or (is_late and self._failures <= LATE_MAX):
            return []
        self.trouble = _why(answer)
        return [StreamTroubled(self._stream_log, self.node, self.trouble)]


def _why(answer: Answer) -> str:
    match answer:
        case Failure(kind, detail):
            return f"{kind.value}: {detail}"
        case Refused(reason, _, detail):
            return f"{reason.value}: {detail}"
    return f"unexpected {type(answer).__name__}"
