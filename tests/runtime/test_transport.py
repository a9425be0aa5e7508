"""Two processes talk: asking, answering, telling, listening, dialling, closing."""

import asyncio
import socket

import pytest

from loopback import (
    HELLO,
    RawPeer,
    Recorder,
    block_of,
    echo,
    pair,
    question,
    run,
    write_of,
)
from millrace.codec import frames
from millrace.core.messages import Blocks, Hello, Message, Peeked, Refusal, Refused, Written
from millrace.errors import (
    AddressInUse,
    BadConfiguration,
    ConnectionLost,
    NoAnswer,
    NoNodeReachable,
    NotConnected,
    WrongPeer,
)
from millrace.runtime.closing import CloseReason, cluster_mark, mismatch
from millrace.runtime.transport import (
    Session,
    TransportCounters,
    TransportSettings,
    dial,
    listen,
    parse_address,
)


def test_an_ask_gets_its_answer_and_both_sides_know_each_other() -> None:
    async def body() -> None:
        async with pair() as both:
            assert await both.session.ask(echo(41), 1_000) == Peeked(41)
            assert both.session.peer == both.served.peer == HELLO
            assert both.session.address == both.listener.address
            assert both.session.is_open and both.session.id != both.served.id
            assert both.client_counters.round_trips == 1
            assert both.server_counters.round_trips == 0

    run(body)


def test_a_refusal_is_an_answer_like_any_other() -> None:
    async def body() -> None:
        async with pair() as both:
            asked = both.session.ask(question(), 1_000)
            await both.server.until(lambda: bool(both.server.requests))
            session, request_id, _ = both.server.requests[0]
            session.answer(request_id, Refused(Refusal.BUSY))
            assert await asked == Refused(Refusal.BUSY)

    run(body)


def test_many_asks_at_once_get_each_their_own_answer() -> None:
    async def body() -> None:
        async with pair() as both:
            asked = [both.session.ask(echo(number), 5_000) for number in range(1, 3_001)]
            answers = await asyncio.gather(*asked)
            assert answers == [Peeked(number) for number in range(1, 3_001)]

    run(body)


@pytest.mark.parametrize("size", [1, 4_000, 20_000, 300_000, 5_000_000])
def test_blocks_of_any_size_arrive_whole(size: int) -> None:
    async def body() -> None:
        async with pair() as both:
            for _ in range(3):
                assert await both.session.ask(write_of(size), 5_000) == Written()
            block = block_of(size)
            both.served.tell(Blocks(1, 1, (block, block)))
            await both.client.until(lambda: bool(both.client.told))
            message = both.client.told[0]
            assert isinstance(message, Blocks)
            assert [found.data for found in message.blocks] == [block.data, block.data]

    run(body)


def test_one_way_messages_keep_their_order() -> None:
    async def body() -> None:
        async with pair() as both:
            for number in range(500):
                both.session.tell(question(number))
            await both.server.until(lambda: len(both.server.told) == 500)
            assert both.server.told == [question(number) for number in range(500)]

    run(body)


def test_an_ask_without_an_answer_times_out_and_the_late_answer_is_counted() -> None:
    async def body() -> None:
        async with pair() as both:
            patient = both.session.ask(question(2), 5_000)
            with pytest.raises(NoAnswer, match="Next"):
                await both.session.ask(question(1), 20)
            await both.server.until(lambda: len(both.server.requests) == 2)
            for session, request_id, message in both.server.requests:
                session.answer(request_id, message)
            assert await patient == question(2)
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            assert both.client_counters.late_answers == 1
            assert both.session.is_open

    run(body)


def test_a_cancelled_ask_leaves_the_connection_as_it_was() -> None:
    async def body() -> None:
        async with pair() as both:
            both.session.ask(echo(1), 1_000).cancel()
            assert await both.session.ask(echo(2), 1_000) == Peeked(2)

    run(body)


def test_asks_beyond_the_limit_wait_for_their_turn() -> None:
    async def body() -> None:
        async with pair(client_settings=TransportSettings(requests_in_flight_max=3)) as both:
            asked = [both.session.ask(question(), 5_000) for _ in range(3)]
            asked += [both.session.ask(echo(number), 5_000) for number in range(1, 9)]
            await both.server.until(lambda: len(both.server.requests) == 3)
            assert both.client_counters.round_trips == 3
            for session, request_id, message in both.server.requests:
                session.answer(request_id, message)
            answers = await asyncio.gather(*asked)
            assert answers[3:] == [Peeked(number) for number in range(1, 9)]
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)

    run(body)


def test_closing_tells_the_peer_why_and_fails_what_waits() -> None:
    async def body() -> None:
        async with pair() as both:
            asked = both.session.ask(question(), 5_000)
            await both.server.until(lambda: bool(both.server.requests))
            both.served.close("maintenance", "back soon")
            with pytest.raises(ConnectionLost, match="maintenance"):
                await asked
            await both.client.until(lambda: bool(both.client.closes))
            assert both.client.closes == ["maintenance"]
            assert both.session.close_detail == "back soon"
            with pytest.raises(NotConnected, match="maintenance"):
                both.session.ask(echo(1), 1_000)
            await both.server.until(lambda: bool(both.server.closes))
            assert both.server.closes == ["maintenance"]
            assert both.client_counters.closes == {"other": 1}
            assert both.client_counters.connections == both.server_counters.connections == 0
            session, request_id, _ = both.server.requests[0]
            session.answer(request_id, Peeked(1))  # Too late, and harmless.

    run(body)


