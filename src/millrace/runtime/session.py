"""One connection between two processes: asks, answers, one-way messages, and its end.

A session is the asyncio protocol itself: between the socket and the handler stands one object
and no task, queue or future per message.  Both sides say Hello first; Ping, Pong and Goodbye are
handled here and never reach the handler.

  I1  The handler sees opened, then any number of received and writable, then closed: each session
      that was opened is closed once, and nothing is received after closed or after `close`.
  I2  Every ask is settled; every `release` that was accepted is called once (runtime/send.py).
  I3  Whatever a peer sends or fails to send costs it its own connection and nobody else's.
  I4  Memory per connection is bounded: what waits to be sent, what was asked in both directions,
      what is half received.  Asks beyond a bound wait for their turn in the memory of whoever
      asks; while answers pile up, requests are neither handled nor read.
  I5  A Goodbye is followed by an end of stream, and what the peer still sends is read and thrown
      away for a while: otherwise the system would reset the connection and the peer might never
      read why.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol, cast

from millrace.codec.frames import FrameHeader, UnknownVersion, decode, encode
from millrace.core.messages import Goodbye, Hello, Message, Ping, Pong
from millrace.errors import CorruptBlock, NotConnected, ProtocolError
from millrace.runtime.addresses import address_of
from millrace.runtime.asks import AnswerWaiter, Asks
from millrace.runtime.closing import CloseReason, mismatch
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.receive import FrameReceiver
from millrace.runtime.send import Release, SendQueue
from millrace.types import Buffer

_ids: Final = itertools.count(1)
_NOBODY: Final = Hello(version=0)


class Handler(Protocol):
    """Called on the loop, in order; must not block."""

    def opened(self, session: "Session") -> None: ...

    def received(self, session: "Session", request_id: int, message: Message) -> None:
        """`request_id` 0: one-way; otherwise `session.answer` is due."""

    def writable(self, session: "Session") -> None:
        """`is_writable` is true again."""

    def closed(self, session: "Session", reason: str) -> None:
        """`reason` is a CloseReason or the peer's code; `session.close_detail` says more."""


class _State(Enum):
    GREETING = 0  # Waiting for the peer's Hello.
    OPEN = 1
    CLOSING = 2  # Goodbye is on its way out.
    CLOSED = 3


