"""A process's connections to the nodes of its cluster, and the streams pushed over them.

Streams are numbered once for the whole process.  Whatever a node pushes on a stream goes to that
stream's listener, which hears None when the connection it was opened on ends.
"""

import asyncio
import itertools
from collections.abc import Callable

from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Ended,
    GapFound,
    Hello,
    Message,
    MetaChanged,
    Refusal,
    Refused,
)
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.peers import Peers
from millrace.runtime.session import Session

Pushed = Blocks | CaughtUp | GapFound | Ended | MetaChanged
StreamListener = Callable[[Pushed | None], None]


class Links:
    def __init__(
        self,
        hello: Hello,
        settings: TransportSettings | None = None,
        counters: TransportCounters | None = None,
    ) -> None:
        self.counters = counters or TransportCounters()
        self._peers = Peers(hello, self, settings, self.counters)
        self._streams: dict[int, tuple[str, StreamListener]] = {}
        self._numbers = itertools.count(1)

    async def ask(self, address: str, message: Message, timeout_ms: int) -> Message:
        return await self._peers.ask(address, message, timeout_ms)

    def ask_now(
        self, address: str, message: Message, timeout_ms: int
    ) -> asyncio.Future[Message] | None:
        """Without a task, if there is an open session; None if it must be dialled first."""
        session = self._peers.open_session(address)
        return None if session is None else session.ask(message, timeout_ms)

    def tell(self, address: str, message: Message) -> None:
        session = self._peers.open_session(address)
        if session is not None:
            session.tell(message)

    def open_stream(self, address: str, listener: StreamListener) -> int:
        number = next(self._numbers)
        self._streams[number] = (address, listener)
        return number

    def move_stream(self, number: int, address: str) -> None:
        """The stream goes on over the connection to another node."""
        self._streams[number] = (address, self._streams[number][1])

    def close_stream(self, number: int) -> None:
        self._streams.pop(number, None)

    async def close(self) -> None:
        await self._peers.close()

    # -- Handler ------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, request_id: int, message: Message) -> None:
        if isinstance(message, Blocks | CaughtUp | GapFound | Ended | MetaChanged):
            stream = self._streams.get(message.stream)
            if stream is not None:
                stream[1](message)
        elif request_id:
            session.answer(request_id, Refused(Refusal.BAD_REQUEST, detail="not a server"))

    def writable(self, session: Session) -> None:
        pass

    def closed(self, session: Session, reason: str) -> None:
        address = self._peers.address_of(session)
        for stream_address, listener in list(self._streams.values()):
            if stream_address == address:
                listener(None)
