"""Real sockets on loopback for the tests of the transport: a handler that records, a raw peer."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvloop

from millrace.codec import blocks, frames
from millrace.core.messages import Goodbye, Hello, Message, Next, Peek, Peeked, Write, Written
from millrace.runtime.transport import (
    Listener,
    Session,
    TransportCounters,
    TransportSettings,
    dial,
    listen,
    parse_address,
)
from millrace.types import Block, Epoch, LogId, Lsn, NodeId, Token

HELLO = Hello(version=frames.PROTOCOL_VERSION, cluster="mill")
TIMEOUT_S = 10


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await body()

    uvloop.run(bounded())


def block_of(size: int, first: int = 1) -> Block:
    draft = blocks.draft([bytes(size)], timestamps_us=1, compress=False)
    return blocks.place(draft, LogId(1), Epoch(1), Lsn(first), Token(1, 1))


def write_of(size: int) -> Write:
    return Write(LogId(1), Epoch(1), block_of(size), (NodeId(1),))


class Recorder:
    """Answers Peek and Write at once, keeps everything else; every event can be waited for."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.requests: list[tuple[Session, int, Message]] = []
        self.told: list[Message] = []
        self.closes: list[str] = []
        self.writables = 0
        self._changed = asyncio.Event()

    def opened(self, session: Session) -> None:
        self.sessions.append(session)
        self._changed.set()

    def received(self, session: Session, request_id: int, message: Message) -> None:
        match message:
            case Peek(around=around) if request_id:
                session.answer(request_id, Peeked(around))
            case Write() if request_id:
                session.answer(request_id, Written())
            case _ if request_id:
                self.requests.append((session, request_id, message))
            case _:
                self.told.append(message)
        self._changed.set()

    def writable(self, session: Session) -> None:
        self.writables += 1
        self._changed.set()

    def closed(self, session: Session, reason: str) -> None:
        self.closes.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Pair:
    """A listener and one dialled session."""

    def __init__(self) -> None:
        self.server = Recorder()
        self.client = Recorder()
        self.server_counters = TransportCounters()
        self.client_counters = TransportCounters()
        self.listener: Listener
        self.session: Session

    @property
    def served(self) -> Session:
        return self.server.sessions[0]


@asynccontextmanager
async def pair(
    server_settings: TransportSettings | None = None,
    client_settings: TransportSettings | None = None,
):
    both = Pair()
    both.listener = await listen(
        "127.0.0.1", 0, HELLO, both.server, server_settings, both.server_counters
    )
    both.session = await dial(
        both.listener.address, HELLO, both.client, 2_000, client_settings, both.client_counters
    )
    await both.server.until(lambda: bool(both.server.sessions))
    try:
        yield both
    finally:
        both.session.close()
        await both.session.wait_closed()
        await both.listener.close()


class RawPeer:
    """Speaks bytes, right or wrong."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str, receive_bytes: int = 0) -> "RawPeer":
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, parse_address(address))
        return cls(*await asyncio.open_connection(sock=raw))

    def send(self, message: Message, request_id: int = 0, is_answer: bool = False) -> None:
        self.writer.writelines(frames.encode(message, request_id, is_answer))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> tuple[int, Message]:
        header = frames.parse_frame_header(await self.reader.readexactly(frames.FRAME_HEADER_BYTES))
        body = await self.reader.readexactly(header.body_size)
        return header.request_id, frames.decode(header, memoryview(body))

    async def goodbye(self) -> Goodbye:
        """Reads up to the Goodbye, which must be the last thing sent."""
        while True:
            _, message = await self.receive()
            if isinstance(message, Goodbye):
                assert await self.reader.read() == b""
                return message

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):  # The other side may be quicker.
            await self.writer.wait_closed()


def question(count: int = 1) -> Next:
    """A request that Recorder does not answer by itself."""
    return Next(LogId(1), Epoch(1), count)


def echo(number: int) -> Peek:
    return Peek(LogId(1), Epoch(1), Lsn(number))
