"""One connection that sends much lets the loop serve others in between."""

import asyncio

import pytest

from millrace.codec.memcached.binary import encode_request
from millrace.codec.memcached.opcodes import Opcode
from millrace.server.documents.connection import TURN_READ_BYTES, Connection
from millrace.server.documents.flushing import DelayedFlushes
from millrace.server.documents.visitor import FrontEndCounts, Visitor
from tests.support.document_backend import default_backend

EXTRAS = bytes(8)


class RecordingTransport(asyncio.Transport):
    """Remembers what the connection does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.written = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


@pytest.mark.parametrize(
    ("value_bytes", "calls"),
    [(100, []), (TURN_READ_BYTES, ["pause", "resume"])],
    ids=["little", "much"],
)
def test_after_a_long_read_it_rests_for_a_turn(value_bytes: int, calls: list[str]) -> None:
    async def scenario() -> RecordingTransport:
        backend = default_backend()
        visitor = Visitor(backend, FrontEndCounts(), DelayedFlushes(backend))
        connection = Connection(visitor, lambda _: None)
        transport = RecordingTransport()
        connection.connection_made(transport)
        connection.data_received(encode_request(Opcode.SET, b"k", bytes(value_bytes), EXTRAS))
        assert transport.written, "what came is served at once"
        assert transport.calls == calls[:1]
        await asyncio.sleep(0)
        return transport

    assert asyncio.run(scenario()).calls == calls