class Session(asyncio.BufferedProtocol):
    """Made by `transport.dial` and `transport.listen`."""

    def __init__(
        self,
        hello: Hello,
        handler: Handler,
        settings: TransportSettings,
        counters: TransportCounters,
        on_lost: Callable[["Session"], None] | None = None,
    ) -> None:
        self.id = next(_ids)
        self.peer = _NOBODY
        self.address = ""
        self.is_writable = True
        self.close_code = ""
        self.close_detail = ""
        self._hello = hello
        self._handler = handler
        self._settings = settings
        self._counters = counters
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._state = _State.GREETING
        self._is_connected = False
        self._was_opened = False
        self._is_paused = False  # As the handler wishes.
        self._is_reading_paused = False
        self._is_in_callback = False
        self._has_spoken = False  # Since the peer was heard or all was sent.
        self._is_flush_due = False
        self._unanswered: set[int] = set()
        self._held: deque[tuple[int, Message]] = deque()  # Received, handled when writable.
        self._unsent_seen = (0, 0.0)  # Bytes in the transport while paused, and since when.
        self._heard_s = self._loop.time()
        self._tick_due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._receiver = FrameReceiver(self._deliver, self._refuse)
        self._transport: asyncio.Transport
        self._queue: SendQueue
        self._asks: Asks
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    @property
    def send_buffer_bytes(self) -> int:
        """What waits to be taken by the system."""
        return self._queue.waiting_bytes

    def ask(self, message: Message, timeout_ms: int) -> asyncio.Future[Message]:
        """The answer; a Refused is an answer like any other.  Waits its turn when much is asked
        already.  Raises NotConnected; the future fails with NotConnected or TooManyRequests when
        nothing was sent, with ConnectionLost or NoAnswer when the request may have been done."""
        future: asyncio.Future[Message] = self._loop.create_future()
        self.ask_for(future, message, timeout_ms)
        return future

    def ask_for(self, waiter: AnswerWaiter, message: Message, timeout_ms: int) -> None:
        """As `ask`, for somebody who needs no future.  The answer comes inside the callback that
        brought it."""
        if self._state is not _State.OPEN:
            raise NotConnected(
                f"{type(message).__name__}: connection to {self.address} is closed"
                f" ({self.close_code})"
            )
        asks = self._asks
        has_turn = self.is_writable and asks.has_room
        request_id = asks.next_id()
        buffers = encode(message, request_id)
        asks.add(request_id, type(message).__name__, timeout_ms, waiter)
        if has_turn:
            self._counters.round_trips += 1
            self._put(buffers, None)
        else:
            asks.keep_unsent(request_id, buffers)
        if self._held:
            self._read_or_pause()

    def tell(self, message: Message, release: Release | None = None) -> None:
        """Send one way.  `release` is called once, perhaps before this returns, when the bytes of
        the message's blocks are no longer needed; not if this raises.  A closed connection
        drops the message."""
        self._send(message, 0, False, release)

    def answer(self, request_id: int, message: Message, release: Release | None = None) -> None:
        """Answer a request received; `release` as in `tell`."""
        if self._state is _State.OPEN:
            assert request_id in self._unanswered, f"request {request_id} has no answer due"
            self._put(encode(message, request_id, True), release)
            self._unanswered.discard(request_id)
        elif release is not None:
            release()

    def pause_receiving(self) -> None:
        """Take nothing more from the socket.  What has already been received (at most a scratch
        buffer of small frames) is still delivered."""
        if not self._is_paused and self._state is _State.OPEN:
            self._is_paused = True
            self._read_or_pause()

    def resume_receiving(self) -> None:
        if self._is_paused and self._state is not _State.CLOSED:
            self._is_paused = False
            self._read_or_pause()

    def close(self, code: str = CloseReason.CLOSED, detail: str = "") -> None:
        """Say Goodbye, send what waits, and end.  Nothing more is received; asks fail now."""
        if self._state in (_State.CLOSING, _State.CLOSED):
            return
        self._begin_end(code, detail)
        self._state = _State.CLOSING
        self._is_paused = False
        self._read_or_pause()  # Keeps I5.
        self._put(encode(Goodbye(str(code), detail)), None)
        self._set_timer(self._settings.linger_ms / 1000, self._transport.abort)
        if not self._is_in_callback:
            self._flush()

    async def wait_greeted(self) -> None:
        """Until the session is open or has failed to open; `is_open` tells which."""
        await asyncio.shield(self._greeted)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._ended)

    def end(self, code: str, detail: str) -> None:
        """End at once, without a word: the peer would not hear it."""
        if self._state is not _State.CLOSED and self._is_connected:
            self._begin_end(code, detail)
            self._state = _State.CLOSING
            self._transport.abort()
        else:
            self._state = _State.CLOSED

    # -- Sending ------------------------------------------------------------------------------

    def _send(
        self, message: Message, request_id: int, is_answer: bool, release: Release | None
    ) -> None:
        if self._state is _State.OPEN:
            self._put(encode(message, request_id, is_answer), release)
        elif release is not None:
            release()

    def _put(self, buffers: Sequence[Buffer], release: Release | None) -> None:
        queue = self._queue
        self._counters.frames_out += 1
        if self._is_in_callback or self._is_flush_due:
            queue.put(buffers, release)
        elif not self._has_spoken:
            # What begins a conversation leaves at once, whatever follows it leaves together.  Who
            # is answered before the next frame never pays for another turn of the loop.
            self._has_spoken = True
            queue.send(buffers, release)
        else:
            queue.put(buffers, release)
            if queue.wants_flush:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)
        if queue.waiting_bytes > self._settings.send_buffer_bytes_high:
            self.is_writable = False
            if queue.waiting_bytes > self._settings.send_buffer_bytes_max:
                self.end(
                    CloseReason.SLOW_PEER, f"{queue.waiting_bytes} bytes wait for {self.address}"
                )

    def _flush(self) -> None:
        self._is_flush_due = self._has_spoken = False
        if self._state is _State.CLOSED:
            return
        self._queue.flush()
        if self._state is _State.CLOSING:
            self._end_stream_when_sent()

    def _taken(self, size: int) -> None:
        self._counters.bytes_out += size
        if self._state is _State.CLOSING:
            self._set_timer(self._settings.linger_ms / 1000, self._transport.abort)
        elif (
            not self.is_writable
            and self._queue.waiting_bytes <= self._settings.send_buffer_bytes_high // 2
        ):
            self.is_writable = True
            if self._held:
                self._loop.call_soon(self._handle_held)
            self._send_unsent()
            self._handler.writable(self)

    def _send_unsent(self) -> None:
        """Send the asks whose turn has come."""
        while self.is_writable and self._state is _State.OPEN:
            buffers = self._asks.next_unsent()
            if buffers is None:
                return
            self._counters.round_trips += 1
            self._put(buffers, None)

    def _end_stream_when_sent(self) -> None:
        if self._queue.is_empty and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_writing(self) -> None:
        self._queue.block()

    def resume_writing(self) -> None:
        # The peer's system made room: a sign of life, though no byte came from it.
        self._heard_s = self._loop.time()
        self._queue.unblock()
        if self._state is _State.CLOSING:
            self._end_stream_when_sent()

    # -- Receiving ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_connected = True
        self.address = address_of(transport.get_extra_info("peername"))
        self._queue = SendQueue(self._transport, self._taken)
        limit = self._settings.requests_in_flight_max
        self._asks = Asks(self._loop, limit, self.address, self._send_unsent)
        if self._state is _State.CLOSED:  # Whoever dialled gave up in the same instant.
            self._state = _State.GREETING
            self.end(CloseReason.CLOSED, "given up while connecting")
            return
        self._put(encode(self._hello), None)
        self._set_timer(self._settings.hello_ms / 1000, self._no_hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.next_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        self._counters.bytes_in += nbytes
        self._has_spoken = False
        # Answers given while frames are cut leave together when all are cut.
        self._is_in_callback = True
        try:
            self._receiver.received(nbytes)
        finally:
            self._is_in_callback = False
        if self._state is _State.CLOSING or self._queue.wants_flush:
            self._flush()

    def _deliver(self, header: FrameHeader, body: memoryview) -> None:
        self._counters.frames_in += 1
        try:
            message = decode(header, body)
        except (ProtocolError, CorruptBlock) as error:
            self._refuse(error)
            return
        if self._state is _State.GREETING:
            self._greet(message)
        elif header.is_answer:
            self._settle(header.request_id, message)
        elif header.request_id:
            self._request(header.request_id, message)
        else:
            self._one_way(message)

    def _settle(self, request_id: int, message: Message) -> None:
        if self._asks.settle(request_id, message):
            if self._asks.has_unsent:
                self._send_unsent()
        elif self._asks.was_issued(request_id):
            self._counters.late_answers += 1
        else:
            self.close(CloseReason.PROTOCOL, f"an answer to request {request_id}, never asked")

    def _request(self, request_id: int, message: Message) -> None:
        unanswered = self._unanswered
        if request_id in unanswered:
            self.close(CloseReason.PROTOCOL, f"request id {request_id} used twice")
            return
        if len(unanswered) >= self._settings.requests_in_flight_max:
            self.close(CloseReason.TOO_MANY_REQUESTS, f"{len(unanswered)} requests are unanswered")
            return
        unanswered.add(request_id)
        if self.is_writable and not self._held:
            self._handler.received(self, request_id, message)
        else:
            self._hold(request_id, message)

    def _hold(self, request_id: int, message: Message) -> None:
        """Answers pile up: handle no more before the peer has taken them, and read no more."""
        self._held.append((request_id, message))
        self._read_or_pause()

    def _handle_held(self) -> None:
        self._is_in_callback = True  # Answers leave together, as in `buffer_updated`.
        try:
            while self._held and self.is_writable:
                self._handler.received(self, *self._held.popleft())
            self._read_or_pause()
        finally:
            self._is_in_callback = False
        if self._state is _State.CLOSING or self._queue.wants_flush:
            self._flush()

    def _one_way(self, message: Message) -> None:
        match message:
            case Ping():
                self._send(Pong(), 0, False, None)
            case Pong():
                pass
            case Goodbye(code=code, detail=detail):
                self.end(code, detail)
            case Hello():
                self.close(CloseReason.PROTOCOL, "a second Hello")
            case _ if self._held:
                self._hold(0, message)  # It may speak of a request that is held.
            case _:
                self._handler.received(self, 0, message)

    def _read_or_pause(self) -> None:
        """While we wait for answers ourselves we read whatever we hold: so two sides that serve
        each other never wait for each other."""
        should_pause = self._is_paused or (bool(self._held) and not len(self._asks))
        if should_pause == self._is_reading_paused or self._state is _State.CLOSED:
            return
        self._is_reading_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._heard_s = self._loop.time()  # The silence was ours.
            self._transport.resume_reading()

    def _refuse(self, error: ProtocolError | CorruptBlock) -> None:
        if isinstance(error, UnknownVersion):
            self.close(CloseReason.VERSION, str(error))
        elif isinstance(error, CorruptBlock):
            self.close(CloseReason.CORRUPT_BLOCK, str(error))
        else:
            self.close(CloseReason.PROTOCOL, str(error))

    # -- Beginning, keeping alive, ending -----------------------------------------------------

    def _greet(self, message: Message) -> None:
        if isinstance(message, Goodbye):
            self.end(message.code, message.detail)
            return
        if not isinstance(message, Hello):
            self.close(CloseReason.PROTOCOL, f"{type(message).__name__} came before Hello")
            return
        self.peer = message
        refusal = mismatch(self._hello, message)
        if refusal is None:
            self._open()
        else:
            self.close(*refusal)

    def _open(self) -> None:
        self._state = _State.OPEN
        self._was_opened = True
        self._counters.connections += 1
        self._counters.connections_opened += 1
        self._next_tick(self._settings.keep_alive_ms / 1000)
        if not self._greeted.done():
            self._greeted.set_result(None)
        self._handler.opened(self)

    def _no_hello(self) -> None:
        self.close(CloseReason.NO_HELLO, f"no Hello within {self._settings.hello_ms} ms")

    def _keep_alive(self) -> None:
        now_s = self._loop.time()
        keep_alive_s = self._settings.keep_alive_ms / 1000
        silence_s = now_s - self._heard_s
        # A late timer means that this process slept, not the peer: its bytes may lie unread.
        has_slept = now_s - self._tick_due_s > keep_alive_s / 2
        if self._is_reading_paused:
            if self._held and self._takes_nothing(now_s):
                self.end(CloseReason.SLOW_PEER, f"{self.address} takes none of its answers")
                return
            # Unread Pings of the peer would make us look dead: give a sign of life unasked.
            self._send(Pong(), 0, False, None)
        elif silence_s >= self._settings.dead_peer_ms / 1000 and not has_slept:
            self.end(CloseReason.DEAD_PEER, f"not a byte for {silence_s:.1f} s")
            return
        elif silence_s >= keep_alive_s:
            self._send(Ping(), 0, False, None)
        else:
            self._next_tick(keep_alive_s - silence_s)
            return
        self._next_tick(keep_alive_s)

    def _takes_nothing(self, now_s: float) -> bool:
        """Whether the peer has taken no byte for so long that it counts as dead."""
        unsent_bytes, since_s = self._unsent_seen
        left_bytes = self._transport.get_write_buffer_size()
        if left_bytes != unsent_bytes or self._heard_s > since_s:
            self._unsent_seen = (left_bytes, now_s)
            return False
        return now_s - since_s >= self._settings.dead_peer_ms / 1000

    def _next_tick(self, delay_s: float) -> None:
        self._tick_due_s = self._loop.time() + delay_s
        self._set_timer(delay_s, self._keep_alive)

    def _begin_end(self, code: str, detail: str) -> None:
        if not self.close_code:
            self.close_code, self.close_detail = str(code), detail
        self._receiver.discard()
        self._asks.fail_all(self.close_code)
        self._unanswered.clear()
        self._held.clear()

    def eof_received(self) -> bool:
        self.end(CloseReason.PEER_CLOSED, "the peer ended the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._begin_end(CloseReason.LOST, str(exc) if exc else "")
        self._state = _State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        self._queue.drop()
        self._counters.count_close(self.close_code)
        for future in (self._greeted, self._ended):
            if not future.done():
                future.set_result(None)
        if self._on_lost is not None:
            self._on_lost(self)
        if self._was_opened:
            self._counters.connections -= 1
            self._handler.closed(self, self.close_code)

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, callback)
