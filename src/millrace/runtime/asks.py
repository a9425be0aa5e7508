"""Requests of ours that wait for their answers on one connection.

Asking is the hot path, timing out is rare: an ask costs a dictionary entry and a comparison.
One timer stands at the earliest deadline known when it was set; when it fires, all are looked at.

  I1  Each waiter is told once: by its answer, its deadline or the loss of the connection.
  I2  At most `limit` requests that were sent wait.  Those beyond wait to be sent, first come,
      first served; one that was never sent is told so, and was certainly not done.
  I3  An answer to a request that no longer waits is late: it is ignored.  An answer to a request
      that was never made is the peer's error.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from millrace.codec.frames import REQUEST_ID_MAX
from millrace.core.messages import Message
from millrace.errors import ConnectionLost, NoAnswer, NotConnected, TooManyRequests, Unavailable
from millrace.types import Buffer

TIMER_STEP_S: Final = 0.002  # Deadlines closer together than this are looked at together.


class AnswerWaiter(Protocol):
    """Whoever is told the answer to a request; a Future is one."""

    def done(self) -> bool: ...

    def set_result(self, message: Message, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...


class Asks:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        address: str,
        on_expired: Callable[[], None] | None = None,
    ) -> None:
        """`on_expired` is called when deadlines have passed, so that there may be room."""
        self._loop = loop
        self._limit = limit
        self._address = address
        self._on_expired = on_expired
        self._waiting: dict[int, tuple[AnswerWaiter, float, str]] = {}
        self._unsent: dict[int, Sequence[Buffer]] = {}  # Those of `_waiting` not sent yet.
        self._last_id = 0
        self._has_wrapped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """A request may be sent at once: it is not one too many, and overtakes no other."""
        return len(self._waiting) < self._limit and not self._unsent

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def keep_unsent(self, request_id: int, buffers: Sequence[Buffer]) -> None:
        """The request just added waits for its turn; `next_unsent` gives it back."""
        self._unsent[request_id] = buffers

    def next_unsent(self) -> Sequence[Buffer] | None:
        """The request whose turn it is, if there is one and there is room for it."""
        while self._unsent and len(self._waiting) - len(self._unsent) < self._limit:
            request_id = next(iter(self._unsent))
            buffers = self._unsent.pop(request_id)
            if not self._waiting[request_id][0].done():
                return buffers
            del self._waiting[request_id]  # Its owner gave up.
        return None

    def next_id(self) -> int:
        while True:
            self._last_id += 1
            if self._last_id > REQUEST_ID_MAX:
                self._last_id = 1
                self._has_wrapped = True
            if self._last_id not in self._waiting:
                return self._last_id

    def add(self, request_id: int, name: str, timeout_ms: int, waiter: AnswerWaiter) -> None:
        """`waiter` waits for the answer to the request `name` that was just sent."""
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._waiting[request_id] = (waiter, deadline_s, name)
        if deadline_s < self._timer_at_s:
            self._set_timer(deadline_s)

    def was_issued(self, request_id: int) -> bool:
        return self._has_wrapped or request_id <= self._last_id

    def settle(self, request_id: int, message: Message) -> bool:
        """Whether somebody waited for this answer."""
        found = self._waiting.pop(request_id, None)
        if found is None:
            return False
        if not found[0].done():  # Its owner may have cancelled it.
            found[0].set_result(message)
        return True

    def fail_all(self, reason: str) -> None:
        self._cancel_timer()
        waiting, self._waiting = self._waiting, {}
        unsent, self._unsent = self._unsent, {}
        for request_id, (waiter, _, name) in waiting.items():
            if not waiter.done():
                kind = NotConnected if request_id in unsent else ConnectionLost
                waiter.set_exception(kind(f"{name} to {self._address}: connection lost ({reason})"))

    def _expire(self) -> None:
        self._cancel_timer()
        now_s = self._loop.time()
        due = [(entry[1], key) for key, entry in self._waiting.items() if entry[1] <= now_s]
        for _, request_id in sorted(due):
            waiter, _, name = self._waiting.pop(request_id)
            is_unsent = self._unsent.pop(request_id, None) is not None
            if not waiter.done():
                waiter.set_exception(self._too_late(name, is_unsent))
        if self._waiting:
            nearest_s = min(entry[1] for entry in self._waiting.values())
            self._set_timer(max(nearest_s, now_s + TIMER_STEP_S))
        if self._on_expired is not None:
            self._on_expired()

    def _too_late(self, name: str, is_unsent: bool) -> Unavailable:
        if is_unsent:
            return TooManyRequests(f"{name} to {self._address}: others before it took its time")
        return NoAnswer(f"{name}: no answer from {self._address} in time")

    def _set_timer(self, at_s: float) -> None:
        self._cancel_timer()
        self._timer_at_s = at_s
        self._timer = self._loop.call_at(at_s, self._expire)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at_s = float("inf")
