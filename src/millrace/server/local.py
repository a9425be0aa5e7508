"""Requests that a node makes to itself, answered by its own core without a connection."""

import asyncio
import itertools

from millrace.core.messages import Message
from millrace.errors import NoAnswer

LOCAL_SESSION = 0  # Sessions of connections are numbered from 1.


class LocalRequests:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)

    def open(self) -> tuple[int, asyncio.Future[Message]]:
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return number, future

    def answer(self, number: int, message: Message) -> None:
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
