"""One session per address, dialled on demand and shared by everybody who needs it.

I1  At most one dial per address is under way; all who want the session wait for the same one.
I2  After a failure the next dial waits: twice as long each time, up to BACKOFF_MAX_MS, a little
    more or less so that many processes do not dial in step.  A session that ended right after
    it was opened counts as a failure.
I3  A caller that gives up harms no other: the dial goes on.
I4  What is meant for a node goes to that node and to nobody else who may have its address now;
    no session with another cluster is used once this process knows its own.
"""

import asyncio
import random
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from millrace.core.messages import Hello, Message
from millrace.errors import MillraceError, NoNodeReachable, NotConnected, WrongPeer
from millrace.runtime.closing import CloseReason, mismatch
from millrace.runtime.conditions import TransportCounters, TransportSettings
from millrace.runtime.session import Handler, Session
from millrace.runtime.transport import dial
from millrace.types import NodeId

BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
SETTLED_AFTER_MS: Final = 1_000  # A session that lived this long was no failure.
ANY_NODE: Final = NodeId(0)


class _Peer(msgspec.Struct):
    """What is known of one address."""

    session: Session | None = None
    dialling: asyncio.Task[Session] | None = None
    failures: int = 0
    opened_s: float = 0.0
    not_before_s: float = 0.0


class Peers:
    def __init__(
        self,
        hello: Hello,
        handler: Handler,
        settings: TransportSettings | None = None,
        counters: TransportCounters | None = None,
        dial_timeout_ms: int = 2_000,
    ) -> None:
        self._hello = hello
        self._handler = handler
        self._settings = settings or TransportSettings()
        self._counters = counters or TransportCounters()
        self._dial_timeout_ms = dial_timeout_ms
        self._peers: dict[str, _Peer] = {}
        # Of sessions that have ended, too: who hears of the end asks where it was, and by then the
        # address may have been dialled again.
        self._addresses: WeakKeyDictionary[Session, str] = WeakKeyDictionary()
        self._is_closed = False

    def introduce(self, hello: Hello) -> None:
        """Be known by another Hello from now on, one that says more; keeps I4."""
        self._hello = hello
        for peer in self._peers.values():
            if peer.session is not None and peer.session.is_open:
                refusal = mismatch(hello, peer.session.peer)
                if refusal is not None:
                    peer.session.close(*refusal)

    def open_session(self, address: str, node: NodeId = ANY_NODE) -> Session | None:
        """The session if there is one now, with that node; never dials."""
        peer = self._peers.get(address)
        if peer is None or peer.session is None or not peer.session.is_open:
            return None
        if node != ANY_NODE and peer.session.peer.node != node:
            return None
        return peer.session

    def address_of(self, session: Session) -> str | None:
        """The address that was dialled for `session`; None if it is not of these."""
        return self._addresses.get(session)

    def is_resting(self, address: str) -> bool:
        """It could not be reached a moment ago, and will not be dialled before its time."""
        peer = self._peers.get(address)
        if peer is None or self.open_session(address) is not None:
            return False
        return peer.not_before_s > asyncio.get_running_loop().time()

    async def session(self, address: str) -> Session:
        """An open session; raises NoNodeReachable or WrongPeer."""
        session = self.open_session(address)
        if session is not None:
            return session
        if self._is_closed:
            raise NotConnected(f"{address}: connections of this process are closed")
        peer = self._peers.setdefault(address, _Peer())
        if peer.dialling is None:
            peer.dialling = asyncio.create_task(self._dial(address, peer))
            peer.dialling.add_done_callback(_take_note)
        # Keeps I3: shielded from the caller's cancellation.
        return await asyncio.shield(peer.dialling)

    async def ask(
        self, address: str, message: Message, timeout_ms: int, node: NodeId = ANY_NODE
    ) -> Message:
        """Ask the process at `address`; the time includes dialling.  Raises as `Session.ask`, and
        WrongPeer if the process is not `node`: then nothing was sent."""
        session = self.open_session(address, node)
        if session is not None:
            return await session.ask(message, timeout_ms)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline_s):
                session = await self.session(address)
        except TimeoutError as error:
            raise NoNodeReachable(f"{address} was not reached within {timeout_ms} ms") from error
        if node != ANY_NODE and session.peer.node != node:
            raise WrongPeer(f"{address} is node {session.peer.node} by now, not node {node}")
        left_ms = int((deadline_s - loop.time()) * 1000)
        return await session.ask(message, max(1, left_ms))

    async def close(self) -> None:
        """Say Goodbye to all; nothing is dialled any more."""
        self._is_closed = True
        dialling = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        sessions = [peer.session for peer in self._peers.values() if peer.session is not None]
        self._peers.clear()
        self._addresses.clear()
        for session in sessions:
            session.close(CloseReason.CLOSED, "no longer needed")
        for session in sessions:
            await session.wait_closed()

    async def _dial(self, address: str, peer: _Peer) -> Session:
        loop = asyncio.get_running_loop()
        if peer.session is not None:
            if loop.time() < peer.opened_s + SETTLED_AFTER_MS / 1000:
                self._failed(peer)
            else:
                peer.failures = 0
        peer.session = None
        try:
            await asyncio.sleep(max(0.0, peer.not_before_s - loop.time()))
            session = await dial(
                address,
                self._hello,
                self._handler,
                self._dial_timeout_ms,
                self._settings,
                self._counters,
            )
            self._check_cluster(address, session)
        except MillraceError:
            self._failed(peer)
            raise
        finally:
            peer.dialling = None
        peer.session = session
        self._addresses[session] = address
        peer.opened_s = loop.time()
        peer.not_before_s = 0.0
        return session

    def _check_cluster(self, address: str, session: Session) -> None:
        """This process may have learnt its cluster while it dialled."""
        refusal = mismatch(self._hello, session.peer)
        if refusal is not None:
            session.close(*refusal)
            raise WrongPeer(f"{address}: {refusal[1]}")

    def _failed(self, peer: _Peer) -> None:
        delay_ms = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << min(peer.failures, 16))
        peer.failures += 1
        jitter = random.uniform(0.75, 1.25)
        peer.not_before_s = asyncio.get_running_loop().time() + delay_ms * jitter / 1000


def _take_note(task: asyncio.Task[Session]) -> None:
    """A dial nobody waits for any more may fail without a complaint: the next one will tell."""
    if not task.cancelled():
        task.exception()
