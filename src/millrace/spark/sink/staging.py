"""The rows of one task on their way to the nodes: gathered by log, staged in good pieces.

While one piece is on its way the next is gathered, so that Spark and the nodes work at the same
time.  Pieces that are under way together may be stored in any order; they are published in the
order in which they were gathered.

I1  A task holds at most GATHERED_BYTES_MAX, one batch of Spark's, and PIECES_UNDER_WAY_MAX pieces.
I2  `finish` returns only what nodes have acknowledged, all of it, in the order of the rows.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from millrace.client.cluster import Client
from millrace.client.publications import Staged
from millrace.errors import UnknownLog
from millrace.limits import BLOCK_BYTES_TARGET, MIB
from millrace.spark import workers
from millrace.spark.sink.options import SinkOptions

PIECE_BYTES: Final = 8 * BLOCK_BYTES_TARGET  # Enough blocks at once to keep all nodes busy.
PIECE_ROWS_MAX: Final = 1_000_000  # Of rows without bytes.
GATHERED_BYTES_MAX: Final = 64 * MIB
PIECES_UNDER_WAY_MAX: Final = 2


class Gathered:
    """Rows of one log that wait to be staged."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self.bytes += rows.nbytes
        self.rows += rows.num_rows

    @property
    def is_enough(self) -> bool:
        return self.bytes >= PIECE_BYTES or self.rows >= PIECE_ROWS_MAX

    def take(self) -> pa.Table:
        """One table; small batches are joined, because a block never holds rows of two."""
        table = pa.Table.from_batches(self._batches)
        is_joined = len(self._batches) > 1 and self.bytes < len(self._batches) * BLOCK_BYTES_TARGET
        self._batches, self.bytes, self.rows = [], 0, 0
        return table.combine_chunks() if is_joined else table


class Staging:
    """Used by one task, in one thread."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self._client = client
        self._options = options
        self._gathered: dict[str, Gathered] = {}
        self._under_way: list[asyncio.Task[Staged]] = []
        self._staged: list[Staged] = []

    @property
    def gathered_bytes(self) -> int:
        return sum(each.bytes for each in self._gathered.values())

    def add(self, log: str, rows: pa.RecordBatch) -> None:
        """Keeps I1."""
        gathered = self._gathered.setdefault(log, Gathered())
        gathered.add(rows)
        if gathered.is_enough:
            self._send(log)
        elif self.gathered_bytes >= GATHERED_BYTES_MAX:
            self._send(max(self._gathered, key=lambda name: self._gathered[name].bytes))

    def finish(self) -> tuple[Staged, ...]:
        """Keeps I2."""
        for log in list(self._gathered):
            self._send(log)
        self._wait_until(0)
        return tuple(self._staged)

    def cancel(self) -> None:
        """What was staged stays, unpublished, as long as the rows beside it that were published."""
        workers.run(self._cancel())

    def _send(self, log: str) -> None:
        self._wait_until(PIECES_UNDER_WAY_MAX - 1)
        table = self._gathered.pop(log).take()
        self._under_way.append(workers.run(self._begin(log, table)))

    def _wait_until(self, count: int) -> None:
        while len(self._under_way) > count:
            self._staged.append(workers.run(_result(self._under_way[0])))
            del self._under_way[0]

    async def _begin(self, log: str, table: pa.Table) -> "asyncio.Task[Staged]":
        return asyncio.create_task(self._stage(log, table))

    async def _stage(self, log: str, table: pa.Table) -> Staged:
        try:
            return await self._client.publications.stage(
                log, table, ack=self._options.ack, timeout_ms=self._options.timeout_ms
            )
        except UnknownLog:
            raise missing_log(self._client, log) from None

    async def _cancel(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._under_way.clear()


def missing_log(client: Client, name: str) -> UnknownLog:
    return UnknownLog(
        f"the cluster {client.name!r} has no log {name!r}: `millrace log create {name}` makes it; "
        "nothing of this write was published"
    )


async def _result(task: "asyncio.Task[Staged]") -> Staged:
    return await task


@contextlib.contextmanager
def staging(options: SinkOptions) -> Iterator[Staging]:
    """What is under way when the task fails is given up."""
    workers.freeze()
    work = Staging(workers.client(options.cluster), options)
    try:
        yield work
    finally:
        work.cancel()
