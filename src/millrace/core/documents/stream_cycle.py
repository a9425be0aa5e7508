"""The round that a connection makes through its partitions (R-K, R-L).

Partitions are taken in the order of their numbers.  Of each that has changes one snapshot is sent,
whole, before the next is looked at; those without are skipped at no cost, since a bit says which
may have any.  After the last one the consumer is told that a round is over, if anything was sent in
it or this is the first idle moment.

  I1  A bit that is not set means: all that may be seen of that partition was sent.  It is cleared
      before the view is taken, so a change after that sets it again.
  I2  A partition that changes while lower numbers are streamed is taken in this round: the cookies
      of barriers count on it.
"""

from typing import Final

from millrace.core.documents.barriers import Barriers
from millrace.core.documents.change_stream import ChangeStream
from millrace.core.documents.document import NO_SEQ, PartitionId, Seq
from millrace.core.documents.message_sizes import documents_bytes, message_bytes
from millrace.core.documents.messages import (
    AllPartitions,
    BarrierReached,
    Changes,
    EndReason,
    ProducerPush,
    SeqAdvanced,
    StreamEnd,
    StreamStatus,
)
from millrace.errors import Corruption

CHANGES_BYTES_MAX: Final = 256 << 10  # Of one message: large enough that its own cost is nothing.


class StreamCycle:
    def __init__(self) -> None:
        self.streams: dict[PartitionId, ChangeStream] = {}
        self.barriers = Barriers()
        self.cycles = 0  # Completed.
        self.pushed_bytes = 0
        self._ready = 0  # A bit for each partition.
        self._current: ChangeStream | None = None
        self._following = 0  # The lowest number that this round has not come to.
        self._owes_word = False  # That this round is over: something was sent in it, or begun.
        self._pushes: list[ProducerPush] = []
        self._left_bytes = 0  # Of what this pump may push.

    # -- Streams come and go ------------------------------------------------------------------

    def add(self, stream: ChangeStream) -> None:
        self.streams[stream.number] = stream
        self._ready |= 1 << stream.number
        self._owes_word = True

    def remove(self, number: PartitionId) -> bool:
        stream = self.streams.pop(number, None)
        if stream is None:
            return False
        stream.close()
        self._ready &= ~(1 << number)
        if stream is self._current:
            self._leave(number)
        return True

    def changed(self, number: PartitionId) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            stream.notice()
            self._ready |= 1 << number

    def add_barrier(self, cookie: str) -> StreamStatus:
        current = self._current
        partition = self._following - 1 if current is None else current.number
        return self.barriers.add(cookie, self.cycles, partition)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self._ready, self._current = 0, None

    # -- Pushing ------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        is_streaming = bool(self._ready) or self._current is not None
        return is_streaming or self._owes_word or bool(self.barriers) or bool(self._pushes)

    def pump(self, now_ms: int, bytes_max: int) -> list[ProducerPush]:
        """About as many bytes as may be sent."""
        self._left_bytes = bytes_max
        while self._left_bytes > 0:
            stream = self._current or self._next_stream()
            if stream is None:
                break
            self._send(stream, now_ms)
        pushes, self._pushes = self._pushes, []
        return pushes

    def close_old_views(self, now_ms: int) -> None:
        if self._current is not None:  # No other holds one.
            self._current.close_if_old(now_ms)

    @property
    def view_until_ms(self) -> int | None:
        return None if self._current is None else self._current.view_until_ms

    def _next_stream(self) -> ChangeStream | None:
        """The next one in the round that may have changes; None: nothing is left."""
        while self._ready:
            ahead = self._ready >> self._following
            if not ahead:
                self._finish_cycle()
                continue
            number = PartitionId(self._following + (ahead & -ahead).bit_length() - 1)
            self._following = number
            self._return_cookies()
            self._current = self.streams[number]
            return self._current
        self._become_idle()
        return None

    def _send(self, stream: ChangeStream, now_ms: int) -> None:
        reason = stream.end_reason()
        if reason is not None:
            self._end(stream, reason)
        elif stream.view is not None:
            self._send_changes(stream)
        elif not stream.has_news:
            # A copy in the middle of a snapshot says so when that is over.
            self._clear(stream.number)
            self._leave(stream.number)
        else:
            self._clear(stream.number)  # Keeps I1.
            marker = stream.open(now_ms)
            self._owes_word = True
            if marker is not None:
                self._push(marker)
            self._send_changes(stream)

    def _send_changes(self, stream: ChangeStream) -> None:
        try:
            documents = stream.read(min(self._left_bytes, CHANGES_BYTES_MAX))
        except Corruption:
            # Nobody else is affected; the consumer goes to another copy, or tries again.
            self._end(stream, EndReason.BACKFILL_FAILED)
            return
        if documents:
            self._pushes.append(Changes(stream.number, tuple(documents)))
            self._count(documents_bytes(documents))
        if documents is None or stream.sent >= stream.last:
            self._finish_snapshot(stream, documents[-1].seq if documents else NO_SEQ)

    def _finish_snapshot(self, stream: ChangeStream, told: Seq) -> None:
        """`told` is the seq that the consumer got last: the rest was filtered out, or purged."""
        if told < stream.last:
            self._push(SeqAdvanced(stream.number, stream.last))
        stream.sent = stream.last
        stream.close()
        if stream.end_reason() is EndReason.OK:
            self._end(stream, EndReason.OK)
        else:
            self._leave(stream.number)

    def _end(self, stream: ChangeStream, reason: EndReason) -> None:
        self._owes_word = True
        self._push(StreamEnd(stream.number, reason))
        self.remove(stream.number)

    def _leave(self, number: PartitionId) -> None:
        """The partition is finished, or skipped."""
        self._current = None
        self._following = number + 1
        self._return_cookies()

    def _finish_cycle(self) -> None:
        self.cycles += 1
        self._following = 0
        if self._owes_word:
            self._owes_word = False
            self._push(AllPartitions(self.cycles))
        self._return_cookies()

    def _become_idle(self) -> None:
        if self._owes_word:
            self._finish_cycle()
        for cookie in self.barriers.return_all():
            self._push(BarrierReached(cookie))

    def _return_cookies(self) -> None:
        if self.barriers:
            for cookie in self.barriers.reached(self.cycles, PartitionId(self._following)):
                self._push(BarrierReached(cookie))

    def _clear(self, number: PartitionId) -> None:
        self._ready &= ~(1 << number)

    def _push(self, message: ProducerPush) -> None:
        self._pushes.append(message)
        self._count(message_bytes(message))

    def _count(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        self.pushed_bytes += size_bytes
