"""The physical limits as a peer: what the disk and the loopback give to the same workloads.

An append that waits for the disk is held against LMDB committing with fsync: one record per
commit when appended one at a time, blocks of the batcher's size when pipelined.  An append that
waits for memory, and every read, is held against the loopback.

1. One copy is written or sent.  R=3 on one machine stores three, so a third of the disk's limit
   is what three serial copies could reach.
2. A transfer moves at least `BYTES_MIN`, however few bytes the workload has, because a shorter
   one measures its own beginning.  Rates count the records those bytes could have been.
"""

import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import lmdb

from bench.loopback import Loopback
from bench.measure import Load
from bench.peer import Ack, Kind, ReadOutcome
from millrace.limits import BLOCK_BYTES_TARGET, MIB

BYTES_MIN: Final = 64 * MIB
BYTES_MAX: Final = 256 * MIB
_MAP_BYTES: Final = 8 * 1024 * MIB
_KEY_BYTES: Final = 8


class RawLmdb:
    """One LMDB file that takes values at growing keys, one transaction and fsync each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0)
        self._next_key = 0

    def write(self, value: bytes) -> None:
        key = self._next_key.to_bytes(_KEY_BYTES, "big")
        with self._environment.begin(write=True) as transaction:
            transaction.put(key, value, append=True)
        self._next_key += 1

    def fill(self, load: Load, total_bytes: int) -> None:
        """Write `total_bytes` in blocks, as a node does, or what fits before the deadline."""
        block = b"".join(load.payloads[: -(-BLOCK_BYTES_TARGET // len(load.payloads[0]))])
        block = (block * -(-BLOCK_BYTES_TARGET // len(block)))[:BLOCK_BYTES_TARGET]
        written, now_ns = 0, time.perf_counter_ns()
        while written < total_bytes and not load.is_over(now_ns):
            started_ns = now_ns
            self.write(block)
            now_ns = load.acknowledge(started_ns)
            written += len(block)
        load.acknowledged = written // len(load.payloads[0])

    def close(self) -> None:
        self._environment.close()
        shutil.rmtree(self._directory)


class LimitsPeer:
    name = "limits"
    windows: tuple[int, ...] = (0,)  # Nothing to tune: each write is as large as pays.
    read_ways: tuple[str, ...] = ("loopback",)

    def __init__(self) -> None:
        self._ack = Ack.DISK
        self._directory = Path()
        self._loopback: Loopback | None = None
        self._files: dict[str, RawLmdb] = {}
        self._record_bytes: dict[str, int] = {}

    def supports(self, kind: Kind) -> bool:
        return kind is not Kind.RESTART

    def describe(self) -> str:
        blocks = f"{BLOCK_BYTES_TARGET // 1024} KiB blocks"
        return f"LMDB {version('lmdb')} with fsync, {blocks}; loopback, 1 MiB writes; one copy"

    async def start(self, ack: Ack, directory: Path) -> None:
        self._ack = ack
        self._directory = directory
        self._loopback = Loopback(directory)

    async def stop(self) -> None:
        for log in list(self._files):
            await self.delete_log(log)
        if self._loopback is not None:
            self._loopback.close()
            self._loopback = None

    def process_ids(self) -> Sequence[int]:
        return () if self._loopback is None else (self._loopback.process_id,)

    async def create_log(self, log: str) -> None:
        self._files[log] = RawLmdb(self._directory / log)

    async def delete_log(self, log: str) -> None:
        self._files.pop(log).close()
        self._record_bytes.pop(log, None)

    async def append(self, log: str, payload: bytes) -> None:
        if self._ack is Ack.DISK:
            self._files[log].write(payload)
        else:
            self._connection().exchange(payload)

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        record_bytes = len(load.payloads[0])
        self._record_bytes[log] = record_bytes
        total_bytes = _transfer_bytes(len(load.payloads) * record_bytes)
        if self._ack is Ack.DISK:
            self._files[log].fill(load, total_bytes)
        else:
            self._connection().fill(load, total_bytes)

    async def read_records(self, log: str, count: int, way: str) -> ReadOutcome:
        record_bytes = self._record_bytes[log]
        moved = self._connection().transfer(_transfer_bytes(count * record_bytes))
        return ReadOutcome(moved // record_bytes, moved)

    async def read_arrow(self, log: str, count: int, way: str) -> ReadOutcome:
        return await self.read_records(log, count, way)

    async def restart(self, log: str) -> float:
        raise AssertionError("the limits have no servers to restart")

    def _connection(self) -> Loopback:
        assert self._loopback is not None, "not started"
        return self._loopback


def _transfer_bytes(wanted_bytes: int) -> int:
    return min(max(wanted_bytes, BYTES_MIN), BYTES_MAX)
