"""What the state machine of one partition asks its master, one question at a time; the stream that
a request opens; and the machine's timer.

  I1  Whoever asks hears of each question once: an answer, or that it failed.  Of a question that
      was given up it hears no failure.
  I2  Pushes are taken from the stream that was requested last, and from no other.
"""

import asyncio
from functools import partial
from typing import Final, Protocol

from millrace.client.changes.connection import Pushed, StreamConnection
from millrace.core.documents.consumer_effects import Ask
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import ProducerAnswer, StreamRequest
from millrace.errors import Unavailable

NO_STREAM: Final = 0  # No opaque is 0.
NO_QUESTION: Final = 0  # Nor is the number of a question.


class Ways(Protocol):
    """To the masters, and the clock."""

    def now_ms(self) -> int: ...

    def connection_of(self, partition: PartitionId) -> StreamConnection | None:
        """To the partition's master; None: not yet, and `connected` or `not_connected` of its
        questions will be called."""


class Asker(Protocol):
    def answered(self, number: int, answer: ProducerAnswer) -> None: ...

    def failed(self, detail: str) -> None:
        """The connection is gone, or there was none."""

    def ticked(self) -> None: ...


class Questions:
    def __init__(self, partition: PartitionId, asker: Asker, ways: Ways) -> None:
        self.connection: StreamConnection | None = None  # Whom was asked last.
        self._partition = partition
        self._asker = asker
        self._ways = ways
        self._loop = asyncio.get_running_loop()
        self._unsent: Ask | None = None  # It waits for a connection.
        self._asked = NO_QUESTION  # The number of the question whose answer is waited for.
        self._stream = NO_STREAM  # The opaque of its pushes.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None

    def ask(self, ask: Ask) -> None:
        self._stream, self._unsent, self._asked = NO_STREAM, None, ask.number
        connection = self.connection = self._ways.connection_of(self._partition)
        if connection is None:
            self._unsent = ask
            return
        try:
            opaque = connection.ask_now(
                ask.request,
                partial(self._answered, ask.number),
                partial(self._failed_asking, ask.number),
            )
        except Unavailable as error:
            self._failed(str(error))
            return
        if isinstance(ask.request, StreamRequest):
            self._stream = opaque

    def stop(self) -> None:
        self._give_up()
        self.wake_at(None)

    # -- What happens -------------------------------------------------------------------------

    def connected(self) -> None:
        """There may be a connection to the master by now."""
        if self._unsent is not None:
            self.ask(self._unsent)

    def not_connected(self, detail: str) -> None:
        """What waits for a connection waits for nothing."""
        if self._unsent is not None:
            self._failed(detail)

    def lost(self, connection: StreamConnection, detail: str) -> None:
        if self.connection is connection:
            self._failed(detail)

    def is_of_stream(self, connection: StreamConnection, pushed: Pushed) -> bool:
        """Keeps I2."""
        return pushed.opaque == self._stream and connection is self.connection

    def _answered(self, number: int, answer: ProducerAnswer) -> None:
        if number == self._asked:
            self._asked = NO_QUESTION
        self._asker.answered(number, answer)

    def _failed_asking(self, number: int, detail: str) -> None:
        """Keeps I1."""
        if number == self._asked:
            self._failed(detail)

    def _failed(self, detail: str) -> None:
        self._give_up()
        self._asker.failed(detail)

    def _give_up(self) -> None:
        self._unsent, self._asked = None, NO_QUESTION
        self.connection, self._stream = None, NO_STREAM

    # -- Time ---------------------------------------------------------------------------------

    def wake_at(self, due_ms: int | None) -> None:
        """Instead of when it was told before; None: not at all."""
        if due_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = due_ms
        if due_ms is not None:
            delay_ms = max(0, due_ms - self._ways.now_ms())
            self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_ms = None
        self._unsent = None
        self._asker.ticked()
