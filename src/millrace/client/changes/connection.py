"""A consumer's connection to one node: questions, pushes, keep-alives, acknowledged bytes.

I1  An answer is told before whatever the node pushed after it: the first changes of a stream
    come right behind the answer to its request.
I2  Every pushed byte is acknowledged, in steps of a part of the buffer: the node can never wait
    for an acknowledgement that is withheld here.
I3  A node that is silent for more than two keep-alives is given up.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from millrace.client.bucket_asking import DIAL_TIMEOUT_MS, greet
from millrace.codec.memcached.binary import Request, Response, encode_response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import BadMessage, decode_push
from millrace.codec.memcached.streams import decode_answer, encode_message
from millrace.core.documents.document import PartitionId
from millrace.core.documents.message_sizes import CHANGE_BYTES, message_bytes
from millrace.core.documents.messages import (
    Answered,
    Barrier,
    BufferAck,
    Changes,
    ConsumerRequest,
    Control,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    StreamStatus,
)
from millrace.errors import NotConnected, Unavailable
from millrace.runtime.document_link import Answerer, DocumentLink, dial_documents

ACK_PARTS: Final = 4  # Bytes are acknowledged in this part of the buffer.
ASK_TIMEOUT_MS: Final = 30_000


class StreamSettings(msgspec.Struct, frozen=True):
    name: str  # "what:who", as the node's statistics show it.
    bucket: str
    buffer_bytes: int
    noop_interval_s: float
    key_prefix: str = ""
    is_columnar: bool = False  # Changes are told by their body alone: no document is made.

    def controls(self) -> list[Control]:
        found = [
            Control("enable_noop", "true"),
            Control("set_noop_interval", f"{self.noop_interval_s:g}"),
            Control("connection_buffer_size", str(self.buffer_bytes)),
            Control("changes_in_batches", "true"),
            Control("states", "active"),
        ]
        if self.key_prefix:
            found.append(Control("key_prefix", self.key_prefix))
        return found


class Pushed(msgspec.Struct, frozen=True):
    """What a node said of itself.  `body` is the columns of changes, as received."""

    message: ProducerPush
    opaque: int
    size_bytes: int
    body: bytes | None


class StreamConnection:
    """`on_push` is told everything but keep-alives; `on_lost` once."""

    def __init__(
        self,
        link: DocumentLink,
        settings: StreamSettings,
        on_push: "Callable[[StreamConnection, Pushed], None]",
        on_lost: "Callable[[StreamConnection, str], None]",
    ) -> None:
        self.address = link.address
        self._link = link
        self._settings = settings
        self._on_push = on_push
        self._on_lost = on_lost
        self._processed_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._watch = self._loop.call_later(settings.noop_interval_s, self._look)
        self._why_closed = f"the connection to {link.address} was lost"
        link.on_push = self._pushed
        link.on_closed = self._closed

    @property
    def is_open(self) -> bool:
        return self._link.is_open

    def close(self, why: str = "") -> None:
        self._why_closed = why or self._why_closed
        self._link.close()

    async def open(self) -> None:
        """Say who we are and how changes are wanted.  Raises Unavailable."""
        settings = self._settings
        requests: list[Open | Control] = [Open(settings.name, settings.bucket)]
        for request in (*requests, *settings.controls()):
            answer = await self.ask(request)
            if not _is_ok(answer):
                raise NotConnected(f"{self.address} refuses {request}: {answer}")

    def abandon(self) -> None:
        """Close it, and tell nobody."""
        self._watch.cancel()
        self._link.on_closed = None
        self._link.close()

    # -- Asking -------------------------------------------------------------------------------

    async def ask(self, request: ConsumerRequest) -> ProducerAnswer:
        response = await self._link.ask(lambda opaque: encode_message(request, opaque))
        return decode_answer(response, request)

    def ask_now(
        self,
        request: ConsumerRequest,
        on_answer: Callable[[ProducerAnswer], None],
        on_failure: Callable[[str], None],
    ) -> int:
        """The opaque that it was sent with.  Raises Unavailable.  Keeps I1."""
        used: list[int] = []

        def encode(opaque: int) -> bytes:
            used.append(opaque)
            return encode_message(request, opaque)

        def answered(response: Response) -> None:
            try:
                answer = decode_answer(response, request)
            except BadMessage as error:
                on_failure(str(error))
                self.close(f"{self.address}: {error}")
                return
            on_answer(answer)

        def failed(error: Unavailable) -> None:
            on_failure(str(error))

        self._link.ask_for(Answerer(answered, failed), encode, ASK_TIMEOUT_MS)
        return used[0]

    async def barrier(self, cookie: str) -> None:
        """The node says so when it is reached: this ends when it has taken note."""
        answer = await self.ask(Barrier(cookie))
        if not _is_ok(answer):
            raise NotConnected(f"{self.address} takes no barrier: {answer}")

    # -- Pushes -------------------------------------------------------------------------------

    def _pushed(self, frame: Request) -> None:
        self._heard_s = self._loop.time()
        if self._settings.is_columnar and frame.opcode == Opcode.CHANGES:
            changes = Changes(PartitionId(frame.partition), ())
            pushed = Pushed(changes, frame.opaque, _counted_bytes(frame.value), frame.value)
            self._on_push(self, pushed)
            return
        try:
            message = decode_push(frame)
        except BadMessage as error:
            self.close(f"{self.address} said something that cannot be understood: {error}")
            return
        if isinstance(message, Noop):
            answer = encode_response(Opcode.DCP_NOOP, Status.SUCCESS, frame.opaque)
            self._link.send(answer)
            return
        body = frame.value if frame.opcode == Opcode.CHANGES else None
        self._on_push(self, Pushed(message, frame.opaque, message_bytes(message), body))

    def processed(self, size_bytes: int) -> None:
        """Keeps I2: what is held back here is less than a part of the buffer."""
        self._processed_bytes += size_bytes
        if self._processed_bytes * ACK_PARTS >= self._settings.buffer_bytes and self.is_open:
            self._link.send(encode_message(BufferAck(self._processed_bytes)))
            self._processed_bytes = 0

    def _look(self) -> None:
        """Keeps I3."""
        interval_s = self._settings.noop_interval_s
        if self._loop.time() - self._heard_s > 2.5 * interval_s:
            self.close(f"{self.address} said nothing for {2.5 * interval_s:g} s")
        else:
            self._watch = self._loop.call_later(interval_s, self._look)

    def _closed(self) -> None:
        self._watch.cancel()
        self._on_lost(self, self._why_closed)


async def open_connection(
    address: str,
    settings: StreamSettings,
    on_push: Callable[[StreamConnection, Pushed], None],
    on_lost: Callable[[StreamConnection, str], None],
) -> StreamConnection:
    """Raises Unavailable."""
    link = await dial_documents(address, DIAL_TIMEOUT_MS)
    connection = StreamConnection(link, settings, on_push, on_lost)
    try:
        await greet(link, settings.name, settings.bucket)
        await connection.open()
    except BaseException:
        connection.abandon()
        raise
    return connection


def _counted_bytes(body: bytes) -> int:
    """No less than the node counts for a body of columns; what is none is found out by whoever
    reads it."""
    rows = int.from_bytes(body[4:8], "little")
    return len(body) + rows * CHANGE_BYTES


def _is_ok(answer: ProducerAnswer) -> bool:
    return isinstance(answer, Answered) and answer.status is StreamStatus.OK
