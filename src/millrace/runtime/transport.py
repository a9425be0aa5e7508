"""Making sessions: listening for peers and dialling them.

I1  A refused or failed connection raises an error that says which address and why; both sides
    of a mismatch learn of it.
I2  No more than `connections_max` peers are served; one more is told so and sent away.
"""

import asyncio
import errno
import socket

from millrace.config import parse_address
from millrace.core.messages import Hello
from millrace.errors import AddressInUse, BadConfiguration, NoNodeReachable, WrongPeer
from millrace.runtime.closing import MISMATCHES, CloseReason
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.session import Handler, Session

__all__ = [
    "CloseReason",
    "Handler",
    "Listener",
    "Session",
    "TransportCounters",
    "TransportSettings",
    "dial",
    "listen",
    "parse_address",
]


class Listener:
    """Serves peers until it is closed."""

    def __init__(
        self,
        hello: Hello,
        handler: Handler,
        settings: TransportSettings,
        counters: TransportCounters,
    ) -> None:
        self.address = ""
        self._hello = hello
        self._handler = handler
        self._settings = settings
        self._counters = counters
        self._sessions: set[Session] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=1024)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def sessions(self) -> frozenset[Session]:
        return frozenset(self._sessions)

    async def close(self, detail: str = "the node is stopping") -> None:
        """Take no more peers, say Goodbye to those there are, wait until they are gone."""
        if self._server is not None:
            self._server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.close(CloseReason.STOPPING, detail)
        for session in sessions:
            await session.wait_closed()
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self) -> asyncio.BaseProtocol:
        is_full = len(self._sessions) >= self._settings.connections_max
        kind = _Surplus if is_full else Session
        session = kind(
            self._hello, self._handler, self._settings, self._counters, self._sessions.discard
        )
        self._sessions.add(session)
        return session


class _Surplus(Session):
    """One peer too many: hears Goodbye and nothing else.  Keeps I2."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close(
            CloseReason.TOO_MANY_CONNECTIONS,
            f"{self._settings.connections_max} connections are open here",
        )


async def listen(
    host: str,
    port: int,
    hello: Hello,
    handler: Handler,
    settings: TransportSettings | None = None,
    counters: TransportCounters | None = None,
) -> Listener:
    """Serve peers at `host:port`; port 0 takes a free one, `Listener.address` tells which."""
    listener = Listener(
        hello, handler, settings or TransportSettings(), counters or TransportCounters()
    )
    await listener.start(host, port)
    return listener


async def dial(
    address: str,
    hello: Hello,
    handler: Handler,
    timeout_ms: int,
    settings: TransportSettings | None = None,
    counters: TransportCounters | None = None,
) -> Session:
    """An open session with the process at `address`.  Raises NoNodeReachable, or WrongPeer if it
    is of another cluster or version."""
    host, port = parse_address(address)
    session = Session(
        hello, handler, settings or TransportSettings(), counters or TransportCounters()
    )
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await loop.create_connection(lambda: session, host, port)
            await session.wait_greeted()
    except TimeoutError as error:
        session.end(CloseReason.NO_HELLO, "dialling timed out")
        raise NoNodeReachable(f"{address} did not answer within {timeout_ms} ms") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoNodeReachable(f"{address} cannot be reached: {reason}") from error
    except asyncio.CancelledError:
        session.end(CloseReason.CLOSED, "dialling was cancelled")
        raise
    if not session.is_open:
        raise _not_opened(address, session)
    return session


def _not_opened(address: str, session: Session) -> NoNodeReachable | WrongPeer:
    why = session.close_detail or session.close_code
    if session.close_code in MISMATCHES:
        return WrongPeer(f"{address}: {why}")
    return NoNodeReachable(f"{address} closed the connection: {why} ({session.close_code})")


def _cannot_listen(host: str, port: int, error: OSError) -> AddressInUse | BadConfiguration:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{host}:{port} is in use: another process listens there. "
            "Stop it, or configure another port."
        )
    if isinstance(error, socket.gaierror):
        return BadConfiguration(f"{host} is not an address of this machine: {error.strerror}")
    return BadConfiguration(f"cannot listen on {host}:{port}: {error.strerror or error}")
