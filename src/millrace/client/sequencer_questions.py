"""Questions that a log's sequencer answers, put to whoever that is by now.

A sequencer that does not answer is doubted, and the next one is looked for as an append would: an
idle log may need one before it can say where it ends.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.client.asking import ask_until
from millrace.core.append import NotAppended
from millrace.core.messages import (
    AskTail,
    LogSealed,
    Message,
    Redirected,
    SealLog,
    Tail,
)
from millrace.core.procedure import DeadlinePassed
from millrace.core.sequenced.append import Seat, find_seat
from millrace.errors import NoAnswer, TimedOut, Unavailable, UnknownLog
from millrace.lsn import epoch_of
from millrace.meta.deadline import Deadline
from millrace.types import LogInfo, Lsn

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS: Final = 3_000
PAUSE_S: Final = 0.02

M = TypeVar("M", bound=Message)


class SequencerQuestions:
    def __init__(self, client: "Client", info: LogInfo, forget: Callable[[], None]) -> None:
        """`forget` is called when the log turns out to be deleted."""
        self._client = client
        self._info = info
        self._forget = forget
        self._trouble = "nobody has answered yet"  # Why the last attempt came to nothing.

    async def tail(self, timeout_ms: int) -> Tail:
        return await self._ask(AskTail(self._info.id), Tail, timeout_ms)

    async def last_record(self, timeout_ms: int) -> Lsn:
        """Of what readers see.  What was acknowledged before the call is not above it: that may not
        be released yet, and then it is waited for; 0 if there is no record."""
        deadline = Deadline(timeout_ms)
        wanted: Lsn | None = None
        while not deadline.is_over:
            tail = await self.tail(deadline.left_ms())
            is_recovered = epoch_of(tail.released) >= tail.epoch
            if is_recovered and wanted is None:
                wanted = tail.last
            if wanted is not None and tail.released >= wanted:
                return wanted
            await asyncio.sleep(PAUSE_S)
        raise TimedOut(
            f"log {self._info.name!r}: what was appended is not readable within {timeout_ms} ms; "
            f"`millrace log info {self._info.name}` shows which nodes do not answer"
        )

    async def seal(self, timeout_ms: int) -> LogSealed:
        try:
            return await self._ask(SealLog(self._info.id), LogSealed, timeout_ms)
        except TimedOut:
            raise NoAnswer(
                f"log {self._info.name!r}: no sequencer has sealed it within {timeout_ms} ms, and "
                "one may do so yet: seal it again to find out"
            ) from None

    async def _ask(self, request: Message, kind: type[M], timeout_ms: int) -> M:
        def complaint() -> str:
            name, why = self._info.name, self._trouble
            return f"log {name!r}: no sequencer has answered within {timeout_ms} ms: {why}"

        ask_once = partial(self._ask_once, request)
        return await ask_until(ask_once, kind, timeout_ms, PAUSE_S, complaint)

    async def _ask_once(self, request: Message) -> Message | None:
        """None: ask again."""
        self._client.check_open()
        seat = await self._find_seat()
        if seat is None:
            return None
        log, seats = self._info.id, self._client.seats
        try:
            answer = await self._client.ask_node(seat.node, request, ASK_TIMEOUT_MS)
        except Unavailable as error:
            self._trouble = str(error)
            seats.doubt(log, seat)
            return None
        if isinstance(answer, Tail | LogSealed):
            return answer
        if isinstance(answer, Redirected):
            seats.learn(log, Seat(answer.node, answer.epoch))
        else:
            seats.doubt(log, seat)
        return None

    async def _find_seat(self) -> Seat | None:
        log, seats = self._info.id, self._client.seats
        seat = seats.find(log)
        if seat is not None:
            return seat
        try:
            found = await self._client.runner.run(find_seat(log, seats), ASK_TIMEOUT_MS)
        except DeadlinePassed:
            return None
        if isinstance(found, NotAppended):
            self._forget()
            raise UnknownLog(f"log {self._info.name!r} was deleted")
        if isinstance(found, str):
            self._trouble = found
            return None
        return found
