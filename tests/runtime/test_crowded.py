"""A connection that carries more than it can take at once: everybody waits, nobody is cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loopback import HELLO, RawPeer, Recorder, block_of, echo, pair, question, run, write_of
from millrace.core.messages import Found, Message, Peek, Peeked, Window, Written
from millrace.limits import MIB
from millrace.runtime.transport import Listener, Session, TransportSettings, dial, listen

SMALL = TransportSettings(send_buffer_bytes_high=2 * MIB, send_buffer_bytes_max=8 * MIB)
BLOCK = block_of(MIB)


class Generous(Recorder):
    """Answers each Peek with a block of a MiB; remembers what was handled."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[Message] = []

    def received(self, session: Session, request_id: int, message: Message) -> None:
        self.handled.append(message)
        if isinstance(message, Peek):
            session.answer(request_id, Found(BLOCK))
        else:
            super().received(session, request_id, message)


@asynccontextmanager
async def listening(
    server: Generous, settings: TransportSettings = SMALL
) -> AsyncIterator[Listener]:
    listener = await listen("127.0.0.1", 0, HELLO, server, settings)
    try:
        yield listener
    finally:
        await listener.close()


def test_writes_wait_until_the_connection_takes_them() -> None:
    async def body() -> None:
        async with pair(client_settings=SMALL) as both:
            both.served.pause_receiving()
            asked = [both.session.ask(write_of(MIB), 8_000) for _ in range(40)]
            assert not both.session.is_writable
            assert both.session.send_buffer_bytes < 4 * MIB
            both.served.resume_receiving()
            assert await asyncio.gather(*asked) == [Written()] * 40
            assert both.client_counters.round_trips == 40
            assert both.session.is_open

    run(body)


def test_requests_are_handled_no_faster_than_their_answers_are_taken() -> None:
    async def body() -> None:
        server = Generous()
        async with listening(server) as listener:
            session = await dial(listener.address, HELLO, Recorder(), 2_000)
            answers = await asyncio.gather(*(session.ask(echo(n), 8_000) for n in range(1, 101)))
            assert all(isinstance(answer, Found) for answer in answers)
            assert server.closes == [] and session.is_open
            session.close()
            await session.wait_closed()

    run(body)


def test_what_is_held_keeps_its_order_and_a_peer_that_takes_nothing_is_given_up() -> None:
    async def body() -> None:
        server = Generous()
        settings = TransportSettings(
            keep_alive_ms=20, dead_peer_ms=100, send_buffer_bytes_high=2 * MIB
        )
        async with listening(server, settings) as listener:
            raw = await RawPeer.connect(listener.address, receive_bytes=4096)
            raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
            raw.send(HELLO)
            for number in range(1, 51):
                raw.send(echo(number), number)
            raw.send(Window(1, 1, 1))
            await server.until(lambda: bool(server.closes))
            assert server.closes == ["slow_peer"]
            assert 2 <= len(server.handled) < 20
            assert server.handled == [echo(number) for number in range(1, len(server.handled) + 1)]
            raw.writer.transport.abort()

    run(body)


def test_a_peer_that_was_slow_gets_everything_in_order() -> None:
    async def body() -> None:
        server = Generous()
        async with listening(server) as listener:
            raw = await RawPeer.connect(listener.address)
            raw.send(HELLO)
            for number in range(1, 31):
                raw.send(echo(number), number)
            raw.send(Window(1, 1, 1))
            assert await raw.receive() == (0, HELLO)
            for number in range(1, 31):
                request_id, answer = await raw.receive()
                assert request_id == number and isinstance(answer, Found)
            await server.until(lambda: len(server.handled) == 31)
            assert server.handled[-1] == Window(1, 1, 1)
            await raw.close()

    run(body)


def test_two_sides_that_serve_each_other_do_not_wait_for_each_other() -> None:
    async def body() -> None:
        server, client = Generous(), Generous()
        async with listening(server) as listener:
            session = await dial(listener.address, HELLO, client, 2_000, SMALL)
            await server.until(lambda: bool(server.sessions))
            asked = [session.ask(echo(number), 8_000) for number in range(1, 61)]
            asked += [server.sessions[0].ask(echo(number), 8_000) for number in range(1, 61)]
            answers = await asyncio.gather(*asked)
            assert len(answers) == 120 and all(isinstance(answer, Found) for answer in answers)
            session.close()
            await session.wait_closed()

    run(body)


def test_a_deadline_that_passes_makes_room_for_the_next() -> None:
    async def body() -> None:
        async with pair(client_settings=TransportSettings(requests_in_flight_max=1)) as both:
            silent = both.session.ask(question(), 30)
            assert await both.session.ask(echo(2), 5_000) == Peeked(2)
            assert type(silent.exception()).__name__ == "NoAnswer"

    run(body)
