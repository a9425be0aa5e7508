"""Cookies that a consumer gets back when all that was there before has been streamed (R-L, U5).

A connection goes through its partitions in a cycle.  A cookie notes how many cycles were complete
and which partition was being streamed when it came; between two partitions that is the next one
less one.  Since then every partition was streamed, that one included, when

    (cycles, next partition) > (cycles noted + 1, partition noted)

in the order of tuples.  The seed compares both parts one by one, so a cookie that came during the
last partition would never be returned: the next partition is never greater.

  I1  Cookies are returned in the order they came, each once.
  I2  None before every partition was streamed, or had nothing, since it came.
"""

from collections import deque
from typing import Final

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import COOKIE_BYTES_MAX, StreamStatus

COOKIES_MAX: Final = 1_024  # Of one connection, not yet returned.


class Marker(msgspec.Struct, frozen=True):
    cookie: str
    cycles: int
    partition: int  # -1: before the first.


class Barriers:
    def __init__(self) -> None:
        self._markers: deque[Marker] = deque()
        self._cookies: set[str] = set()

    def __len__(self) -> int:
        return len(self._markers)

    def add(self, cookie: str, cycles: int, partition: int) -> StreamStatus:
        if not 0 < len(cookie.encode()) <= COOKIE_BYTES_MAX:
            return StreamStatus.INVALID
        if cookie in self._cookies:
            return StreamStatus.EXISTS
        if len(self._markers) >= COOKIES_MAX:
            return StreamStatus.BUSY
        self._markers.append(Marker(cookie, cycles, partition))
        self._cookies.add(cookie)
        return StreamStatus.OK

    def reached(self, cycles: int, following: PartitionId) -> list[str]:
        """Asked whenever a partition is finished or skipped; `following` is the next one."""
        found: list[str] = []
        while self._markers and self._is_reached(cycles, following):
            found.append(self._return_first())
        return found

    def return_all(self) -> list[str]:
        """Nothing is left to stream."""
        return [self._return_first() for _ in range(len(self._markers))]

    def _is_reached(self, cycles: int, following: PartitionId) -> bool:
        first = self._markers[0]
        return (cycles, following) > (first.cycles + 1, first.partition)

    def _return_first(self) -> str:
        cookie = self._markers.popleft().cookie
        self._cookies.remove(cookie)
        return cookie
