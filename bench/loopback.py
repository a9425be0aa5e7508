"""The limit of the network: two processes, plain blocking sockets, nothing in between.

This process sends; the child receives into a buffer it allocated once.  With one large message
after another this is the fastest any design in Python can move bytes between two processes;
with an answer for each message it is the fastest round trip.
"""

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from bench.measure import Load
from bench.processes import ServerProcess

WRITE_BYTES: Final = 1024 * 1024
SOCKET_SECONDS_MAX: Final = 30.0
_ORDER: Final = struct.Struct("<QQ?")  # Bytes of a message, how many, answer each one.
_ANSWER: Final = b"\x06"


class Loopback:
    """A connection to a receiving child process."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(SOCKET_SECONDS_MAX)
            port = listening.getsockname()[1]
            command = [sys.executable, "-m", "bench.loopback", str(port)]
            repository = Path(__file__).parent.parent
            self._receiver = ServerProcess(command, directory / "loopback.log", repository)
            try:
                self._socket, _ = listening.accept()
            except OSError:
                self._receiver.kill()
                raise
        self._socket.settimeout(SOCKET_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def process_id(self) -> int:
        return self._receiver.process_id

    def transfer(self, total_bytes: int) -> int:
        """Send at least `total_bytes` in 1 MiB writes; answers the bytes that arrived."""
        writes = -(-total_bytes // WRITE_BYTES)
        message = os.urandom(WRITE_BYTES)
        self._socket.sendall(_ORDER.pack(WRITE_BYTES, writes, False))
        for _ in range(writes):
            self._socket.sendall(message)
        _receive(self._socket, memoryview(bytearray(len(_ANSWER))))
        return writes * WRITE_BYTES

    def exchange(self, message: bytes) -> None:
        """One message there, one byte back."""
        self._socket.sendall(_ORDER.pack(len(message), 1, True) + message)
        _receive(self._socket, memoryview(bytearray(len(_ANSWER))))

    def fill(self, load: Load, total_bytes: int) -> None:
        """Send `total_bytes` and count the records they could have been."""
        load.acknowledged = self.transfer(total_bytes) // len(load.payloads[0])

    def close(self) -> None:
        self._socket.close()
        self._receiver.kill()


def _receive(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False when the other side closed before the first byte."""
    filled = 0
    while filled < len(buffer):
        received = connection.recv_into(buffer[filled:])
        if received == 0:
            if filled == 0:
                return False
            raise ConnectionError("the connection closed within a message")
        filled += received
    return True


def _serve(port: int) -> None:
    order = memoryview(bytearray(_ORDER.size))
    storage = memoryview(bytearray(WRITE_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _receive(connection, order):
            message_bytes, count, answer_each = _ORDER.unpack(order)
            message = storage[:message_bytes]
            for _ in range(count):
                if not _receive(connection, message):
                    return
                if answer_each:
                    connection.sendall(_ANSWER)
            if not answer_each:
                connection.sendall(_ANSWER)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
