"""Requests that a node makes to itself, answered by its own core without a connection.

A sequencer whose node is in the copyset calls for each block, and hardly any call is ever late:
one timer serves all, and stands at the earliest deadline known when it was set.
"""

import asyncio
import itertools
import math
from collections.abc import Callable

import msgspec

from millrace.core.messages import Fetched, Message, StreamPage
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.errors import NoAnswer
from millrace.types import Block

LOCAL_SESSION = 0  # Sessions of connections are numbered from 1.
NEVER_S = math.inf
LOOK_STEP_S = 0.002  # Deadlines closer together than this are looked at together.


class LocalRequests:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._called: dict[int, tuple[Callable[[Answer], None], float]] = {}  # With deadlines.
        self._look_s = NEVER_S  # When the timer stands.
        self._numbers = itertools.count(1)

    def open(self) -> tuple[int, asyncio.Future[Message]]:
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return number, future

    def call(self, timeout_ms: int, done: Callable[[Answer], None]) -> int:
        """As `open`, for somebody who needs no future; it hears once."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        self._called[number] = (done, deadline_s)
        if deadline_s < self._look_s:
            self._look_s = deadline_s
            loop.call_at(deadline_s, self._look, deadline_s)
        return number

    def _look(self, at_s: float) -> None:
        """Tell those whose time is up; unless a timer that was set later stands before this."""
        if at_s != self._look_s:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late = [(end_s, number) for number, (_, end_s) in self._called.items() if end_s <= now_s]
        for _, number in sorted(late):
            done, _ = self._called.pop(number)
            done(Failure(FailureKind.TIMED_OUT, "the node did not answer itself in time"))
        nearest_s = min((each[1] for each in self._called.values()), default=NEVER_S)
        self._look_s = nearest_s
        if self._called:
            self._look_s = max(nearest_s, now_s + LOOK_STEP_S)
            loop.call_at(self._look_s, self._look, self._look_s)

    def answer(self, number: int, message: Message) -> None:
        called = self._called.pop(number, None)
        if called is not None:
            called[0](message)
            return
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(message)

    async def wait(self, number: int, future: asyncio.Future[Message], timeout_ms: int) -> Message:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError as error:
            self._waiting.pop(number, None)
            raise NoAnswer(f"the node did not answer itself within {timeout_ms} ms") from error


def detached(message: Message) -> Message:
    """The answer with blocks of its own: nobody here tells when it has done with the store's."""
    if not isinstance(message, Fetched | StreamPage):
        return message
    return msgspec.structs.replace(message, blocks=tuple(map(_copied, message.blocks)))


def _copied(block: Block) -> Block:
    return Block(
        block.log,
        block.first,
        block.count,
        block.epoch,
        block.kind,
        block.token,
        block.checksum,
        bytes(block.data),
        block.is_cut,
        block.is_published,
    )
