"""What connections are run with: their settings, and the counters they keep.

One `TransportCounters` is shared by all connections of a process, or of a test that wants to know
how many round trips an operation took (C7).
"""

import msgspec

from millrace.limits import (
    CONNECTIONS_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    SEND_BUFFER_BYTES_HIGH,
    SEND_BUFFER_BYTES_MAX,
)
from millrace.runtime.closing import counted_as


class TransportSettings(msgspec.Struct, frozen=True):
    keep_alive_ms: int = 2_000  # Of silence, before a Ping asks for a sign of life.
    dead_peer_ms: int = 6_000  # Of silence, before the connection is given up.
    hello_ms: int = 5_000  # For the first message of a new connection.
    linger_ms: int = 1_000  # For the last messages of a connection that is being closed.
    send_buffer_bytes_high: int = SEND_BUFFER_BYTES_HIGH
    send_buffer_bytes_max: int = SEND_BUFFER_BYTES_MAX
    requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX
    connections_max: int = CONNECTIONS_MAX


class TransportCounters(msgspec.Struct):
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0  # Taken by the system.
    connections: int = 0  # Open now, with both Hellos said.
    connections_opened: int = 0
    round_trips: int = 0  # Requests asked; one-way messages and keep-alive do not count.
    late_answers: int = 0  # Came after their request had timed out.
    closes: dict[str, int] = msgspec.field(default_factory=dict)  # By CloseReason.

    def count_close(self, code: str) -> None:
        reason = counted_as(code).value
        self.closes[reason] = self.closes.get(reason, 0) + 1
