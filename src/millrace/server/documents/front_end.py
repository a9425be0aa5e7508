"""Listening for the clients of documents.

I1  No more than `connections_max` are served; one more is closed at once, as memcached does it.
    A connection counts until what it began is finished.
"""

import asyncio
import errno
from typing import Final

from millrace.errors import AddressInUse, BadConfiguration
from millrace.limits import CONNECTIONS_MAX
from millrace.server.documents.backend import DocumentBackend
from millrace.server.documents.connection import Connection
from millrace.server.documents.flushing import DelayedFlushes
from millrace.server.documents.visitor import FrontEndCounts, Visitor

BACKLOG: Final = 1024


class DocumentFrontEnd:
    def __init__(self, backend: DocumentBackend, connections_max: int = CONNECTIONS_MAX) -> None:
        self.address = ""
        self.counts = FrontEndCounts()
        self._backend = backend
        self._flushes = DelayedFlushes(backend)
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one; `address` tells which."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(f"{host}:{port} is in use: configure another port") from error
            why = error.strerror or error
            raise BadConfiguration(f"cannot listen on {host}:{port}: {why}") from error
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """What is under way is given up; whoever waits for it sees the connection end."""
        self._flushes.close()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self) -> asyncio.BaseProtocol:
        counts = self.counts
        if len(self._connections) >= self._connections_max:
            counts.connections_refused += 1
            return _Surplus()
        visitor = Visitor(self._backend, counts, self._flushes)
        connection = Connection(visitor, self._forget)
        self._connections.add(connection)
        counts.connections_total += 1
        counts.connections_now = len(self._connections)
        return connection

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.counts.connections_now = len(self._connections)


class _Surplus(asyncio.Protocol):
    """One client too many.  Keeps I1."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