def test_what_waits_is_sent_before_the_connection_ends() -> None:
    async def body() -> None:
        async with pair() as both:
            for number in range(40):
                both.session.tell(Blocks(number, 1, (block_of(500_000),)))
            both.session.close()
            await both.server.until(lambda: bool(both.server.closes))
            assert [message.stream for message in both.server.told] == list(range(40))  # type: ignore[attr-defined]
            assert both.server.closes == ["closed"]

    run(body)


def test_a_stopping_listener_says_goodbye_to_all() -> None:
    async def body() -> None:
        async with pair() as both:
            await both.listener.close()
            await both.client.until(lambda: bool(both.client.closes))
            assert both.client.closes == ["stopping"]
            with pytest.raises(NoNodeReachable):
                await dial(both.listener.address, HELLO, Recorder(), 1_000)

    run(body)


MISMATCHES = {
    "version": (Hello(frames.PROTOCOL_VERSION + 1, "mill"), "version"),
    "cluster": (Hello(frames.PROTOCOL_VERSION, "other"), "cluster 'mill'|cluster 'other'"),
}


def test_clusters_of_one_name_are_told_apart_by_their_id() -> None:
    mill = Hello(frames.PROTOCOL_VERSION, cluster_mark("mill", "a1"))
    assert mill.cluster == "mill/a1"
    for fits in ("", "mill", "mill/a1"):
        assert mismatch(mill, Hello(frames.PROTOCOL_VERSION, fits)) is None
        assert mismatch(Hello(frames.PROTOCOL_VERSION, fits), mill) is None
    for differs in ("mile", "mill/b2", "mile/a1"):
        refusal = mismatch(mill, Hello(frames.PROTOCOL_VERSION, differs))
        assert refusal is not None and refusal[0] is CloseReason.WRONG_CLUSTER


@pytest.mark.parametrize(("hello", "reason"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_mismatch_is_clear_on_both_sides(hello: Hello, reason: str) -> None:
    async def body() -> None:
        counters = TransportCounters()
        server = Recorder()
        listener = await listen("127.0.0.1", 0, HELLO, server, None, counters)
        with pytest.raises(WrongPeer, match=reason):
            await dial(listener.address, hello, Recorder(), 2_000)
        raw = await RawPeer.connect(listener.address)
        raw.send(hello)
        assert (await raw.goodbye()).code in ("version", "wrong_cluster")
        await raw.close()
        await listener.close()
        assert sum(counters.closes.values()) == 2
        assert set(counters.closes) <= {"version", "wrong_cluster"}
        assert server.sessions == [] and server.closes == []

    run(body)


def test_a_client_that_does_not_know_its_cluster_is_welcome() -> None:
    async def body() -> None:
        async with pair() as both:
            session = await dial(
                both.listener.address, Hello(frames.PROTOCOL_VERSION), Recorder(), 2_000
            )
            assert session.peer.cluster == "mill"
            session.close()
            await session.wait_closed()

    run(body)


def test_a_port_in_use_is_named() -> None:
    async def body() -> None:
        async with pair() as both:
            host, port = parse_address(both.listener.address)
            with pytest.raises(AddressInUse, match=f"127.0.0.1:{port} is in use"):
                await listen(host, port, HELLO, Recorder())

    run(body)


def test_nobody_there() -> None:
    async def body() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
            with pytest.raises(NoNodeReachable, match=address):
                await dial(address, HELLO, Recorder(), 1_000)

    run(body)


def test_somebody_there_who_never_says_hello() -> None:
    async def body() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(NoNodeReachable, match="within 50 ms"):
                await dial(address, HELLO, Recorder(), 50)

    run(body)


def test_dialling_is_given_up_while_the_system_still_connects() -> None:
    async def body() -> None:
        with socket.socket() as full, socket.socket() as one, socket.socket() as other:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for filler in (one, other):  # The backlog: further peers wait for a place in it.
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            counters = TransportCounters()
            address = f"127.0.0.1:{full.getsockname()[1]}"
            with pytest.raises(NoNodeReachable, match="within 60 ms"):
                await dial(address, HELLO, Recorder(), 60, None, counters)
            assert counters.connections_opened == 0

    run(body)


def test_an_error_in_a_handler_is_loud_and_ends_that_connection_only() -> None:
    class Faulty(Recorder):
        def received(self, session: Session, request_id: int, message: Message) -> None:
            raise ZeroDivisionError("a defect")

    async def body() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: reported.append(context.get("exception"))
        )
        async with pair() as both:
            faulty = Faulty()
            session = await dial(both.listener.address, HELLO, faulty, 2_000)
            both.server.sessions[-1].tell(question())
            await faulty.until(lambda: bool(faulty.closes))
            assert faulty.closes == ["lost"]
            assert not session.is_open
            assert [type(error) for error in reported] == [ZeroDivisionError]
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)

    run(body)


def test_one_connection_too_many_is_sent_away() -> None:
    async def body() -> None:
        async with pair(TransportSettings(connections_max=1)) as both:
            with pytest.raises(NoNodeReachable, match="1 connections are open"):
                await dial(both.listener.address, HELLO, Recorder(), 2_000)
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)

    run(body)


def test_small_messages_are_not_held_back_by_the_system() -> None:
    async def body() -> None:
        async with pair() as both:
            for session in (both.session, both.served):
                raw = session._transport.get_extra_info("socket")
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(body)


GOOD_ADDRESSES = {"a:1": ("a", 1), "127.0.0.1:0": ("127.0.0.1", 0), "[::1]:9": ("::1", 9)}


@pytest.mark.parametrize(("text", "address"), GOOD_ADDRESSES.items())
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:b", "a:70000", "::1:9", "a:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(BadConfiguration, match="address"):
        parse_address(text)
