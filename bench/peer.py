"""What a system must offer to be measured, and how a failure to offer it is said.

Appending one at a time, and by many tasks at once, is driven by the runner through `append`, the
plain call of each client.  Appending in a pipeline and reading are the peer's own loops, so that
each system is used the way its client is best used.

1. `append` and `append_pipelined` count a record only when all its replicas acknowledged it.
2. `start` and `stop` come in pairs; `stop` leaves no process behind, also after a failed `start`.
3. A peer that cannot go on raises `PeerFailure`: the run goes on without that figure.
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.measure import Load


class Ack(Enum):
    """What an acknowledgement rests on: fsync on every replica, or memory on every replica."""

    DISK = "disk"
    MEMORY = "memory"


class Kind(Enum):
    APPEND_ONE = "append, one at a time"
    APPEND_TASKS = "append, 256 tasks"
    APPEND_PIPELINED = "append, pipelined"
    READ_RECORDS = "read, records"
    READ_ARROW = "read, Arrow"
    RESTART = "restart"


class ReadOutcome(NamedTuple):
    """`copies`: bytes that came over the network for each that was delivered, if it is known."""

    records: int
    payload_bytes: int
    copies: float | None = None


class PeerFailure(Exception):
    """A peer could not do what a workload asked of it."""


class Peer(Protocol):
    """A system under test; `name` is its column in every table."""

    name: str
    windows: tuple[int, ...]  # How many appends to keep in flight: the fastest is used.
    read_ways: tuple[str, ...]  # Ways to read in order: the fastest is used.

    def supports(self, kind: Kind) -> bool: ...

    def describe(self) -> str:
        """One line: version and settings that matter."""
        ...

    async def start(self, ack: Ack, directory: Path) -> None: ...

    async def stop(self) -> None: ...

    def process_ids(self) -> Sequence[int]:
        """The roots of the server processes; this process, the client, is counted anyway."""
        ...

    async def create_log(self, log: str) -> None: ...

    async def delete_log(self, log: str) -> None: ...

    async def append(self, log: str, payload: bytes) -> None: ...

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        """Append `load.payloads` in order with up to `window` unacknowledged; return when all
        that were sent are acknowledged.  Stop sending at the load's deadline."""
        ...

    async def read_records(self, log: str, count: int, way: str) -> ReadOutcome:
        """Read the first `count` records in order, each as an object of its own."""
        ...

    async def read_arrow(self, log: str, count: int, way: str) -> ReadOutcome:
        """Read the first `count` records in order into Arrow record batches."""
        ...

    async def restart(self, log: str) -> float:
        """Kill every server at once, start them again; seconds until an append is acknowledged."""
        ...
