"""Writing logs: tasks stage the rows of files, side by side; the driver publishes them in order.

I1  A file is one publication, under a name that belongs to this restore: however often it is
    staged, its rows appear once, and those of the files before it stand in front of them.
I2  Files are staged a few at a time, so that none waits for its turn longer than rows are kept.
I3  Positions are the same as in the backup where that can be: in a new chain or commit log, if the
    saved one began with its first position and had no gaps.  Whether they are is looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.client.publications import Staged
from millrace.errors import LogExists, UnknownLog
from millrace.spark import workers
from millrace.spark.pipelines.backup.manifest import SavedFile, SavedLog
from millrace.spark.pipelines.opening import open_log
from millrace.spark.pipelines.restore.choosing import LogSource
from millrace.spark.pipelines.restore.state import StateFile
from millrace.types import LogAttributes, LogId, Lsn, WritePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_AT_ONCE: Final = 16
STAGE_ROWS: Final = 50_000
TIMEOUT_MS: Final = 300_000
STAGED: Final = "version bigint, staged binary"
_STAGED: Final = msgspec.msgpack.Decoder(list[Staged])


class Task(msgspec.Struct, frozen=True):
    cluster: str
    cluster_id: str
    log: str
    number: LogId
    version: int
    path: str
    end: Lsn


class RestoredLog(msgspec.Struct, frozen=True):
    name: str
    kind: WritePath
    rows: int
    are_positions_kept: bool
    note: str = ""

    def line(self) -> str:
        kept = "positions as saved" if self.are_positions_kept else f"new positions: {self.note}"
        return f"log {self.name} ({self.kind.value}): {self.rows} records, {kept}"


def open_target(client: Client, source: LogSource, given: LogAttributes, states: StateFile) -> Log:
    """The log to restore into: made, or found empty, or noted as begun with.  Raises LogExists."""
    return workers.run(_open_target(client, source.saved, given, states))


async def _open_target(
    client: Client, saved: SavedLog, attributes: LogAttributes, states: StateFile
) -> Log:
    try:
        log = await open_log(client, saved.name)
    except UnknownLog:
        log = await client.create_log(saved.name, **_arguments(attributes, saved.streams))
    if states.state.logs.get(saved.name) == log.info.id:
        return log
    if await log.tail_lsn():
        raise LogExists(
            f"log {saved.name!r} of the cluster {client.name!r} has records already: delete it, or "
            "restore without it (option logs)"
        )
    states.note_log(saved.name, int(log.info.id))
    return log


def _arguments(attributes: LogAttributes, streams: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "write_path": attributes.write_path,
        "replication": {**dict(attributes.across), "node": attributes.replication},
        "ack": attributes.ack,
        "compression": attributes.compression,
        "retention_ms": attributes.retention_ms,
        "retention_bytes": attributes.retention_bytes,
    }
    if attributes.write_path is WritePath.CHAIN:
        return chosen
    chosen |= {
        "scd": attributes.is_single_copy,
        "local_scd": attributes.local_scd.value,
        "copyset_order": attributes.copyset_order.value,
    }
    if attributes.write_path is WritePath.SEQUENCED:
        return {**chosen, "nodeset_size": attributes.nodeset_size}
    return {**chosen, **({"streams": streams} if streams else {})}


def restore_log(
    spark: "SparkSession",
    client: Client,
    cluster: str,
    source: LogSource,
    log: Log,
    app: str,
    tell: Callable[[int], None],
) -> RestoredLog:
    """`tell` hears how many rows were published so far."""
    end = _cut(spark, source)
    files = [each for each in source.files if each[1].first < end]
    done = workers.run(client.publications.last(app)) or 0
    rows = sum(_rows(file, end) for _, file in files[:done])
    for begin in range(done, len(files), FILES_AT_ONCE):  # Keeps I2.
        tasks = [
            Task(cluster, client.id, log.name, log.info.id, version, path, end)
            for version, (path, _) in enumerate(files[begin : begin + FILES_AT_ONCE], begin + 1)
        ]
        for version, staged in sorted(_stage(spark, tasks).items()):  # Keeps I1.
            publishing = client.publications.publish(app, version, staged, timeout_ms=TIMEOUT_MS)
            workers.run(publishing)
            rows += sum(each.rows for each in staged)
            tell(rows)
    return _look(source, log, rows, [file for _, file in files], end)


def _rows(file: SavedFile, end: Lsn) -> int:
    """Of the file, below the end.  Only the last one reaches across it: if it has gaps they are not
    known here, so it counts for what it has at most."""
    return file.rows if file.last < end else min(file.rows, end - file.first)


def _cut(spark: "SparkSession", source: LogSource) -> Lsn:
    """Where it ends by position or time, whichever is first."""
    if source.time_end_us is None or not source.files:
        return source.end
    paths = [path for path, _ in source.files]
    rows = spark.read.parquet(*paths).where(f"timestamp >= timestamp_micros({source.time_end_us})")
    found = rows.agg({"lsn": "min"}).collect()[0][0]
    return source.end if found is None else min(source.end, Lsn(found))


def _look(
    source: LogSource, log: Log, rows: int, files: Sequence[SavedFile], end: Lsn
) -> RestoredLog:
    """Keeps I3."""
    kind = log.info.attributes.write_path
    last = min(files[-1].last, end - 1) if files else 0
    why = ""
    if kind is WritePath.SEQUENCED:
        why = "a sequenced log gives its own"
    elif not source.is_dense:
        why = f"the saved log began at {source.first} and has {len(source.gaps)} gaps"
    elif workers.run(log.tail_lsn()) != last:
        why = "positions were used up by an attempt that was interrupted"
    return RestoredLog(log.name, kind, rows, not why, why)


# -- The task --------------------------------------------------------------------------------------


def _stage(spark: "SparkSession", tasks: Sequence[Task]) -> dict[int, list[Staged]]:
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_stager(tasks), STAGED)
    return {row["version"]: _STAGED.decode(row["staged"]) for row in frame.collect()}


def _stager(
    tasks: Sequence[Task],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        workers.freeze()
        for batch in batches:
            for number in batch.column(0):
                task = tasks[number.as_py()]
                with workers.plain_errors():
                    staged = msgspec.msgpack.encode(_stage_file(task))
                yield pa.RecordBatch.from_pydict({"version": [task.version], "staged": [staged]})

    return stage


def _stage_file(task: Task) -> list[Staged]:
    client = workers.client(task.cluster, task.cluster_id)
    workers.run(open_log(client, task.log, task.number))
    staged: list[Staged] = []
    for batch in pq.ParquetFile(task.path).iter_batches(STAGE_ROWS):
        below = batch.filter(pa.compute.field("lsn") < task.end)
        if below.num_rows:
            rows = below.drop_columns(["lsn"])
            work = client.publications.stage(task.log, rows, timeout_ms=TIMEOUT_MS)
            staged.append(workers.run(work))
    return staged
