"""The producer of one connection, driven: what it pushes leaves when the connection takes it.

A session pumps when something changed, when the consumer acknowledged, and when the connection has
room again, a bounded number of bytes at a time so that others are served in between.

  I1  At most one turn is due at any time, and nothing is pushed outside of one.
  I2  After `closed` nothing is said and no view is held.  This does not wait for the end of the
      connection, which a peer that is lost can put off.
"""

from typing import Final

from millrace.core.documents.change_stream import ChangeSource
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import ConsumerNotice, ConsumerRequest, Open
from millrace.core.documents.producer import OnAck, Producer
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX
from millrace.server.partitions.surroundings import Outlet, Surroundings, Timer

TURN_BYTES: Final = 512 * 1024


class ProducerSession:
    def __init__(
        self,
        source: ChangeSource,
        around: Surroundings,
        outlet: Outlet,
        on_ack: OnAck,
        value_bytes_max: int = DOCUMENT_FRAME_BYTES_MAX,
    ) -> None:
        now_ms, now_us = around.now_ms(), around.now_us
        self.producer = Producer(source, now_ms, on_ack, now_us, value_bytes_max)
        self._around = around
        self._outlet = outlet
        self._turn: Timer | None = None
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        return self.producer.name

    def receive(self, message: ConsumerRequest | ConsumerNotice) -> None:
        answer = self.producer.handle(message, self._around.now_ms())
        if answer is not None and not isinstance(message, ConsumerNotice):
            self._outlet.answer(message, answer)
        if not isinstance(message, Open):
            self._schedule()

    def heard(self) -> None:
        """The peer answered a keep-alive."""
        self.producer.heard(self._around.now_ms())

    def changed(self, number: PartitionId) -> None:
        self.producer.changed(number)
        self._schedule()

    def writable(self) -> None:
        self._schedule()

    def close(self) -> None:
        """The peer is lost, or what it streams from is gone."""
        self.closed()
        self._outlet.close()

    def closed(self) -> None:
        """Keeps I2."""
        self._is_closed = True
        self.producer.close()
        for timer in (self._turn, self._timer):
            if timer is not None:
                timer.cancel()

    def _schedule(self) -> None:
        if self._turn is None and not self._is_closed:
            self._turn = self._around.later(0, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        now_ms = self._around.now_ms()
        if self._outlet.is_writable:
            pushes = self.producer.pump(now_ms, TURN_BYTES)
        else:
            pushes = self.producer.pump(now_ms, 0)  # Keep-alives, and views that are too old.
        if self.producer.is_lost:
            self.close()
            return
        if pushes:
            self._outlet.push(pushes)
        if self.producer.wants_to_pump and self._outlet.is_writable:
            self._schedule()
        self._set_timer(now_ms)

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.producer.next_timer_ms
        if due_ms is not None and not self._is_closed:
            self._timer = self._around.later(max(1, due_ms - now_ms), self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self._schedule()
