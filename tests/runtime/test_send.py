"""Sending: back-pressure in both directions, and memory released exactly once."""

import asyncio
from functools import partial

import pytest

from loopback import HELLO, RawPeer, block_of, echo, pair, question, run
from millrace.core.messages import Blocks, Message, MetaSet, Peeked, Ping, Pong
from millrace.errors import MessageTooLarge
from millrace.limits import FRAME_META_BYTES_MAX, MIB
from millrace.runtime.session import Session
from millrace.runtime.transport import TransportSettings


class Leases:
    """Counts the releases of each frame."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, number: int):  # type: ignore[no-untyped-def]
        return lambda: self.released.append(number)


def pushed(number: int, size: int) -> Message:
    return Blocks(number, 1, (block_of(size),))


@pytest.mark.parametrize("size", [10, 20_000, 3 * MIB])
def test_memory_is_released_once_and_in_order_when_the_bytes_are_gone(size: int) -> None:
    async def body() -> None:
        async with pair() as both:
            leases = Leases()
            for number in range(12):
                both.session.tell(pushed(number, size), leases.release(number))
            await both.server.until(lambda: len(both.server.told) == 12)
            assert leases.released == list(range(12))
            assert both.session.send_buffer_bytes == 0
        assert leases.released == list(range(12))

    run(body)


def test_memory_may_be_used_again_as_soon_as_it_is_released() -> None:
    """Each block is overwritten when it is released: a frame released too early would arrive
    damaged, and the peer would refuse it."""

    async def body() -> None:
        async with pair() as both:
            for number, size in enumerate([100, 60_000, 3 * MIB] * 12):
                block = block_of(size)
                block.data = bytearray(block.data)
                both.session.tell(Blocks(number, 1, (block,)), partial(overwrite, block.data))
            await both.server.until(lambda: len(both.server.told) == 36 or bool(both.server.closes))
            assert both.server.closes == []

    run(body)


def overwrite(data: bytearray) -> None:
    data[:] = b"\xee" * len(data)


def test_memory_is_kept_while_the_peer_does_not_read_and_released_once_when_it_is_lost() -> None:
    async def body() -> None:
        async with pair() as both:
            raw = await RawPeer.connect(both.listener.address, receive_bytes=4096)
            raw.send(HELLO)
            await both.server.until(lambda: len(both.server.sessions) == 2)
            served = both.server.sessions[1]
            leases = Leases()
            raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(20):
                served.tell(pushed(number, 4 * MIB), leases.release(number))
            # One turn, so that what the system takes at all has been taken.
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            kept = 20 - len(leases.released)
            assert kept >= 15
            raw.writer.transport.abort()
            await both.server.until(lambda: bool(both.server.closes))
            assert leases.released == list(range(20))

    run(body)


def test_memory_is_released_when_the_connection_is_already_closed() -> None:
    async def body() -> None:
        async with pair() as both:
            leases = Leases()
            asked = both.session.ask(question(), 1_000)
            asked.add_done_callback(lambda future: future.exception())
            await both.server.until(lambda: bool(both.server.requests))
            both.served.close()
            both.served.tell(pushed(1, 10), leases.release(1))
            both.served.answer(both.server.requests[0][1], Peeked(1), leases.release(2))
            assert leases.released == [1, 2]

    run(body)


def test_memory_is_not_released_when_the_message_is_refused() -> None:
    async def body() -> None:
        async with pair() as both:
            leases = Leases()
            with pytest.raises(MessageTooLarge):
                both.session.tell(MetaSet("k", bytes(FRAME_META_BYTES_MAX), 0), leases.release(1))
            assert leases.released == []
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)

    run(body)


def test_a_sender_is_told_to_wait_and_told_when_to_go_on() -> None:
    async def body() -> None:
        settings = TransportSettings(send_buffer_bytes_high=4 * MIB)
        async with pair(client_settings=settings) as both:
            both.served.pause_receiving()
            sent = 0
            while both.session.is_writable:
                both.session.tell(pushed(sent, MIB))
                sent += 1
            assert both.client.writables == 0
            assert both.session.send_buffer_bytes > 4 * MIB
            both.served.resume_receiving()
            await both.client.until(lambda: both.client.writables == 1)
            assert both.session.is_writable
            assert both.session.send_buffer_bytes <= 2 * MIB
            await both.server.until(lambda: len(both.server.told) == sent)

    run(body)


def test_a_hopelessly_slow_peer_is_disconnected_and_others_are_served() -> None:
    async def body() -> None:
        settings = TransportSettings(send_buffer_bytes_max=20 * MIB)
        async with pair(settings) as both:
            raw = await RawPeer.connect(both.listener.address, receive_bytes=4096)
            raw.send(HELLO)
            await both.server.until(lambda: len(both.server.sessions) == 2)
            served: Session = both.server.sessions[1]
            raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
            leases = Leases()
            sent = 0
            while served.is_open:
                served.tell(pushed(sent, MIB), leases.release(sent))
                sent += 1
            await both.server.until(lambda: bool(both.server.closes))
            assert both.server.closes == ["slow_peer"]
            assert 20 <= sent < 40
            assert leases.released == list(range(sent))
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            raw.writer.transport.abort()

    run(body)


def test_nothing_is_received_while_receiving_is_paused() -> None:
    async def body() -> None:
        async with pair() as both:
            both.served.pause_receiving()
            asked = both.session.ask(echo(7), 5_000)
            other = await RawPeer.connect(both.listener.address)
            other.send(HELLO)
            await both.server.until(lambda: len(both.server.sessions) == 2)
            assert not asked.done()
            both.served.resume_receiving()
            assert await asked == Peeked(7)
            await other.close()

    run(body)


def test_a_paused_receiver_gives_signs_of_life_and_holds_nobody_else_dead() -> None:
    async def body() -> None:
        settings = TransportSettings(keep_alive_ms=20, dead_peer_ms=60)
        async with pair(settings) as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send(HELLO)
            await both.server.until(lambda: len(both.server.sessions) == 2)
            served = both.server.sessions[1]
            served.pause_receiving()
            assert await raw.receive() == (0, HELLO)
            for _ in range(10):
                assert await raw.receive() == (0, Pong())
            assert served.is_open
            raw.send(echo(4), 1)
            served.resume_receiving()
            while (received := await raw.receive()) != (1, Peeked(4)):
                assert received[1] in (Ping(), Pong())
            await raw.close()

    run(body)


def test_who_waits_for_each_answer_never_waits_for_another_turn() -> None:
    async def body() -> None:
        async with pair() as both:
            for number in range(1, 5):
                asked = both.session.ask(echo(number), 1_000)
                assert both.session.send_buffer_bytes == 0, "it has left"
                await asked

    run(body)


def test_the_first_message_of_a_turn_leaves_at_once_and_the_others_together() -> None:
    async def body() -> None:
        async with pair() as both:
            calls = 0
            transport = both.session._transport

            class Counted:
                def __getattr__(self, name: str) -> object:
                    return getattr(transport, name)

                def writelines(self, buffers: list[bytes]) -> None:
                    nonlocal calls
                    calls += 1
                    transport.writelines(buffers)

            both.session._queue._transport = Counted()  # type: ignore[assignment]
            asked = [both.session.ask(echo(1), 1_000)]
            assert calls == 1
            asked += [both.session.ask(echo(number), 1_000) for number in range(2, 200)]
            await asyncio.gather(*asked)
            assert calls == 2

    run(body)
