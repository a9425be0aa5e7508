"""Answers leave a connection in the order of its requests, though some are known later.

A request that another node carries out, or that waits for durability, keeps a place.  What is
answered behind it is held back until it is known.

I1  Answers leave in the order in which their places were taken.
I2  `is_full` is true when so much waits that no more requests should be taken: the connection's
    memory is bounded by it and one request more.
"""

from collections import deque
from typing import Final

PLACES_MAX: Final = 256
HELD_BYTES_MAX: Final = 8 << 20  # Requests that are under way, and answers behind them.


class Place:
    """Where an answer will stand; `behind` are those that are known and must wait for it."""

    __slots__ = ("answer", "behind", "request_bytes")

    def __init__(self, request_bytes: int) -> None:
        self.answer: bytes | None = None
        self.behind: list[bytes] = []
        self.request_bytes = request_bytes


class OrderedAnswers:
    def __init__(self) -> None:
        self._places: deque[Place] = deque()
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._held_bytes = 0

    @property
    def has_open_places(self) -> bool:
        return bool(self._places)

    @property
    def is_full(self) -> bool:
        return len(self._places) >= PLACES_MAX or self._held_bytes >= HELD_BYTES_MAX

    @property
    def ready_bytes(self) -> int:
        return self._ready_bytes

    def add(self, answer: bytes) -> None:
        """The answer to the newest request; empty if it is a quiet one."""
        if self._places:
            self._places[-1].behind.append(answer)
            self._held_bytes += len(answer)
        else:
            self._ready.append(answer)
            self._ready_bytes += len(answer)

    def reserve(self, request_bytes: int) -> Place:
        place = Place(request_bytes)
        self._places.append(place)
        self._held_bytes += request_bytes
        return place

    def settle(self, place: Place, answer: bytes) -> None:
        """It is known.  Whatever stands before the first open place is ready now."""
        place.answer = answer
        self._held_bytes += len(answer) - place.request_bytes
        while self._places and self._places[0].answer is not None:
            first = self._places.popleft()
            assert first.answer is not None
            for each in (first.answer, *first.behind):
                self._held_bytes -= len(each)
                self._ready_bytes += len(each)
                self._ready.append(each)

    def take(self) -> bytes:
        """What may be written now."""
        ready = self._ready
        if not ready:
            return b""
        self._ready = []
        self._ready_bytes = 0
        return ready[0] if len(ready) == 1 else b"".join(ready)
