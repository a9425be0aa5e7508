"""One client's connection: bytes in, commands in order, answers in order.

The connection is the asyncio protocol itself.  What arrives is decoded at once; requests are
performed in turns, and the answers of a turn leave in one write.  The first byte says which
protocol is spoken: a binary request begins with 0x80 or 0x08, which no text command does.

I1  Requests are performed in the order of arrival, and answered in it.
I2  Whatever a peer sends costs it its own connection and nobody else's: long pipelines are served
    in turns, and an error in here ends this connection alone.
I3  Memory is bounded: while answers are not taken, or too much is under way, requests are neither
    performed nor read.
I4  The last answer is followed by an end of stream, and what the peer still sends is thrown away
    for a while: otherwise the system would reset the connection, and the answer might be lost.
I5  Nothing waits for long on behalf of a peer that is gone, or may be, even while nothing is read
    from it.  What it has asked to be changed is changed all the same, up to where it ended or, if
    the connection is lost, as far as it was begun.
"""

import asyncio
import logging
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from millrace.codec.memcached.opcodes import Magic
from millrace.limits import MIB
from millrace.runtime.addresses import address_of
from millrace.server.documents.binary_commands import BinaryConversation
from millrace.server.documents.ordered_answers import OrderedAnswers, Place
from millrace.server.documents.text_commands import TextConversation
from millrace.server.documents.visitor import Answer, Exclusive, Last, Pending, Visitor

TURN_REQUESTS_MAX: Final = 256  # A few milliseconds; then others are served.
TURN_READ_BYTES: Final = 64 * 1024  # After a read of so much others are served.
TURN_WRITE_BYTES: Final = 256 * 1024  # Answers are handed to the system at this size at the latest.
WRITE_BUFFER_BYTES_HIGH: Final = 1 * MIB
LINGER_S: Final = 30.0
ENDED_WAIT_S: Final = 5.0  # A peer that has ended may still listen, or be gone: it looks the same.
HELD_BYTES_MAX: Final = 512 * MIB  # Requests that are not whole yet, of all connections together.

_ENDED: Final = getattr(select, "POLLRDHUP", 0)  # Without it a reset is seen, and no mere end.
_BINARY: Final = (int(Magic.REQUEST), int(Magic.FRAMED_REQUEST))
_log: Final = logging.getLogger(__name__)


