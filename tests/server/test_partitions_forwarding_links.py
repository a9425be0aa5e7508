"""Commands that are passed on over a real link, and looked up in a real directory, keep the order
of the calls: also when the link has ended, or somebody else did not reach the node."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace.codec.frames import PROTOCOL_VERSION
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import Command, OperationStatus, Outcome, Verb
from millrace.core.messages import Hello, Message
from millrace.core.messages.documents import CarriedOut, CarryOut
from millrace.errors import NoNodeReachable, Unavailable
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.peers import Peers
from millrace.runtime.session import Session
from millrace.runtime.transport import listen
from millrace.server.partitions.front import BucketFront
from millrace.types import NodeId, NodeInfo
from tests.support.partition_nodes import BUCKET, CAFE, NAME, NUMBER, ONE, TWO, Node, World

RECORD = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), (Seat(1, CAFE, ONE, (TWO,)),))
OK = Outcome(OperationStatus.OK)
TURNS = 20  # Of the loop: whatever can happen here has happened.
DIAL_TURNS_MAX = 1_000_000
TIME_LIMIT_S = 10


class Silent:
    """An end of a connection that says nothing of its own."""

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, request_id: int, message: Message) -> None: ...

    def writable(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None: ...


class Master(Silent):
    """The node that the commands are for."""

    def __init__(self) -> None:
        self.carried_out: list[bytes] = []

    def received(self, session: Session, request_id: int, message: Message) -> None:
        assert isinstance(message, CarryOut)
        self.carried_out.append(message.command.value)
        session.answer(request_id, CarriedOut(OK))


class SlowRepository(MemoryRepository):
    def __init__(self) -> None:
        super().__init__()
        self.is_there = asyncio.Event()
        self.is_there.set()

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        await self.is_there.wait()
        return await super().list(prefix)


class Passing:
    """A node that passes commands on, as `server/node.py` puts it together."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.repository = SlowRepository()
        self.directory = ClusterDirectory(self.repository)
        self.peers = Peers(Hello(PROTOCOL_VERSION, "mill", TWO), Silent())
        node = Node(World(), TWO)
        self.front = BucketFront(
            RECORD, node.store, node.around, self._ask, lambda _: "", None, self._is_linked
        )

    async def start(self) -> None:
        value = keys.NODES.encode(NodeInfo(ONE, self.address))
        await self.repository.set(keys.NODES.key(ONE), value, ANY_VERSION)
        assert await self.forward(b"first") == OK

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        address = await self.directory.address(node)
        assert address is not None
        try:
            return await self.peers.ask(address, message, timeout_ms, node)
        except Unavailable as error:
            self.directory.not_reached(node, address, error)
            raise

    def _is_linked(self, node: NodeId) -> bool:
        address = self.directory.known_address(node)
        return address is not None and self.peers.open_session(address, node) is not None

    def forward(self, value: bytes) -> "asyncio.Task[Outcome]":
        return asyncio.create_task(self.front.forward(NUMBER, Command(Verb.SET, b"k", value)))

    async def until_dialled(self) -> None:
        """Before those who wait for it wake up."""
        for _ in range(DIAL_TURNS_MAX):
            if self.peers.open_session(self.address) is not None:
                return
            await asyncio.sleep(0)
        raise AssertionError("it is not dialled")


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def play(scenario: Callable[[Passing], Awaitable[None]]) -> list[bytes]:
    """What was carried out after the first command, in order."""

    async def played() -> list[bytes]:
        master = Master()
        listener = await listen("127.0.0.1", 0, Hello(PROTOCOL_VERSION, "mill", ONE), master)
        passing = Passing(listener.address)
        await passing.start()
        await scenario(passing)
        await passing.peers.close()
        await listener.close()
        return master.carried_out[1:]

    return asyncio.run(asyncio.wait_for(played(), TIME_LIMIT_S))


def test_a_command_does_not_pass_one_that_looks_where_the_node_is() -> None:
    """Somebody else had not reached it; the link was there again."""

    async def scenario(passing: Passing) -> None:
        passing.directory.not_reached(ONE, passing.address, NoNodeReachable("a moment ago"))
        passing.repository.is_there.clear()
        first = passing.forward(b"1")
        await _turns()
        second = passing.forward(b"2")
        await _turns()
        passing.repository.is_there.set()
        assert [await first, await second] == [OK, OK]

    assert play(scenario) == [b"1", b"2"]


def test_a_command_does_not_pass_one_that_waits_for_the_link() -> None:
    """One that came when the link was just there was sent before those that had waited for it."""

    async def scenario(passing: Passing) -> None:
        session = passing.peers.open_session(passing.address)
        assert session is not None
        session.close()
        await session.wait_closed()
        first = passing.forward(b"1")
        await passing.until_dialled()
        second = passing.front.forward(NUMBER, Command(Verb.SET, b"k", b"2"))
        assert [await second, await first] == [OK, OK]

    assert play(scenario) == [b"1", b"2"]
