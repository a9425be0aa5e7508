"""The nodes that send to one read stream: starting them, telling them, hearing from them.

A stream has one number at every node that serves it.  Whatever a node says on it, and the end of
its connection, goes to the stream with the node's name.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millrace.core.messages import Message, Start
from millrace.core.procedure import Failure, FailureKind
from millrace.errors import NoNodeReachable, Unavailable
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.links import Links, ReadPushed
from millrace.types import NodeId

START_TIMEOUT_MS = 3_000

Arrived = Callable[[NodeId, Message | Failure], None]
Lost = Callable[[NodeId], None]


class Senders:
    def __init__(
        self, links: Links, directory: ClusterDirectory, arrived: Arrived, lost: Lost
    ) -> None:
        """`arrived` hears answers to START and what is pushed; `lost` that a connection ended."""
        self._links = links
        self._directory = directory
        self._arrived = arrived
        self._lost = lost
        self.number = links.open_read(self._pushed)

    def tell(self, node: NodeId, message: Message) -> None:
        address = self._directory.addresses.get(node)
        if address is not None:
            self._links.tell(address, message)

    async def start(self, node: NodeId, start: Start, is_wanted: Callable[[], bool]) -> None:
        """Tells what came of it unless another START has replaced this one meanwhile."""
        answer: Message | Failure
        try:
            address = await self._directory.address(node)
            if not is_wanted():
                return
            if address is None:
                self._lost(node)
                return
            self._links.add_read(self.number, address)
            answer = await self._ask(node, address, start)
        except Unavailable as error:
            answer = Failure(FailureKind.LOST, str(error))
        if is_wanted():
            self._arrived(node, answer)

    async def _ask(self, node: NodeId, address: str, start: Start) -> Message:
        if self._links.is_resting(address):
            # Whoever reads asks others meanwhile, and this one again soon.
            raise NoNodeReachable(f"node {node} at {address} could not be reached a moment ago")
        try:
            return await self._links.ask(address, start, START_TIMEOUT_MS, node)
        except Unavailable as error:
            self._directory.not_reached(node, address, error)
            raise

    def _pushed(self, node: NodeId, message: ReadPushed | None) -> None:
        if message is None:
            self._lost(node)
        else:
            self._arrived(node, message)

    def close(self) -> None:
        self._links.close_read(self.number)


class Chores:
    """The timer and the tasks of one reader; a task that fails is told to whoever reads."""

    def __init__(self, fired: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._fired = fired
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def set_timer(self, ms: int) -> None:
        self.cancel_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ms / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._fired()

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel_timer()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._failed(error)