class Conversation(Protocol):
    """A protocol's side of the connection: bytes to requests, requests to answers."""

    @property
    def held_bytes(self) -> int:
        """Of a request that is not whole yet."""

    def feed(self, data: bytes) -> Sequence[Any]:
        """The requests that are whole now."""

    def perform(self, request: Any) -> Answer: ...

    def writable(self) -> None: ...

    def closed(self) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, visitor: Visitor, on_over: Callable[["Connection"], None]) -> None:
        self._visitor = visitor
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._conversation: Conversation | None = None
        self._requests: deque[Any] = deque()
        self._answers = OrderedAnswers()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._waits: set[asyncio.Future[Any]] = set()  # Those tasks that only wait.
        self._exclusive: Exclusive | Last | None = None  # It runs, or waits for those before it.
        self._held_bytes = 0
        self._is_reading = True
        self._is_writing_paused = False
        self._is_turn_due = False
        self._is_ending = False  # The last answer is known: no more requests.
        self._has_peer_ended = False
        self._seemed_ended = False  # When it was looked at last.
        self._is_given_up = False  # It is told nothing more: an answer before is missing.
        self._watch: asyncio.TimerHandle | None = None  # While there are waits.
        self._linger: asyncio.TimerHandle | None = None
        self._is_lost = False

    # -- What asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return  # Keeps I4.
        self._visitor.counts.read_bytes += len(data)
        conversation = self._conversation
        if conversation is None:
            conversation = self._converse(data[0])
        self._requests.extend(conversation.feed(data))
        if conversation.held_bytes != self._held_bytes:
            self._hold(conversation.held_bytes)
        if not self._is_turn_due:
            self._take_turn()
            if len(data) >= TURN_READ_BYTES:
                self._rest()

    def eof_received(self) -> bool:
        """True keeps the connection open for the answers that are due."""
        self._has_peer_ended = True
        if self._is_ending:
            return False
        self._requests.append(None)
        if not self._is_turn_due:
            self._take_turn()
        return True

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Not at once: it may be called in the middle of a write."""
        self._is_writing_paused = False
        self._loop.call_soon(self._go_on)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._is_ending = True
        self._requests.clear()
        self._hold(0)
        for timer in (self._linger, self._watch):
            if timer is not None:
                timer.cancel()
        for wait in self._waits:
            wait.cancel()  # Keeps I5.
        self._look_if_over()
        if self._conversation is not None:
            self._conversation.closed()

    # -- For the producer of a change stream (StreamOutlet) -------------------------------------

    @property
    def peer(self) -> str:
        return address_of(self._transport.get_extra_info("peername"))

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def is_congested(self) -> bool:
        return self._is_writing_paused

    def write(self, frames: bytes) -> None:
        """Pushes wait for no answer that is not known yet: they carry the number of their
        stream."""
        if not self._is_ending and not self._is_given_up:
            self._write()
            self._visitor.counts.written_bytes += len(frames)
            self._transport.write(frames)

    def close(self) -> None:
        if not self._is_ending:
            self._end()

    def abort(self) -> None:
        """Now, whatever is under way."""
        self._is_ending = True
        self._requests.clear()
        for task in self._tasks:
            task.cancel()
        self._transport.abort()

    # -- Turns --------------------------------------------------------------------------------

    def _converse(self, first: int) -> Conversation:
        if first in _BINARY:
            self._conversation = BinaryConversation(self._visitor, self)
        else:
            self._conversation = TextConversation(self._visitor)
        return self._conversation

    @property
    def _is_blocked(self) -> bool:
        return (
            (self._is_writing_paused and not self._is_given_up)
            or self._is_ending
            or self._exclusive is not None
            or self._answers.is_full
        )

    def _go_on(self) -> None:
        """The network has taken enough."""
        if self._is_lost or self._is_writing_paused:
            return
        try:
            if self._conversation is not None:
                self._conversation.writable()
        except Exception:
            self._fail()
        self._take_turn()

    def _take_turn(self) -> None:
        """Perform what may be performed, and write what is known.  Keeps I2."""
        self._is_turn_due = False
        try:
            self._perform_requests()
        except Exception:
            self._fail()
            return
        self._write()
        self._pace()

    def _rest(self) -> None:
        """Read on in the loop's next turn: it hands over what has arrived in dozens of pieces at
        once, which are a tenth of a second of work when they hold many documents.  Keeps I2."""
        if self._is_reading and not self._is_turn_due and not self._transport.is_closing():
            self._is_turn_due = True
            self._loop.call_soon(self._take_turn)
            self._read(False)

    def _perform_requests(self) -> None:
        requests, answers = self._requests, self._answers
        perform = self._conversation.perform if self._conversation is not None else None
        for _ in range(TURN_REQUESTS_MAX):
            if not requests or self._is_blocked:
                return
            request = requests.popleft()
            if request is None or perform is None:  # The peer will say nothing more.
                self._postpone(Last())
                return
            answer = perform(request)
            if type(answer) is bytes:
                answers.add(answer)
                if answers.ready_bytes > TURN_WRITE_BYTES:
                    self._write()
            else:
                self._postpone(cast(Pending | Exclusive | Last, answer))

    def _write(self) -> None:
        ready = self._answers.take()
        if ready and not self._is_ending and not self._is_given_up:
            self._visitor.counts.written_bytes += len(ready)
            self._transport.write(ready)

    def _pace(self) -> None:
        """Go on later, or read again, or wait for what blocks.  Keeps I3."""
        if self._transport.is_closing():
            return
        if self._is_ending:
            self._read(True)  # To throw it away.
            return
        has_more = bool(self._requests)
        if has_more and not self._is_blocked and not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._take_turn)
        self._read(not has_more and not self._is_blocked)

    def _read(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_reading:
            self._transport.resume_reading()
        elif not is_wanted and self._is_reading:
            self._transport.pause_reading()
        self._is_reading = is_wanted

    # -- What takes longer --------------------------------------------------------------------

    def _postpone(self, answer: Pending | Exclusive | Last) -> None:
        if isinstance(answer, Pending):
            self._begin(answer)
        else:
            self._exclusive = answer
            self._begin_if_alone()

    def _begin_if_alone(self) -> None:
        """The exclusive one, if all before it are answered."""
        exclusive = self._exclusive
        if exclusive is None or self._answers.has_open_places:
            return
        if isinstance(exclusive, Exclusive):
            self._begin(Pending(exclusive.begin(), exclusive.word), is_exclusive=True)
        else:
            self._answers.add(exclusive.answer)
            self._end()

    def _begin(self, pending: Pending, is_exclusive: bool = False) -> None:
        place = self._answers.reserve(pending.request_bytes)
        task = asyncio.ensure_future(pending.work)
        self._tasks.add(task)
        if pending.is_wait:
            self._waits.add(task)
            self._watch_peer(task)
        task.add_done_callback(partial(self._settle, place, pending.word, is_exclusive))

    def _settle(
        self,
        place: Place,
        word: Callable[[Any], bytes],
        is_exclusive: bool,
        task: asyncio.Future[Any],
    ) -> None:
        self._tasks.discard(task)
        self._waits.discard(task)
        if task.cancelled() and (self._is_ending or not self._is_given_up):
            self._look_if_over()
            return
        try:
            answer = b"" if task.cancelled() else word(task.result())
        except Exception:
            self._fail()
            self._look_if_over()
            return
        self._answers.settle(place, answer)
        if self._is_lost:
            self._look_if_over()
            return
        if is_exclusive:
            self._exclusive = None
        self._begin_if_alone()
        if not self._is_turn_due:
            self._take_turn()

    # -- The end ------------------------------------------------------------------------------

    def _fail(self) -> None:
        """An error in here.  Keeps I2."""
        _log.exception("document_request_failed", extra={"fields": {"peer": self.peer}})
        self.abort()

    def _end(self) -> None:
        """All is answered.  Keeps I4."""
        self._write()
        self._is_ending = True
        self._requests.clear()
        if self._is_given_up:
            self._transport.abort()
        elif self._has_peer_ended:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def _watch_peer(self, wait: asyncio.Future[Any]) -> None:
        """Keeps I5."""
        if self._is_given_up:
            wait.cancel()
        elif self._watch is None:
            self._watch = self._loop.call_later(ENDED_WAIT_S, self._look_at_peer)

    def _look_at_peer(self) -> None:
        """If it had ended already when it was looked at last, what is behind the waits goes on
        without them.  There is an end to that: nothing more is sent."""
        self._watch = None
        if not self._waits or self._transport.is_closing():
            return
        has_ended = self._has_peer_ended or _has_ended(self._transport)
        self._is_given_up = has_ended and self._seemed_ended
        self._seemed_ended = has_ended
        for wait in self._waits:
            self._watch_peer(wait)

    def _hold(self, held_bytes: int) -> None:
        """So much of a request is here that is not whole.  Keeps I3 for all together."""
        counts = self._visitor.counts
        counts.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if counts.held_bytes > HELD_BYTES_MAX and held_bytes:
            self.abort()

    def _look_if_over(self) -> None:
        """What changes something is finished even if nobody waits for the answer: quiet changes
        count."""
        if self._is_lost and not self._tasks:
            self._on_over(self)


def _has_ended(transport: asyncio.Transport) -> bool:
    """Whether the peer has, or was cut off: what nobody reads is not told by the loop."""
    socket = transport.get_extra_info("socket")
    if socket is None:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _ENDED)
    return bool(poll.poll(0))
