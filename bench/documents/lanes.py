"""A client of memcached's binary protocol that costs next to nothing: the server is measured.

Requests are encoded before the clock starts, and answers are checked after it has stopped.  In
between bytes are moved: a lane is a connection, the portions of requests that it is to send, and a
window of portions that may be unanswered at once.  Every server is driven by this code.

1. Each portion has an answer whose size is known, so answers are counted by their bytes; one that
   failed has another size, and the check finds it.
2. A lane never waits for the socket to take bytes while answers could be read.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.peer import PeerFailure
from millrace.codec.memcached.binary import Frame, FrameDecoder, Response

READ_BYTES: Final = 1 << 20
SILENCE_SECONDS_MAX: Final = 20.0  # A server that says nothing for so long has failed.


@dataclass(frozen=True, slots=True)
class Portion:
    """Requests that are sent together."""

    requests: bytes
    answer_bytes: int
    documents: int  # How many are read or stored by it.


@dataclass(slots=True)
class Lane:
    """One connection and its part of the work."""

    address: str
    greeting: bytes  # Sent first, and answered before the clock starts.
    portions: Sequence[Portion]
    window: int
    answers: list[bytes] = field(default_factory=list)

    @property
    def documents(self) -> int:
        return sum(portion.documents for portion in self.portions)


class _Running:
    """A lane while the clock runs."""

    def __init__(self, lane: Lane, connection: socket.socket) -> None:
        self.lane = lane
        self.connection = connection
        self._next = 0
        self._unsent = memoryview(b"")
        self._received_bytes = 0
        ends = 0
        self._ends: list[int] = []  # Where in the answers each portion's ends.
        for portion in lane.portions:
            ends += portion.answer_bytes
            self._ends.append(ends)
        self._answered = 0

    @property
    def is_over(self) -> bool:
        return self._answered == len(self._ends)

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent)

    def write(self) -> None:
        """As much as the window and the socket allow."""
        portions = self.lane.portions
        while True:
            if not self._unsent:
                if self._next == len(portions) or self._next - self._answered >= self.lane.window:
                    return
                self._unsent = memoryview(portions[self._next].requests)
                self._next += 1
            try:
                sent = self.connection.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    def read(self) -> None:
        data = self.connection.recv(READ_BYTES)
        if not data:
            raise PeerFailure(f"{self.lane.address} closed the connection")
        self.lane.answers.append(data)
        self._received_bytes += len(data)
        ends = self._ends
        while self._answered < len(ends) and ends[self._answered] <= self._received_bytes:
            self._answered += 1


def drive(lanes: Sequence[Lane]) -> float:
    """Do the work of all lanes at once; the seconds it took.  Raises PeerFailure."""
    connections = [_connect(lane) for lane in lanes]
    try:
        running = [_Running(*pair) for pair in zip(lanes, connections, strict=True)]
        began_s = time.perf_counter()
        _run(running)
        return time.perf_counter() - began_s
    except OSError as error:
        raise PeerFailure(f"{error}") from error
    finally:
        for connection in connections:
            connection.close()


def _connect(lane: Lane) -> socket.socket:
    connection = dial(lane.address)
    greetings = len(FrameDecoder().feed(lane.greeting))
    if greetings:
        exchange(connection, lane.greeting, lambda answers: len(answers) == greetings)
    connection.setblocking(False)
    return connection


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), SILENCE_SECONDS_MAX)
    except OSError as error:
        raise PeerFailure(f"{address}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(
    connection: socket.socket, requests: bytes, is_enough: Callable[[list[Response]], bool]
) -> list[Response]:
    """The answers until there are enough of them.  Raises PeerFailure if one is no success."""
    connection.sendall(requests)
    decoder = FrameDecoder(takes_answers=True)
    answers: list[Response] = []
    while not is_enough(answers):
        data = connection.recv(READ_BYTES)
        if not data:
            raise PeerFailure("the server closed the connection")
        answers += _checked(decoder.feed(data))
    return answers


def _run(running: list[_Running]) -> None:
    with selectors.DefaultSelector() as selector:
        for each in running:
            selector.register(each.connection, selectors.EVENT_READ, each)
            each.write()
        left = sum(not each.is_over for each in running)
        while left:
            ready = selector.select(SILENCE_SECONDS_MAX)
            if not ready:
                for each in running:
                    responses(each.lane)  # Raises if one is an error, which may be shorter.
                raise PeerFailure(f"no answer within {SILENCE_SECONDS_MAX:.0f} s")
            for key, events in ready:
                found: _Running = key.data
                if events & selectors.EVENT_READ:
                    found.read()
                    left -= found.is_over
                found.write()  # Keeps 2.
                wanted = selectors.EVENT_READ
                if found.wants_to_write:
                    wanted |= selectors.EVENT_WRITE
                if wanted != key.events:
                    selector.modify(found.connection, wanted, found)


# -- Afterwards --------------------------------------------------------------------------------


def responses(lane: Lane) -> list[Response]:
    """All answers, in order.  Raises PeerFailure if one is no success."""
    decoder = FrameDecoder(takes_answers=True)
    return [response for data in lane.answers for response in _checked(decoder.feed(data))]


def _checked(frames: Sequence[Frame]) -> Iterator[Response]:
    for frame in frames:
        if not isinstance(frame, Response):
            raise PeerFailure(f"the server answered with {frame}")
        if frame.status:
            raise PeerFailure(f"the server answered with {frame.status:#x}: {frame.value!r}")
        yield frame
