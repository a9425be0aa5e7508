"""A client that says exactly what a test wants said, in memcached's protocols."""

import socket
from collections import deque
from types import TracebackType

from millrace.codec.memcached.binary import Durability, FrameDecoder, Response, encode_request
from millrace.codec.memcached.opcodes import Opcode

TIMEOUT_S = 10.0


class WireClient:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._decoder = FrameDecoder(takes_answers=True)
        self._responses: deque[Response] = deque()
        self._text = b""

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    # -- Binary -------------------------------------------------------------------------------

    def ask(
        self,
        opcode: int,
        key: bytes = b"",
        value: bytes = b"",
        extras: bytes = b"",
        *,
        partition: int = 0,
        opaque: int = 0,
        cas: int = 0,
        durability: Durability | None = None,
    ) -> Response:
        self.send(
            encode_request(
                opcode,
                key,
                value,
                extras,
                partition=partition,
                opaque=opaque,
                cas=cas,
                durability=durability,
            )
        )
        return self.response()

    def response(self) -> Response:
        while not self._responses:
            data = self._receive()
            for frame in self._decoder.feed(data):
                assert isinstance(frame, Response), frame
                self._responses.append(frame)
        return self._responses.popleft()

    def said_before_noop(self) -> list[Response]:
        """What was answered up to now: a noop is answered when all before it is."""
        self.send(encode_request(Opcode.NOOP, opaque=0xFEED))
        said: list[Response] = []
        while True:
            response = self.response()
            if response.opcode == Opcode.NOOP and response.opaque == 0xFEED:
                return said
            said.append(response)

    # -- Text ---------------------------------------------------------------------------------

    def say(self, line: bytes, answer_end: bytes = b"\r\n") -> bytes:
        """Sends the line (with its end) and gives what is answered, up to that end."""
        self.send(line)
        return self.text_until(answer_end)

    def text_until(self, end: bytes) -> bytes:
        while end not in self._text:
            self._text += self._receive()
        at = self._text.index(end) + len(end)
        answer, self._text = self._text[:at], self._text[at:]
        return answer

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the connection was closed after {self._text!r}")
        return data

    # -- The end ------------------------------------------------------------------------------

    def rest(self) -> bytes:
        """Everything up to the end of the stream, which the server must bring about."""
        parts = [self._text]
        while data := self.socket.recv(1 << 16):
            parts.append(data)
        return b"".join(parts)
