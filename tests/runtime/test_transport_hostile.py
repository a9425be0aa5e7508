"""Whatever one peer does costs it its own connection, with a reason; the others go on."""

import asyncio
import random
import struct
import time

import pytest

from loopback import HELLO, RawPeer, Recorder, block_of, echo, pair, question, run
from millrace.codec import frames
from millrace.core.messages import Found, Goodbye, Message, Peeked, Ping, Pong
from millrace.limits import FRAME_PAYLOAD_BYTES_MAX
from millrace.runtime.transport import TransportSettings, listen

HELLO_BYTES = b"".join(frames.encode(HELLO))


def frame(message: Message, request_id: int = 0, is_answer: bool = False) -> bytes:
    return b"".join(frames.encode(message, request_id, is_answer))


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def claiming(payload_size: int) -> bytes:
    return frame(Ping())[:20] + struct.pack("<I", payload_size) + frame(Ping())[24:]


MISDEEDS = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: mill\r\n\r\n" + bytes(1000), "protocol"),
    "zeros": (bytes(100_000), "protocol"),
    "not-hello-first": (frame(question(), 1), "protocol"),
    "other-version": (HELLO_BYTES[:8] + b"\x07" + HELLO_BYTES[9:], "version"),
    "hello-twice": (HELLO_BYTES + HELLO_BYTES, "protocol"),
    "bad-checksum": (HELLO_BYTES + flipped(frame(question(), 1), -1), "protocol"),
    "bad-block": (HELLO_BYTES + flipped(frame(Found(block_of(100))), -1), "corrupt_block"),
    "bad-large-block": (
        HELLO_BYTES + flipped(frame(Found(block_of(600_000))), -1),
        "corrupt_block",
    ),
    "huge-claim": (HELLO_BYTES + claiming(FRAME_PAYLOAD_BYTES_MAX + 1), "protocol"),
    "answer-never-asked": (HELLO_BYTES + frame(Peeked(1), 77, is_answer=True), "protocol"),
    "request-id-twice": (HELLO_BYTES + frame(question(), 5) * 2, "protocol"),
    "request-flood": (
        HELLO_BYTES + b"".join(frame(question(), number) for number in range(1, 12)),
        "too_many_requests",
    ),
}


@pytest.mark.parametrize(("data", "code"), MISDEEDS.values(), ids=MISDEEDS.keys())
def test_a_misdeed_is_answered_by_goodbye_and_harms_nobody_else(data: bytes, code: str) -> None:
    async def body() -> None:
        async with pair(TransportSettings(requests_in_flight_max=10)) as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send_bytes(data)
            goodbye = await raw.goodbye()
            assert goodbye.code == code and goodbye.detail
            await raw.close()
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            while len(both.listener.sessions) > 1:
                await asyncio.gather(
                    *(s.wait_closed() for s in both.listener.sessions - {both.served})
                )
            assert both.server_counters.closes == {code: 1}

    run(body)


def test_goodbye_is_read_even_by_a_peer_that_keeps_sending() -> None:
    async def body() -> None:
        async with pair() as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send_bytes(b"x" * 3_000_000)
            assert (await raw.goodbye()).code == "protocol"
            await raw.close()

    run(body)


def test_a_peer_that_says_nothing_is_not_waited_for() -> None:
    async def body() -> None:
        listener = await listen("127.0.0.1", 0, HELLO, Recorder(), TransportSettings(hello_ms=30))
        raw = await RawPeer.connect(listener.address)
        assert (await raw.goodbye()).code == "no_hello"
        await raw.close()
        await listener.close()

    run(body)


