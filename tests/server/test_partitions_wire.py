"""Lines and sessions over real sockets: the order of what arrives, and ends that are told once."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace.codec.memcached.binary import FrameDecoder, Request, encode_response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import encode_push
from millrace.codec.memcached.streams import encode_answer
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.messages import (
    Changes,
    Noop,
    ProducerAnswer,
    ProducerPush,
    SnapshotMarker,
    StreamAnswered,
    StreamRequest,
    StreamStatus,
)
from millrace.errors import NotConnected
from millrace.server.partitions.wire import WireLine
from tests.core.documents.partition_samples import mutation

TIME_LIMIT_S = 10
P0 = PartitionId(0)
REQUEST = StreamRequest(P0, Seq(0), FailoverId(5))
LOG = FailoverLog((FailoverEntry(FailoverId(5), Seq(0)),))
Answer = Callable[[Request], bytes]


class Listening:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self._changed = asyncio.Event()

    def opened(self) -> None:
        self._note("opened")

    def answered(self, ticket: int, answer: ProducerAnswer) -> None:
        self._note((ticket, type(answer)))

    def pushed(self, push: ProducerPush, size_bytes: int) -> None:
        self._note(type(push))

    def closed(self, why: str) -> None:
        self._note("closed")

    def _note(self, what: object) -> None:
        self.heard.append(what)
        self._changed.set()

    async def until(self, what: object) -> None:
        while what not in self.heard:
            self._changed.clear()
            await self._changed.wait()


class PlayedProducer:
    """Answers each request with whatever bytes the test says, in one write."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.received: list[Request] = []
        self.answered = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder = FrameDecoder(takes_answers=True)
        while data := await reader.read(1 << 16):
            for frame in decoder.feed(data):
                if isinstance(frame, Request):
                    self.received.append(frame)
                    writer.write(self._answer(frame))
                else:
                    self.answered.set()
        writer.close()


def with_line(
    answer: Answer, work: Callable[[PlayedProducer, WireLine, Listening], Awaitable[None]]
) -> None:
    async def body() -> None:
        producer, listening = PlayedProducer(answer), Listening()
        server = await asyncio.start_server(producer.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        line = WireLine(lambda: f"127.0.0.1:{port}", listening)
        async with asyncio.timeout(TIME_LIMIT_S):
            await listening.until("opened")
            await work(producer, line, listening)
        line.close()
        for writer in producer.writers:
            writer.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0)

    asyncio.run(body())


def stream_at_once(frame: Request) -> bytes:
    """The answer, and right behind it the first changes."""
    answer = encode_answer(StreamAnswered(P0, StreamStatus.OK, LOG), frame.opcode, frame.opaque)
    pushes: list[ProducerPush] = [
        SnapshotMarker(P0, Seq(0), Seq(1)),
        Changes(P0, (mutation(b"k", 1),)),
    ]
    frames = [encode_push(push, frame.opaque, is_batched=True) for push in pushes]
    return answer + b"".join(part for parts in frames for part in parts)


def test_an_answer_is_told_before_the_changes_behind_it() -> None:
    """They come in one piece; told the other way round they would be of no stream, and the replica
    would never get them."""

    async def work(_: PlayedProducer, line: WireLine, listening: Listening) -> None:
        line.ask(REQUEST, 7)
        await listening.until(Changes)
        assert listening.heard == ["opened", (7, StreamAnswered), SnapshotMarker, Changes]

    with_line(stream_at_once, work)


def test_a_line_that_is_lost_says_so_once() -> None:
    async def work(producer: PlayedProducer, line: WireLine, listening: Listening) -> None:
        line.ask(REQUEST, 7)
        await listening.until(Changes)
        producer.writers[0].close()
        await listening.until("closed")
        line.ask(REQUEST, 8)
        line.close()
        assert listening.heard.count("closed") == 1

    with_line(stream_at_once, work)


def test_a_producer_that_breaks_the_protocol_is_left() -> None:
    def nonsense(frame: Request) -> bytes:
        return encode_response(frame.opcode, Status.SUCCESS, frame.opaque, 0, b"no failover log")

    async def work(_: PlayedProducer, line: WireLine, listening: Listening) -> None:
        line.ask(REQUEST, 7)
        await listening.until("closed")
        assert listening.heard == ["opened", "closed"]

    with_line(nonsense, work)


def test_keep_alives_are_answered_by_the_line() -> None:
    def alive(frame: Request) -> bytes:
        return stream_at_once(frame) + b"".join(encode_push(Noop(), 3, is_batched=True))

    async def work(producer: PlayedProducer, line: WireLine, listening: Listening) -> None:
        line.ask(REQUEST, 7)
        await listening.until(Noop)
        await producer.answered.wait()
        assert [frame.opcode for frame in producer.received] == [Opcode.DCP_STREAM_REQUEST]

    with_line(alive, work)


def test_a_line_to_nobody_says_that_it_is_closed() -> None:
    def unknown() -> str:
        raise NotConnected("nobody knows where it is")

    async def body() -> None:
        for find in (unknown, lambda: "127.0.0.1:1"):
            listening = Listening()
            WireLine(find, listening)
            assert not listening.heard, "never from inside the call"
            async with asyncio.timeout(TIME_LIMIT_S):
                await listening.until("closed")
            assert listening.heard == ["closed"]

    asyncio.run(body())


def test_a_line_closed_while_it_dials_says_nothing() -> None:
    async def body() -> None:
        listening = Listening()
        line = WireLine(lambda: "127.0.0.1:1", listening)
        line.close()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not listening.heard

    asyncio.run(body())
