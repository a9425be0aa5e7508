"""A process's connections to the nodes of its cluster, and the streams pushed over them.

Streams are numbered once for the whole process.  Whatever a node pushes on a stream goes to that
stream's listener, which hears None when a connection it was opened on ends.  A stream of blocks
may come from several nodes; its listener hears of whom each message is.
"""

import itertools
from collections.abc import Callable

from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Damaged,
    Ended,
    GapFound,
    Hello,
    Message,
    MetaChanged,
    Refusal,
    Refused,
)
from millrace.runtime.asks import AnswerWaiter
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.peers import ANY_NODE, Peers
from millrace.runtime.session import Session
from millrace.types import NodeId

ReadPushed = Blocks | CaughtUp | GapFound | Damaged | Ended
ReadListener = Callable[[NodeId, ReadPushed | None], None]
WatchListener = Callable[[MetaChanged | None], None]


class Links:
    def __init__(
        self,
        hello: Hello,
        settings: TransportSettings | None = None,
        counters: TransportCounters | None = None,
    ) -> None:
        self.counters = counters or TransportCounters()
        self._peers = Peers(hello, self, settings, self.counters)
        self._reads: dict[int, tuple[set[str], ReadListener]] = {}
        self._watches: dict[int, tuple[str, WatchListener]] = {}
        self._numbers = itertools.count(1)

    def introduce(self, hello: Hello) -> None:
        """As `Peers.introduce`."""
        self._peers.introduce(hello)

    async def ask(
        self, address: str, message: Message, timeout_ms: int, node: NodeId = ANY_NODE
    ) -> Message:
        """Ask whoever is at `address`, or `node` and nobody else."""
        return await self._peers.ask(address, message, timeout_ms, node)

    def ask_now(
        self,
        address: str,
        message: Message,
        timeout_ms: int,
        waiter: AnswerWaiter,
        node: NodeId = ANY_NODE,
    ) -> bool:
        """Ask if there is an open session with that node; false if it must be dialled first."""
        session = self._peers.open_session(address, node)
        if session is None:
            return False
        session.ask_for(waiter, message, timeout_ms)
        return True

    def is_open(self, address: str, node: NodeId = ANY_NODE) -> bool:
        """What is asked there now leaves now."""
        return self._peers.open_session(address, node) is not None

    def is_resting(self, address: str) -> bool:
        """As `Peers.is_resting`."""
        return self._peers.is_resting(address)

    def tell(self, address: str, message: Message) -> None:
        session = self._peers.open_session(address)
        if session is not None:
            session.tell(message)

    def open_stream(self, address: str, listener: WatchListener) -> int:
        """A stream of changes of the metadata repository."""
        number = next(self._numbers)
        self._watches[number] = (address, listener)
        return number

    def close_stream(self, number: int) -> None:
        self._watches.pop(number, None)

    def open_read(self, listener: ReadListener) -> int:
        """A stream of blocks; `add_read` says which nodes it comes from."""
        number = next(self._numbers)
        self._reads[number] = (set(), listener)
        return number

    def add_read(self, number: int, address: str) -> None:
        if number in self._reads:
            self._reads[number][0].add(address)

    def close_read(self, number: int) -> None:
        self._reads.pop(number, None)

    async def close(self) -> None:
        await self._peers.close()

    # -- Handler ------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, request_id: int, message: Message) -> None:
        if isinstance(message, ReadPushed):
            read = self._reads.get(message.stream)
            if read is not None:
                read[1](session.peer.node, message)
        elif isinstance(message, MetaChanged):
            watch = self._watches.get(message.stream)
            if watch is not None:
                watch[1](message)
        elif request_id:
            session.answer(request_id, Refused(Refusal.BAD_REQUEST, detail="not a server"))

    def writable(self, session: Session) -> None:
        pass

    def closed(self, session: Session, reason: str) -> None:
        address = self._peers.address_of(session)
        for addresses, tell_reader in list(self._reads.values()):
            if address in addresses:
                tell_reader(session.peer.node, None)
        for watch_address, tell_watcher in list(self._watches.values()):
            if watch_address == address:
                tell_watcher(None)
