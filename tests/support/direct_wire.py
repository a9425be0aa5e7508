"""A wire without a network: services called directly, through the bytes of real frames.

Faults are switched on by the test: an address that is away, answers that get lost.
"""

import asyncio
import itertools
from collections.abc import Callable

from millrace import errors
from millrace.codec import frames
from millrace.core.messages import Message, MetaChanged, Stop
from millrace.meta.service import MetadataService, MetadataSession
from millrace.meta.wire import Listener


def over_the_wire(message: Message) -> Message:
    data = b"".join(bytes(part) for part in frames.encode(message, request_id=1))
    header = frames.parse_frame_header(data[: frames.FRAME_HEADER_BYTES])
    return frames.decode(header, memoryview(data)[frames.FRAME_HEADER_BYTES :])


class DirectWire:
    def __init__(self, services: dict[str, MetadataService]) -> None:
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.loses_answer: Callable[[Message], bool] = lambda message: False
        self.asked: list[tuple[str, Message]] = []
        self._services = services
        self._sessions: dict[str, MetadataSession] = {}
        self._streams: dict[int, tuple[str, Listener]] = {}
        self._ids = itertools.count(1)

    async def ask(self, address: str, message: Message, timeout_ms: int) -> Message:
        self.asked.append((address, message))
        if address in self.silent:
            await self._hang(timeout_ms)
        if address in self.away:
            raise errors.NoNodeReachable(f"{address} is away")
        answer = await self._session(address).answer(over_the_wire(message))
        if self.loses_answer(message):
            raise errors.ConnectionLost(f"{address}: connection lost")
        return over_the_wire(answer)

    def tell(self, address: str, message: Message) -> None:
        if address in self._sessions and isinstance(message, Stop):
            self._sessions[address].stop(message)

    def open_stream(self, address: str, listener: Listener) -> int:
        stream = next(self._ids)
        self._streams[stream] = (address, listener)
        return stream

    def close_stream(self, stream: int) -> None:
        del self._streams[stream]

    async def cut(self, address: str) -> None:
        """The connection ends, as both sides see it."""
        session = self._sessions.pop(address, None)
        if session is not None:
            await session.close()
        for at, listener in list(self._streams.values()):
            if at == address:
                listener(None)

    async def close(self) -> None:
        for address in list(self._sessions):
            await self.cut(address)

    async def _hang(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await asyncio.get_running_loop().create_future()
        except TimeoutError as error:
            raise errors.NoAnswer("no answer in time") from error

    def _session(self, address: str) -> MetadataSession:
        if address not in self._sessions:
            self._sessions[address] = self._services[address].connect(self._deliver)
        return self._sessions[address]

    async def _deliver(self, message: MetaChanged) -> None:
        found = self._streams.get(message.stream)
        if found is not None:
            received = over_the_wire(message)
            assert isinstance(received, MetaChanged)
            found[1](received)
