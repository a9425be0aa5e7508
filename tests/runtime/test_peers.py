"""Peers: one session per address, shared, dialled again after it was lost."""

import asyncio
import socket

import pytest

from loopback import HELLO, Recorder, echo, pair, question, run
from millrace.codec import frames
from millrace.core.messages import Hello, Message, MetaChanged, Peeked
from millrace.errors import ConnectionLost, NoNodeReachable, NotConnected, Unavailable, WrongPeer
from millrace.runtime.links import Links
from millrace.runtime.peers import BACKOFF_FIRST_MS, Peers
from millrace.runtime.transport import TransportCounters, listen, parse_address
from millrace.types import NodeId


def test_concurrent_callers_share_one_session() -> None:
    async def body() -> None:
        async with pair() as both:
            counters = TransportCounters()
            peers = Peers(HELLO, Recorder(), counters=counters)
            address = both.listener.address
            assert peers.open_session(address) is None
            sessions = await asyncio.gather(*(peers.session(address) for _ in range(20)))
            assert len({session.id for session in sessions}) == 1
            answers = await asyncio.gather(
                *(peers.ask(address, echo(number), 1_000) for number in range(1, 50))
            )
            assert answers == [Peeked(number) for number in range(1, 50)]
            assert counters.connections_opened == 1
            assert peers.open_session(address) is sessions[0]
            await peers.close()
            assert counters.connections == 0
            with pytest.raises(NotConnected):
                await peers.session(address)

    run(body)


def test_a_lost_session_is_dialled_again() -> None:
    async def body() -> None:
        async with pair() as both:
            peers = Peers(HELLO, Recorder())
            address = both.listener.address
            asked = asyncio.create_task(peers.ask(address, question(), 5_000))
            await both.server.until(lambda: bool(both.server.requests))
            first = await peers.session(address)
            both.server.requests[0][0].close("closed")
            with pytest.raises(ConnectionLost):
                await asked
            assert await peers.ask(address, echo(3), 2_000) == Peeked(3)
            assert await peers.session(address) is not first
            await peers.close()

    run(body)


def test_a_failed_dial_is_told_at_once_and_the_next_one_waits_a_little() -> None:
    async def body() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            peers = Peers(HELLO, Recorder())
            loop = asyncio.get_running_loop()
            for _ in range(3):
                with pytest.raises(NoNodeReachable, match=address):
                    await peers.session(address)
            started_s = loop.time()
            with pytest.raises(NoNodeReachable, match=address):
                await peers.session(address)
            assert loop.time() - started_s >= BACKOFF_FIRST_MS * 4 * 0.7 / 1000
            with pytest.raises(NoNodeReachable, match="within 5 ms"):
                await peers.ask(address, echo(1), 5)
        listener = await listen(*parse_address(address), HELLO, Recorder())
        assert await peers.ask(address, echo(1), 3_000) == Peeked(1)
        await peers.close()
        await listener.close()

    run(body)


def test_a_session_that_ends_right_after_it_opened_counts_as_a_failure() -> None:
    async def body() -> None:
        async with pair() as both:
            peers = Peers(HELLO, Recorder())
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            for _ in range(4):
                session = await peers.session(both.listener.address)
                session.close()
                await session.wait_closed()
            assert loop.time() - began_s >= BACKOFF_FIRST_MS * (1 + 2 + 4) * 0.7 / 1000
            await peers.close()

    run(body)


def test_a_caller_that_gives_up_harms_no_other() -> None:
    async def body() -> None:
        async with pair() as both:
            peers = Peers(HELLO, Recorder())
            address = both.listener.address
            hasty = asyncio.create_task(peers.session(address))
            patient = asyncio.create_task(peers.session(address))
            await asyncio.sleep(0)
            hasty.cancel()
            assert (await patient).is_open
            assert hasty.cancelled() or hasty.cancelling()
            await peers.close()

    run(body)


