"""Waiting until all that was written before has been handed out (R-L).

A cookie goes to every node that streams to us, and comes back when each of its partitions has been
streamed since.  That says nothing of a partition whose stream was not open all the time, so then it
is tried again with another cookie.

  I1  An attempt counts only if every partition was streaming from its begin to its end.
"""

import asyncio
from collections.abc import Callable, Collection

from millrace.client.changes.connection import StreamConnection
from millrace.client.changes.following import FollowedPartition
from millrace.client.changes.node_connections import NodeConnections
from millrace.errors import Unavailable


class _Attempt:
    def __init__(self, connections: list[StreamConnection]) -> None:
        self.missing = set(connections)
        self.is_broken = False


class Barriers:
    """`check` raises if the consumer has failed, or is closed."""

    def __init__(
        self,
        followed: Collection[FollowedPartition],
        connections: NodeConnections,
        check: Callable[[], None],
    ) -> None:
        self._followed = followed
        self._connections = connections
        self._check = check
        self._attempts: dict[str, _Attempt] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._last_cookie = 0

    async def wait(self) -> None:
        while True:
            await self._until(self._is_streaming)
            attempt = await self._try_once()
            if not attempt.is_broken:
                break
        open_batches = [batch for each in self._followed for batch in each.open_batches()]
        await self._until(lambda: all(batch.is_acknowledged for batch in open_batches))

    async def _try_once(self) -> _Attempt:
        attempt = _Attempt(self._connections.all_open())
        self._last_cookie += 1
        cookie = str(self._last_cookie)
        self._attempts[cookie] = attempt
        try:
            await asyncio.gather(*(each.barrier(cookie) for each in list(attempt.missing)))
            await self._until(lambda: attempt.is_broken or not attempt.missing)
        except Unavailable:
            attempt.is_broken = True
        finally:
            del self._attempts[cookie]
        return attempt

    def _is_streaming(self) -> bool:
        return all(each.is_streaming for each in self._followed)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._check()
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        self._check()

    def reached(self, connection: StreamConnection, cookie: str) -> None:
        attempt = self._attempts.get(cookie)
        if attempt is not None:
            attempt.missing.discard(connection)
            self.wake()

    def phase_changed(self) -> None:
        """Keeps I1."""
        for attempt in self._attempts.values():
            attempt.is_broken = attempt.is_broken or not self._is_streaming()
        self.wake()

    def wake(self) -> None:
        """Something changed: those who wait look again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)
