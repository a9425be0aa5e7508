"""The blocks of one log that were sent and have no outcome yet, so that closing need not wait for
those that never will have one.

Stands between the batcher and the log's path.  A block whose log lost too many nodes is tried until
the time of its append is up, which may be long after its application wants to end.

  I1  Whoever waits for a block is told once: its outcome, or that it was given up.
  I2  A block that was given up has been sent: its outcome is unknown.  One that comes after that is
      not sent, and definitely not appended.
"""

from functools import partial

from millrace.client.batch import SendBlock
from millrace.client.outcomes import BlockAppend, UnknownAppend
from millrace.codec.drafts import Draft
from millrace.core.append import Appended, AppendOutcome, NotAppended, NotAppendedReason
from millrace.core.procedure import Procedure
from millrace.errors import AppendFailed
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack


class OpenAppends:
    def __init__(self, log_name: str) -> None:
        self._log_name = log_name
        self._open: set[_Told] = set()
        self._is_closed = False

    def watched(self, send: SendBlock) -> SendBlock:
        """The same, known here until it has its outcome."""
        return partial(self._send, send)

    def give_up(self) -> None:
        """Nobody waits any longer."""
        self._is_closed = True
        for told in list(self._open):
            assert told.block is not None
            told.set_exception(
                UnknownAppend(
                    f"log {self._log_name!r}: the client was closed while the append was under "
                    "way, which may or may not have happened: read the log to find out",
                    told.block,
                    0,
                    told.block.count,
                )
            )

    def _send(
        self, send: SendBlock, draft: Draft, ack: Ack, timeout_ms: int, waiter: Waiter[Appended]
    ) -> BlockAppend:
        if self._is_closed:  # Keeps I2.
            detail = "the client was closed before it was sent"
            waiter.set_exception(AppendFailed(f"log {self._log_name!r}: not appended: {detail}"))
            return BlockAppend(partial(_never_sent, detail), draft.count)
        told = _Told(self._open, waiter)
        self._open.add(told)
        told.block = send(draft, ack, timeout_ms, told)
        return told.block


def _never_sent(detail: str) -> Procedure[AppendOutcome]:
    yield from ()  # It asks nobody.
    return NotAppended(NotAppendedReason.UNAVAILABLE, detail)


class _Told:
    """Is told the outcome of a block, and tells its waiter the first that it hears (I1)."""

    __slots__ = ("_open", "_waiter", "block")

    def __init__(self, among: "set[_Told]", waiter: Waiter[Appended]) -> None:
        self._open = among
        self._waiter = waiter
        self.block: BlockAppend | None = None  # None: it is just being sent.

    def set_result(self, appended: Appended) -> None:
        if self in self._open:
            self._open.discard(self)
            self._waiter.set_result(appended)

    def set_exception(self, error: Exception) -> None:
        if self in self._open:
            self._open.discard(self)
            self._waiter.set_exception(error)
