"""Saving buckets: each task follows the changes of some partitions from where the last run ended up
to what there is now.

I1  A partition is saved as it was at one moment of its master: a stream ends with a snapshot.
I2  If a failover took changes back that were saved, by this run or the one before, the partition is
    saved once more as a whole, and the manifest says so: what the runs before have of it is void.
I3  Each partition of a bucket is saved, once.
I4  A task that fails leaves no file open and none behind.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa

from millrace.client.bucket import Bucket
from millrace.client.changes import BatchCause, ChangeBatch, ChangeConsumer, MemoryConsumerState
from millrace.client.changes.offsets import Offset, state_of
from millrace.client.changes.states import ReplaceAll
from millrace.core.documents.document import ChangeKind, PartitionId, Seq
from millrace.errors import RecordsLost, Unavailable, WrongBackup
from millrace.spark import workers
from millrace.spark.pipelines.backup.files import FileWriter
from millrace.spark.pipelines.backup.manifest import SavedBucket, SavedFile, SavedPartition
from millrace.spark.pipelines.backup.planning import BucketPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS_PER_TASK: Final = 16
STALL_S: Final = 60.0
ATTEMPTS_MAX: Final = 5  # Each is a failover while a partition is read.
SAVED: Final = "bucket string, saved binary"
_FIELDS: Final[dict[str, pa.DataType]] = {
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "seq": pa.int64(),
    "cas": pa.int64(),
    "flags": pa.int64(),
    "expiry": pa.int64(),
    "kind": pa.string(),
    "datatype": pa.int32(),
}
SCHEMA: Final = pa.schema(_FIELDS)
_KINDS: Final = pa.array([kind.name.lower() for kind in sorted(ChangeKind)])


class Task(msgspec.Struct, frozen=True):
    cluster: str
    cluster_id: str
    bucket: str
    bucket_id: int
    partitions: tuple[int, ...]
    offsets: dict[int, Offset]


class Saved(msgspec.Struct, frozen=True):
    """What a task saved of one partition."""

    partition: SavedPartition
    file: SavedFile | None


def save_buckets(
    spark: "SparkSession", cluster: str, cluster_id: str, plans: Sequence[BucketPlan], run: Path
) -> tuple[SavedBucket, ...]:
    tasks = [task for plan in plans for task in _tasks(cluster, cluster_id, plan)]
    found: dict[str, list[Saved]] = {plan.record.name: [] for plan in plans}
    if tasks:
        frame = spark.range(0, len(tasks), 1, len(tasks))
        for row in frame.mapInArrow(_saver(tasks, run), SAVED).collect():
            found[row["bucket"]].append(msgspec.msgpack.decode(row["saved"], type=Saved))
    return tuple(saved_bucket(plan, found[plan.record.name]) for plan in plans)


def _tasks(cluster: str, cluster_id: str, plan: BucketPlan) -> Iterator[Task]:
    count = len(plan.record.seats)
    for first in range(0, count, PARTITIONS_PER_TASK):
        partitions = tuple(range(first, min(count, first + PARTITIONS_PER_TASK)))
        offsets = {each: plan.offsets[each] for each in partitions if each in plan.offsets}
        record = plan.record
        yield Task(cluster, cluster_id, record.name, record.id, partitions, offsets)


def saved_bucket(plan: BucketPlan, saved: list[Saved]) -> SavedBucket:
    """Keeps I3; raises RecordsLost."""
    saved.sort(key=lambda each: each.partition.partition)
    numbers = [each.partition.partition for each in saved]
    if numbers != list(range(len(plan.record.seats))):
        raise RecordsLost(
            f"bucket {plan.record.name!r}: of {len(plan.record.seats)} partitions these were "
            f"saved: {numbers}; run the backup again"
        )
    files = tuple(each.file for each in saved if each.file is not None)
    return SavedBucket(
        plan.record.name,
        plan.record.id,
        plan.record.attributes,
        sum(file.rows for file in files),
        tuple(each.partition for each in saved),
        files,
    )


# -- The task --------------------------------------------------------------------------------------


def _saver(
    tasks: Sequence[Task], run: Path
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def save(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        workers.freeze()
        for batch in batches:
            for number in batch.column(0):
                task = tasks[number.as_py()]
                with workers.plain_errors():
                    client = workers.client(task.cluster, task.cluster_id)
                    saved = workers.run(_save(client, task, run))
                encoded = [msgspec.msgpack.encode(each) for each in saved]
                names = [task.bucket] * len(encoded)
                yield pa.RecordBatch.from_pydict({"bucket": names, "saved": encoded})

    return save


async def _save(client: Any, task: Task, run: Path) -> list[Saved]:
    bucket: Bucket = await client.bucket(task.bucket)
    if bucket.asker.map.record.id != task.bucket_id:
        raise WrongBackup(f"bucket {task.bucket!r} was made anew while it was saved: try again")
    saved: dict[int, Saved] = {}
    waiting, offsets = set(task.partitions), task.offsets
    for _ in range(ATTEMPTS_MAX):
        saving = _Saving(bucket, waiting, offsets, run)
        saved |= await saving.save()
        waiting, offsets = saving.rolled_back, {}  # Keeps I2.
        if not waiting:
            return list(saved.values())
    raise Unavailable(
        f"bucket {task.bucket!r}: the masters of partitions {sorted(waiting)} changed "
        f"{ATTEMPTS_MAX} times while they were saved"
    )


class _Saving:
    """One pass over some partitions."""

    def __init__(
        self, bucket: Bucket, partitions: Iterable[int], offsets: dict[int, Offset], run: Path
    ) -> None:
        self.rolled_back: set[int] = set()
        self._bucket = bucket
        self._partitions = list(partitions)
        self._offsets = offsets
        self._run = run
        self._full = {each for each in self._partitions if each not in offsets}
        self._writers: dict[int, FileWriter] = {}

    async def save(self) -> dict[int, Saved]:
        """Keeps I4."""
        try:
            return await self._save()
        except BaseException:
            with contextlib.ExitStack() as discarding:  # All, also if one cannot be.
                for writer in self._writers.values():
                    discarding.callback(writer.discard)
            raise

    async def _save(self) -> dict[int, Saved]:
        state = await _state_at(self._offsets)
        consumer = ChangeConsumer(
            self._bucket, "backup:1", state, partitions=self._partitions, is_finite=True
        )
        async with consumer:
            while (batch := await _take(consumer)) is not None:
                self._add(batch)
            offsets = consumer.offsets
        for each in self.rolled_back & self._writers.keys():
            self._writers.pop(each).discard()
        return {
            each: self._saved(each, offsets[PartitionId(each)])
            for each in self._partitions
            if each not in self.rolled_back
        }

    def _add(self, batch: ChangeBatch) -> None:
        number = int(batch.partition)
        if batch.cause is BatchCause.ROLLBACK:
            self.rolled_back.add(number)
        if batch.cause is BatchCause.WIPE:
            self._full.add(number)
            if number in self._writers:
                self._writers.pop(number).discard()
        if not batch.documents or number in self.rolled_back:
            return
        if number not in self._writers:
            below = f"buckets/{quote(self._bucket.name, safe='')}"
            self._writers[number] = FileWriter(self._run, below, str(number), SCHEMA, "seq")
        self._writers[number].write(_rows(batch))

    def _saved(self, number: int, offset: Offset) -> Saved:
        writer = self._writers.get(number)
        file = None if writer is None else writer.finish(number)
        return Saved(SavedPartition(number, number in self._full, offset), file)


async def _state_at(offsets: dict[int, Offset]) -> MemoryConsumerState:
    """That of a consumer which remembers no keys: whatever is taken back, all comes again."""
    state = MemoryConsumerState()
    changes = []
    for number, offset in offsets.items():
        kept = state_of(offset)
        changes.append(ReplaceAll(PartitionId(number), kept, (), Seq(kept.seen)))
    await state.write(changes)
    return state


async def _take(consumer: ChangeConsumer) -> ChangeBatch | None:
    try:
        async with asyncio.timeout(STALL_S):
            return await consumer.take()
    except TimeoutError:
        raise Unavailable(
            f"nothing came for {STALL_S:.0f} s; the consumer says: {consumer.explain()}"
        ) from None


def _rows(batch: ChangeBatch) -> pa.RecordBatch:
    given = batch.to_arrow()
    partition = pa.repeat(pa.scalar(int(batch.partition), pa.int32()), given.num_rows)
    plain = [given.column(name).cast(pa.int64()) for name in ("seq", "cas", "flags", "expiry")]
    kinds = _KINDS.take(given.column("kind").cast(pa.int64()))
    datatypes = given.column("datatype").cast(pa.int32())
    arrays = [partition, given.column("key"), given.column("value"), *plain, kinds, datatypes]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
