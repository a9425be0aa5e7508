"""One partition, read by a task: a range of a log in, Arrow batches out.

Blocks are used as they arrived.  Those of a good size are handed on as they are, small ones are
joined, large ones sliced, so that Spark gets neither thousands of tiny batches nor huge ones.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millrace.client.log import Log
from millrace.client.log_standing import LogStanding
from millrace.client.reader import Reader
from millrace.core.read_stream import Deliver
from millrace.errors import RecordsLost, TimedOut, Unavailable
from millrace.spark import bounds, workers
from millrace.spark.columns import Shape
from millrace.types import Gap, GapKind, LogInfo, Lsn, Selection

STALL_MS: Final = 10_000
STALLS_MAX: Final = 6
_LOST: Final = (GapKind.DATALOSS, GapKind.TRIM)
_log = logging.getLogger("millrace.spark")

Parts = list[Deliver | Gap]


class Task(msgspec.Struct, frozen=True):
    """All that a task needs: it asks the driver nothing, and the metadata repository only where
    the epochs of a sequenced log lie."""

    cluster: str
    cluster_id: str
    info: LogInfo
    standing: LogStanding
    first: Lsn
    end: Lsn
    selection: Selection | None
    fail_on_data_loss: bool
    include_gaps: bool
    batch_rows: int
    batch_bytes: int


class LogPartition(InputPartition):
    """As Spark carries it to a task; None reads nothing."""

    value: Task | None


def read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    with workers.plain_errors():
        task = partition.value
        if task is not None:  # Spark makes a partition of its own when there are none.
            yield from _read(task, schema)


def _read(task: Task, schema: StructType) -> Iterator[pa.RecordBatch]:
    workers.freeze()
    client = workers.client(task.cluster, task.cluster_id)
    log = client.opened(task.info, task.standing)
    reader = workers.run(_open(log, task))
    shape = Shape(schema, task.info.name)
    group = _Group(task)
    try:
        while parts := workers.run(_gather(log, reader, task)):
            for part in parts:
                if isinstance(part, Gap):
                    yield from group.flush(shape)
                    yield from _gap(part, log, task, shape)
                else:
                    yield from group.add(reader.batch(part), shape)
        yield from group.flush(shape)
    finally:
        workers.run(reader.close())


async def _open(log: Log, task: Task) -> Reader:
    return log.reader(task.first, task.end, select=task.selection)


async def _gather(log: Log, reader: Reader, task: Task) -> Parts:
    """About one batch's worth: one change of threads for each batch, however small the blocks."""
    parts: Parts = []
    size = 0
    while size < task.batch_bytes and len(parts) < task.batch_rows:
        part = await _take(log, reader)
        if part is None:
            break
        parts.append(part)
        size += 0 if isinstance(part, Gap) else part.block.size
    return parts


async def _take(log: Log, reader: Reader) -> Deliver | Gap | None:
    """Gives up when nothing comes for long, so that Spark can try elsewhere and say why.  Positions
    that were given to writers and lost with their sequencer are the end: nothing was acknowledged
    there."""
    for _ in range(STALLS_MAX):
        try:
            return await reader.take(STALL_MS)
        except TimedOut:
            with contextlib.suppress(Unavailable):
                _, end = await log.bounds(timeout_ms=STALL_MS)
                if reader.next_lsn >= end:
                    return reader.poll()  # What came while we asked is not to be left behind.
    raise Unavailable(
        f"log {log.name!r}: nothing came for {STALLS_MAX * STALL_MS // 1000} s; "
        f"the reader says: {reader.explain()}"
    )


def _gap(gap: Gap, log: Log, task: Task, shape: Shape) -> Iterator[pa.RecordBatch]:
    if gap.kind in _LOST:
        message = bounds.lost(log, gap)
        if task.fail_on_data_loss:
            raise RecordsLost(f"{message}; failOnDataLoss=false goes on without them")
        _log.warning(message)
    if task.include_gaps:
        yield shape.gap(gap)


class _Group:
    """Rows on their way out."""

    def __init__(self, task: Task) -> None:
        self._rows_max = task.batch_rows
        self._bytes_max = 2 * task.batch_bytes
        self._bytes_enough = max(1, task.batch_bytes // 8)  # A full block is never joined: a copy.
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, shape: Shape) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows * 2 >= self._rows_max or self._bytes >= self._bytes_enough:
            yield from self.flush(shape)

    def flush(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        joined = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)  # type: ignore[attr-defined]
        step = self._step(joined)
        self._rows = self._bytes = 0
        for start in range(0, joined.num_rows, step):
            yield shape.rows(joined.slice(start, step))

    def _step(self, joined: pa.RecordBatch) -> int:
        """Even slices, none above the limits by more than half."""
        count = max(
            1, round(joined.num_rows / self._rows_max), round(self._bytes / self._bytes_max)
        )
        return max(1, -(-joined.num_rows // count))
