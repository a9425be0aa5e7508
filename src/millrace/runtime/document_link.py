"""Our end of a connection to a node's documents port.

Bucket clients, consumers of changes, replicas, and nodes that pass a request on use it alike:
requests are numbered (`opaque`) and answered in any order, and what a producer pushes goes to a
listener.  Frames asked for in one turn of the event loop leave in one write.

  I1  Each request is told once: its answer, NoAnswer, or ConnectionLost.
  I2  At most REQUESTS_MAX requests wait; one more is refused and was not sent.
  I3  Whatever cannot be understood closes this connection and harms nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from millrace.codec.memcached.binary import FrameDecoder, Request, Response
from millrace.config import parse_address
from millrace.errors import (
    ConnectionLost,
    NoAnswer,
    NoNodeReachable,
    NotConnected,
    TooManyRequests,
    Unavailable,
)

REQUESTS_MAX: Final = 65_536
LOOK_S: Final = 0.25  # How often deadlines are looked at.
OPAQUE_MAX: Final = 0x7FFF_FFFF

Pushed = Callable[[Request], None]


def _nobody_listens(_: Request) -> None: ...


class Waiter(Protocol):
    """Who waits for an answer: a future, or an Answerer."""

    def done(self) -> bool: ...

    def set_result(self, response: Response, /) -> None: ...

    def set_exception(self, error: Any, /) -> None: ...


class Answerer:
    """Is told at once, in the order of arrival: before what was pushed after the answer."""

    __slots__ = ("set_exception", "set_result")

    def __init__(
        self,
        on_answer: Callable[[Response], None],
        on_failure: Callable[[Unavailable], None],
    ) -> None:
        self.set_result = on_answer
        self.set_exception = on_failure

    def done(self) -> bool:
        return False


class DocumentLink(asyncio.Protocol):
    def __init__(self, address: str, timeout_ms: int = 10_000) -> None:
        self.address = address
        self.on_push: Pushed = _nobody_listens
        self.on_closed: Callable[[], None] | None = None
        self.is_open = False
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(takes_answers=True)
        self._waiting: dict[int, tuple[Waiter, float]] = {}
        self._last_opaque = 0
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._looker: asyncio.TimerHandle | None = None

    # -- Asking ---------------------------------------------------------------------------------

    def ask(self, encode: Callable[[int], bytes], timeout_ms: int = 0) -> asyncio.Future[Response]:
        """Send what `encode` makes of an opaque; the answer to it."""
        future: asyncio.Future[Response] = self._loop.create_future()
        self.ask_for(future, encode, timeout_ms)
        return future

    def ask_for(self, waiter: Waiter, encode: Callable[[int], bytes], timeout_ms: int = 0) -> None:
        """As `ask`, for whoever is told otherwise."""
        if not self.is_open:
            raise NotConnected(f"the connection to {self.address} is closed")
        if len(self._waiting) >= REQUESTS_MAX:
            raise TooManyRequests(f"{REQUESTS_MAX} requests wait for {self.address}")
        opaque = self._next_opaque()
        self.send(encode(opaque))
        timeout_s = timeout_ms / 1000 if timeout_ms else self._timeout_s
        self._waiting[opaque] = waiter, self._loop.time() + timeout_s
        if self._looker is None:
            self._looker = self._loop.call_later(LOOK_S, self._look)

    def send(self, frames: bytes) -> None:
        """What needs no answer; nothing happens when the connection is closed."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frames)

    def _next_opaque(self) -> int:
        while True:
            self._last_opaque = self._last_opaque % OPAQUE_MAX + 1
            if self._last_opaque not in self._waiting:
                return self._last_opaque

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._transport is not None and self.is_open:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _look(self) -> None:
        """Keeps I1 for those whose time is up."""
        now_s = self._loop.time()
        late = [opaque for opaque, (_, until_s) in self._waiting.items() if until_s <= now_s]
        for opaque in late:
            waiter, _ = self._waiting.pop(opaque)
            if not waiter.done():
                waiter.set_exception(NoAnswer(f"{self.address} did not answer in time"))
        self._looker = self._loop.call_later(LOOK_S, self._look) if self._waiting else None

    # -- The event loop's side ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            match frame:
                case Response(opaque=opaque):
                    waiting = self._waiting.pop(opaque, None)
                    if waiting is not None and not waiting[0].done():
                        waiting[0].set_result(frame)
                case Request():
                    self.on_push(frame)
                case _:
                    self.close()  # Keeps I3.
                    return

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection to {self.address} was lost: {error or 'it was closed'}")

    def close(self) -> None:
        if self._transport is not None:
            if self._outgoing:
                self._flush()
            self._transport.close()
        self._end(f"the connection to {self.address} was closed")

    def _end(self, why: str) -> None:
        was_open, self.is_open = self.is_open, False
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None
        waiting, self._waiting = self._waiting, {}
        for waiter, _ in waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(why))
        if was_open and self.on_closed is not None:
            self.on_closed()


async def dial_documents(address: str, timeout_ms: int) -> DocumentLink:
    """Raises NoNodeReachable."""
    host, port = parse_address(address)
    link = DocumentLink(address, timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
    except TimeoutError as error:
        raise NoNodeReachable(f"{address} did not answer within {timeout_ms} ms") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoNodeReachable(f"{address} cannot be reached: {reason}") from error
    return link


class DocumentLinks:
    """One connection to each address, made when it is first needed, prepared by `greet`."""

    def __init__(
        self,
        greet: Callable[[DocumentLink], Awaitable[None]] | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        self._greet = greet
        self._timeout_ms = timeout_ms
        self._links: dict[str, asyncio.Task[DocumentLink]] = {}
        self._ready: dict[str, DocumentLink] = {}

    def current(self, address: str) -> DocumentLink | None:
        """The connection, if it is there: without waiting, for whoever asks often."""
        link = self._ready.get(address)
        return link if link is not None and link.is_open else None

    async def get(self, address: str) -> DocumentLink:
        task = self._links.get(address)
        if task is not None and task.done() and not _is_usable(task):
            task = None
        if task is None:
            task = self._links[address] = asyncio.create_task(self._dial(address))
        return await asyncio.shield(task)

    async def _dial(self, address: str) -> DocumentLink:
        link = await dial_documents(address, self._timeout_ms)
        if self._greet is not None:
            try:
                await self._greet(link)
            except BaseException:
                link.close()
                raise
        self._ready[address] = link
        return link

    async def close(self) -> None:
        tasks = list(self._links.values())
        self._links.clear()
        self._ready.clear()
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, DocumentLink):
                done.close()


def _is_usable(task: asyncio.Task[DocumentLink]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open