def test_a_claimed_large_frame_costs_little_until_it_comes() -> None:
    async def body() -> None:
        async with pair() as both:
            raws = [await RawPeer.connect(both.listener.address) for _ in range(20)]
            before = _resident_bytes()
            for raw in raws:
                raw.send_bytes(HELLO_BYTES + claiming(FRAME_PAYLOAD_BYTES_MAX))
            await both.server.until(lambda: len(both.server.sessions) == 21)
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            claimed_bytes = len(raws) * FRAME_PAYLOAD_BYTES_MAX
            assert _resident_bytes() - before < claimed_bytes // 10
            for raw in raws:
                await raw.close()

    run(body)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_a_half_open_peer_is_found_dead() -> None:
    async def body() -> None:
        fast = TransportSettings(keep_alive_ms=40, dead_peer_ms=120)
        async with pair(fast, fast) as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send(HELLO)
            assert await raw.receive() == (0, HELLO)
            await both.server.until(lambda: bool(both.server.closes))
            assert both.server.closes == ["dead_peer"]
            assert await raw.receive() == (0, Ping())
            assert both.session.is_open and both.served.is_open
            await raw.close()

    run(body)


def test_a_silent_peer_that_answers_pings_lives() -> None:
    async def body() -> None:
        settings = TransportSettings(keep_alive_ms=20, dead_peer_ms=200)
        async with pair(settings) as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send(HELLO)
            await raw.receive()
            for _ in range(15):
                assert await raw.receive() == (0, Ping())
                raw.send(Pong())
            raw.send(Ping())
            while (received := await raw.receive()) != (0, Pong()):
                assert received == (0, Ping())
            assert both.server.closes == []
            await raw.close()

    run(body)


def test_a_process_that_slept_does_not_take_its_peers_for_dead() -> None:
    async def body() -> None:
        settings = TransportSettings(keep_alive_ms=20, dead_peer_ms=60)
        async with pair(settings) as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send(HELLO)
            await raw.receive()
            assert await raw.receive() == (0, Ping())
            raw.send(Pong())
            wake_s = time.monotonic() + 0.2
            while time.monotonic() < wake_s:
                pass  # The loop stands still, as if the process had been stopped.
            assert await raw.receive() == (0, Ping())
            raw.send(echo(6), 1)
            while (received := await raw.receive()) != (1, Peeked(6)):
                assert received == (0, Ping())
            assert both.server.closes == []
            await raw.close()

    run(body)


def test_a_peer_that_ends_without_a_word() -> None:
    async def body() -> None:
        async with pair() as both:
            raw = await RawPeer.connect(both.listener.address)
            raw.send(HELLO)
            await raw.receive()
            await raw.close()
            await both.server.until(lambda: bool(both.server.closes))
            assert both.server.closes == ["peer_closed"]

    run(body)


def test_goodbye_with_an_invented_code_does_not_grow_the_counters() -> None:
    async def body() -> None:
        async with pair() as both:
            for number in range(5):
                raw = await RawPeer.connect(both.listener.address)
                raw.send(HELLO)
                raw.send(Goodbye(f"code{number}"))
                await both.server.until(lambda wanted=number + 1: len(both.server.closes) == wanted)
                await raw.close()
            assert both.server.closes == [f"code{number}" for number in range(5)]
            assert both.server_counters.closes == {"other": 5}

    run(body)


@pytest.mark.parametrize("seed", range(6))
def test_fuzzed_streams_end_in_goodbye_or_are_understood(seed: int) -> None:
    """Frames of all kinds, cut, flipped, repeated and mixed with noise, on ten connections."""
    chance = random.Random(seed)
    good = [frame(Ping()), frame(echo(1), 1), frame(Found(block_of(50))), frame(Pong())]

    def noise() -> bytes:
        data = b"".join(chance.choice(good) for _ in range(chance.randint(1, 20)))
        match chance.randrange(4):
            case 0:
                return flipped(data, chance.randrange(len(data)))
            case 1:
                return data[: chance.randrange(len(data))]
            case 2:
                return data + chance.randbytes(chance.randint(1, 500))
            case _:
                return data

    async def body() -> None:
        async with pair() as both:
            for _ in range(10):
                raw = await RawPeer.connect(both.listener.address)
                raw.send_bytes(HELLO_BYTES if chance.random() < 0.8 else b"")
                for _ in range(chance.randint(1, 5)):
                    raw.send_bytes(noise())
                raw.writer.write_eof()
                await raw.reader.read()  # To the end: the connection was closed.
                await raw.close()
            assert await both.session.ask(echo(1), 1_000) == Peeked(1)
            assert both.session.is_open

    run(body)
