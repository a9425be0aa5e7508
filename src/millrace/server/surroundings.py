"""What the sequencers of a node process live on: its connections, clock and procedures."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from millrace.core.effects import Ticket
from millrace.core.messages import Message
from millrace.core.procedure import Answer, DeadlinePassed, Failure, FailureKind, Procedure
from millrace.core.statuses import StatusBoard
from millrace.errors import MillraceError, Unavailable
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.hot_run import failure_of
from millrace.runtime.links import Links
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.hosted_committer import CommitterRequest
from millrace.server.local import LOCAL_SESSION
from millrace.server.service import NodeService
from millrace.server.shell import NodeShell
from millrace.types import NodeId

T = TypeVar("T")


class NodeSurroundings:
    def __init__(
        self,
        me: NodeId,
        links: Links,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        service: NodeService,
        shell: NodeShell,
        locations: Mapping[NodeId, str],
        board: StatusBoard,
    ) -> None:
        self._me = me
        self._links = links
        self._directory = directory
        self._runner = runner
        self._service = service
        self._shell = shell
        self._locations = locations
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def draw(self, count: int) -> int:
        return random.randrange(count)

    def locations(self) -> Mapping[NodeId, str]:
        return self._locations

    def disabled(self) -> frozenset[NodeId]:
        return self._board.disabled

    def later(self, ms: int, call: Callable[[], None]) -> None:
        if ms:
            self._loop.call_later(ms / 1000, call)
        else:
            self._loop.call_soon(call)

    def answer(self, ticket: Ticket, message: Message) -> None:
        self._service.answer(*ticket, message)

    # -- Other nodes ----------------------------------------------------------------------------

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        """`done` hears once, never from inside this call."""
        if node == self._me:
            number = self._service.local.call(timeout_ms, done)
            committing = self._service.committing
            if isinstance(message, CommitterRequest) and committing is not None:
                self._loop.call_soon(committing.handle, (LOCAL_SESSION, number), message)
            else:
                self._loop.call_soon(self._shell.handle, LOCAL_SESSION, number, message)
            return
        address = self._directory.addresses.get(node)
        waiter = _Waiter(done, self._loop)
        try:
            if address and self._links.ask_now(address, message, timeout_ms, waiter, node):
                return
        except MillraceError as error:
            waiter.set_exception(error)
            return
        if address and self._links.is_resting(address):
            # Whoever asks has others to ask: waiting for this one would hold them up.
            resting = Failure(FailureKind.CONNECT, f"node {node} could not be reached just now")
            self._loop.call_soon(done, resting)
            return
        self._spawn(self._dial(node, message, timeout_ms, done))

    async def _dial(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        answer: Answer
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                address = await self._directory.address(node)
            if address is None:
                answer = Failure(FailureKind.UNKNOWN_NODE, f"node {node} is not registered")
            else:
                answer = await self._ask(node, address, message, timeout_ms)
        except TimeoutError:
            answer = Failure(FailureKind.CONNECT, f"the address of node {node} is not known")
        except MillraceError as error:
            answer = failure_of(error)
        done(answer)

    async def _ask(self, node: NodeId, address: str, message: Message, timeout_ms: int) -> Message:
        try:
            return await self._links.ask(address, message, timeout_ms, node)
        except Unavailable as error:
            self._directory.not_reached(node, address, error)
            raise

    def tell(self, node: NodeId, message: Message) -> None:
        """Whether it arrives matters to nobody; a node that is not connected is not dialled."""
        if node == self._me:
            self._loop.call_soon(self._shell.handle, LOCAL_SESSION, 0, message)
            return
        address = self._directory.addresses.get(node)
        if address is not None:
            self._links.tell(address, message)

    # -- Procedures -----------------------------------------------------------------------------

    def run(self, procedure: Procedure[T], timeout_ms: int, done: Callable[[T], None]) -> None:
        self._spawn(self._run(procedure, timeout_ms, done))

    async def _run(
        self, procedure: Procedure[Any], timeout_ms: int, done: Callable[[Any], None]
    ) -> None:
        try:
            result = await self._runner.run(procedure, timeout_ms)
        except DeadlinePassed:
            result = Failure(FailureKind.TIMED_OUT, f"it took longer than {timeout_ms} ms")
        done(result)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Waiter:
    """An AnswerWaiter that calls back.  A failure is told in a turn of its own: the connection
    that failed may not be in order yet."""

    __slots__ = ("_done", "_loop")

    def __init__(self, done: Callable[[Answer], None], loop: asyncio.AbstractEventLoop) -> None:
        self._done = done
        self._loop = loop

    def done(self) -> bool:
        return False

    def set_result(self, message: Message) -> None:
        self._done(message)

    def set_exception(self, error: Exception) -> None:
        assert isinstance(error, MillraceError)
        self._loop.call_soon(self._done, failure_of(error))
