"""A consumer's connections to the masters of its partitions, made when they are needed.

I1  There is at most one to each node.
I2  Who was told to wait for a connection hears of it, or of its failure.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.client.changes.connection import (
    Pushed,
    StreamConnection,
    StreamSettings,
    open_connection,
)
from millrace.errors import MillraceError

CLOSED: Final = "the consumer is closed"


class NodeConnections:
    """`on_dialed` is told the address and, if it failed, why."""

    def __init__(
        self,
        settings: StreamSettings,
        on_push: Callable[[StreamConnection, Pushed], None],
        on_lost: Callable[[StreamConnection, str], None],
        on_dialed: Callable[[str, str | None], None],
    ) -> None:
        self._settings = settings
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_dialed = on_dialed
        self._open: dict[str, StreamConnection] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}

    def get(self, address: str) -> StreamConnection | None:
        """None: it is being made."""
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        if address not in self._dialing:
            self._dialing[address] = asyncio.create_task(self._dial(address))
        return None

    def all_open(self) -> list[StreamConnection]:
        return [connection for connection in self._open.values() if connection.is_open]

    async def close(self) -> None:
        dialing = list(self._dialing.values())
        for task in dialing:
            task.cancel()
        await asyncio.gather(*dialing, return_exceptions=True)
        for connection in self._open.values():
            connection.close(CLOSED)
        self._open.clear()

    async def _dial(self, address: str) -> None:
        """Keeps I2."""
        problem: str | None = None
        try:
            self._open[address] = await open_connection(
                address, self._settings, self._on_push, self._on_lost
            )
        except MillraceError as error:
            problem = str(error)
        del self._dialing[address]
        self._on_dialed(address, problem)