def test_closing_while_a_dial_is_under_way() -> None:
    async def body() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            peers = Peers(HELLO, Recorder())
            waiting = asyncio.create_task(peers.session(f"127.0.0.1:{silent.getsockname()[1]}"))
            await asyncio.sleep(0)
            await peers.close()
            with pytest.raises((asyncio.CancelledError, NotConnected)):
                await waiting

    run(body)


class Answer:
    """Waits for an answer as a procedure does."""

    def __init__(self) -> None:
        self.arrived = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return False

    def set_result(self, message: Message) -> None:
        self.arrived.set_result(message)

    def set_exception(self, error: Exception) -> None:
        self.arrived.set_exception(error)


def test_what_is_meant_for_a_node_reaches_no_other_at_its_address() -> None:
    async def body() -> None:
        server = Recorder()
        listener = await listen(
            "127.0.0.1", 0, Hello(frames.PROTOCOL_VERSION, "mill/a1", NodeId(3)), server
        )
        links = Links(HELLO)
        address = listener.address
        for _ in range(2):  # Dialled for it; then there already.
            with pytest.raises(WrongPeer, match="is node 3 by now, not node 2") as raised:
                await links.ask(address, question(), 2_000, NodeId(2))
            assert isinstance(raised.value, Unavailable) and raised.value.is_definite
        assert not links.ask_now(address, question(), 2_000, Answer(), NodeId(2))
        assert server.requests == []
        # Whoever means that node, or whoever is there, is served on the same connection.
        answer = Answer()
        assert links.ask_now(address, echo(5), 2_000, answer, NodeId(3))
        assert await answer.arrived == Peeked(5)
        assert await links.ask(address, echo(6), 2_000, NodeId(3)) == Peeked(6)
        assert await links.ask(address, echo(7), 2_000) == Peeked(7)
        assert len(server.sessions) == 1
        await links.close()
        await listener.close()

    run(body)


def test_who_learns_its_cluster_leaves_the_others() -> None:
    async def body() -> None:
        counters = TransportCounters()
        ours, theirs = Recorder(), Recorder()
        here = await listen("127.0.0.1", 0, Hello(frames.PROTOCOL_VERSION, "mill/a1"), ours)
        there = await listen("127.0.0.1", 0, Hello(frames.PROTOCOL_VERSION, "mill/b2"), theirs)
        peers = Peers(Hello(frames.PROTOCOL_VERSION), Recorder(), counters=counters)
        for listener in (here, there):
            await peers.session(listener.address)
        late = Peers(Hello(frames.PROTOCOL_VERSION), Recorder())
        dialling = asyncio.create_task(late.session(there.address))
        await asyncio.sleep(0)
        for knowing in (peers, late):
            knowing.introduce(Hello(frames.PROTOCOL_VERSION, "mill/a1"))
        assert peers.open_session(there.address) is None
        assert await peers.ask(here.address, echo(1), 2_000) == Peeked(1)
        for waiting in (peers.session(there.address), dialling):
            with pytest.raises(WrongPeer, match="mill/b2"):
                await waiting
        assert counters.connections_opened == 2
        await peers.close()
        await late.close()
        await here.close()
        await there.close()

    run(body)


@pytest.mark.parametrize("asks_at_once", [False, True], ids=["left alone", "asked at once"])
def test_a_listener_hears_once_that_its_connection_ended(asks_at_once: bool) -> None:
    """Also if somebody dials the address again before the end is known."""

    async def body() -> None:
        server = Recorder()
        listener = await listen("127.0.0.1", 0, HELLO, server)
        links, address = Links(HELLO), listener.address
        heard: list[MetaChanged | None] = []
        links.open_stream(address, heard.append)
        assert await links.ask(address, echo(1), 2_000) == Peeked(1)
        session = links._peers.open_session(address)
        assert session is not None
        session.close()
        if asks_at_once:
            assert await links.ask(address, echo(2), 2_000) == Peeked(2)
        await session.wait_closed()
        heard_before_closing = list(heard)
        await links.close()
        await listener.close()
        assert heard_before_closing == heard == [None]

    run(body)
