"""Some ranges, read by a task: Arrow batches out."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millrace.client.cluster import Client
from millrace.core.documents.change_query import PartitionRange, begun_of
from millrace.core.documents.document import PartitionId
from millrace.errors import UnknownBucket
from millrace.spark import workers
from millrace.spark.changes.columns import Shape, Taken
from millrace.spark.changes.options import Format
from millrace.spark.changes.reading import RangesReader
from millrace.spark.changes.ring import Ring
from millrace.types import Lsn


class Task(msgspec.Struct, frozen=True):
    """All that a task needs: it asks the driver nothing."""

    cluster: str
    cluster_id: str
    bucket: str
    bucket_id: int
    ranges: tuple[PartitionRange, ...]
    ring: str | None  # None: a snapshot is read.
    settled: Lsn  # What lies before it in the ring is in the places of the ranges.
    is_again: bool  # Its ranges may have been read before.
    keeps_keys: bool
    is_latest: bool
    format: Format
    key_prefix: bytes
    batch_rows: int
    batch_bytes: int

    @property
    def is_snapshot(self) -> bool:
        return self.ring is None


class ChangesPartition(InputPartition):
    """As Spark carries it to a task; None reads nothing."""

    value: Task | None


def read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    with workers.plain_errors():
        task = partition.value
        if task is not None:  # Spark makes a partition of its own when there are none.
            yield from _read(_doubting(task), schema)


def _doubting(task: Task) -> Task:
    """An attempt after the first does not know what those before it handed out.  Of a snapshot
    nobody takes what they did."""
    context = TaskContext.get()
    if task.is_snapshot or context is None or not context.attemptNumber():
        return task
    ranges = tuple(msgspec.structs.replace(each, is_doubtful=True) for each in task.ranges)
    return msgspec.structs.replace(task, ranges=ranges, is_again=True)


def _read(task: Task, schema: StructType) -> Iterator[pa.RecordBatch]:
    workers.freeze()
    client = workers.client(task.cluster, task.cluster_id)
    shape = Shape(schema, task.format, task.bucket, is_snapshot=task.is_snapshot)
    reader = workers.run(_open(client, task))
    try:
        while taken := workers.run(reader.gather(task.batch_rows, task.batch_bytes)):
            if task.is_latest or task.is_snapshot:
                taken = last_of_each(taken, drops_deletions=task.is_snapshot)
            for group in _groups(taken, task):
                yield shape.rows(group)
    finally:
        workers.run(reader.close())


async def _open(client: Client, task: Task) -> RangesReader:
    bucket = await client.bucket(task.bucket)
    if bucket.asker.map.record.id != task.bucket_id:
        raise UnknownBucket(
            f"bucket {task.bucket!r} was deleted and made again while the query read it: give the "
            "query a new checkpointLocation"
        )
    ring = None if task.ring is None else Ring(client, task.ring)
    if ring is not None and task.is_again:
        await ring.append((), [begun_of(each) for each in task.ranges])
    return RangesReader(
        bucket,
        f"spark:{task.ring or 'snapshot'}",
        task.ranges,
        ring,
        task.settled,
        is_again=task.is_again,
        is_held=task.is_latest or task.is_snapshot,
        keeps_keys=task.keeps_keys,
        key_prefix=task.key_prefix,
    )


def _groups(taken: Iterable[Taken], task: Task) -> Iterator[list[Taken]]:
    """Batches of a good size: small ones are joined, a large one goes alone."""
    group: list[Taken] = []
    rows = size_bytes = 0
    for each in taken:
        group.append(each)
        rows += each.rows.num_rows
        size_bytes += each.rows.nbytes
        if rows >= task.batch_rows or size_bytes >= task.batch_bytes:
            yield group
            group, rows, size_bytes = [], 0, 0
    if group:
        yield group


def last_of_each(taken: Sequence[Taken], *, drops_deletions: bool) -> list[Taken]:
    """Of each key the change that came last, in the order in which they came."""
    by_partition: dict[PartitionId, list[Taken]] = {}
    for each in taken:
        by_partition.setdefault(each.partition, []).append(each)
    return [kept for some in by_partition.values() for kept in _last_of_each(some, drops_deletions)]


def _last_of_each(taken: Sequence[Taken], drops_deletions: bool) -> Iterator[Taken]:
    keys: Any = pa.chunked_array([each.rows.column("key") for each in taken]).combine_chunks()
    numbers = keys.dictionary_encode().indices.to_numpy()
    # The first of each number, seen from behind.
    _, from_behind = np.unique(numbers[::-1], return_index=True)
    is_last = np.zeros(len(numbers), bool)
    is_last[len(numbers) - 1 - from_behind] = True
    start = 0
    for each in taken:
        chosen = is_last[start : start + each.rows.num_rows]
        start += each.rows.num_rows
        if drops_deletions:
            kinds: Any = each.rows.column("kind")
            chosen = chosen & (kinds.to_numpy() == 0)
        if chosen.all():
            yield each
        elif chosen.any():
            yield msgspec.structs.replace(each, rows=each.rows.filter(pa.array(chosen)))
