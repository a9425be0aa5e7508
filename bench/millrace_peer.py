"""Millrace as a peer: a local cluster of five node processes, logs with R=3.

The pipelined append keeps `window` appends outstanding through the client's own batching, with
no help from the benchmark.  Every call into Millrace's client is in this module.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from bench.measure import Load
from bench.peer import Ack, Kind, PeerFailure, ReadOutcome

NODES: Final = 5
REPLICATION: Final = 3


class NotWiredYet(PeerFailure):
    """The benchmark does not call Millrace's client yet."""


def _not_wired() -> NoReturn:
    raise NotWiredYet("Millrace is not wired yet: see bench/millrace_peer.py")


class MillracePeer:
    name = "millrace"
    windows: tuple[int, ...] = (64, 256, 1024, 4096)
    read_ways: tuple[str, ...] = ("read stream",)

    def supports(self, kind: Kind) -> bool:
        return True

    def describe(self) -> str:
        return f"Millrace, {NODES} nodes, R={REPLICATION}"

    async def start(self, ack: Ack, directory: Path) -> None:
        _not_wired()

    async def stop(self) -> None:
        return

    def process_ids(self) -> Sequence[int]:
        return ()

    async def create_log(self, log: str) -> None:
        _not_wired()

    async def delete_log(self, log: str) -> None:
        _not_wired()

    async def append(self, log: str, payload: bytes) -> None:
        _not_wired()

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        _not_wired()

    async def read_records(self, log: str, count: int, way: str) -> ReadOutcome:
        _not_wired()

    async def read_arrow(self, log: str, count: int, way: str) -> ReadOutcome:
        _not_wired()

    async def restart(self, log: str) -> float:
        _not_wired()
