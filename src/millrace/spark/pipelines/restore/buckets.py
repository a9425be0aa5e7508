"""Writing buckets: of each document the newest version that the runs have, with its CAS.

I1  A document is offered with the revision that it had, so offering it again changes nothing: a
    restore that is killed may begin anew.
I2  A document counts as restored when it, or the newer one that stays, is as durable as was asked
    for.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millrace.client.bucket import Bucket
from millrace.client.bucket_revisions import overwrite
from millrace.client.changes.high_seqs import high_seqs
from millrace.client.cluster import Client
from millrace.core.documents.document import ChangeKind
from millrace.core.documents.revisions import Revision
from millrace.errors import BucketExists, UnknownBucket
from millrace.spark import workers
from millrace.spark.buckets.attempts import until_done
from millrace.spark.pipelines.restore.choosing import BucketSource
from millrace.spark.pipelines.restore.state import StateFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_AT_ONCE: Final = 500
TIMEOUT_MS: Final = 120_000
WRITTEN: Final = "written bigint, kept bigint, renewed bigint"
DELETED: Final = tuple(kind.name.lower() for kind in ChangeKind if kind is not ChangeKind.MUTATION)


class Conflict(Enum):
    """What to do about documents that the bucket has already."""

    REFUSE = "refuse"  # The bucket must be new, or empty.
    NEWER = "newer"  # The version with the higher CAS stays.
    OVERWRITE = "overwrite"  # The saved version is written, with another CAS if need be.


class Wish(msgspec.Struct, frozen=True):
    """`durability` as the client has it; None: the master's memory is enough."""

    conflict: Conflict
    durability: str | None


class RestoredBucket(msgspec.Struct, frozen=True):
    name: str
    run: int
    written: int
    kept: int  # What is there is as new, or newer.
    renewed: int  # Written over a newer version: such a document has a new CAS.

    def line(self) -> str:
        more = f", {self.kept} were there" if self.kept else ""
        more += f", {self.renewed} written over newer ones" if self.renewed else ""
        return f"bucket {self.name} as of run {self.run}: {self.written} documents{more}"


def open_target(
    client: Client, source: BucketSource, conflict: Conflict, states: StateFile
) -> Bucket:
    """Raises BucketExists."""
    return workers.run(_open_target(client, source, conflict, states))


async def _open_target(
    client: Client, source: BucketSource, conflict: Conflict, states: StateFile
) -> Bucket:
    name = source.saved.name
    try:
        bucket = await client.bucket(name)
    except UnknownBucket:
        attributes = msgspec.structs.asdict(source.saved.attributes)
        bucket = await client.create_bucket(name, **attributes)
    number = bucket.asker.map.record.id
    if states.state.buckets.get(name) == number or conflict is not Conflict.REFUSE:
        return bucket
    if any((await high_seqs(bucket.asker)).values()):
        raise BucketExists(
            f"bucket {name!r} of the cluster {client.name!r} has documents already: "
            "conflict=newer keeps the newer version of each, conflict=overwrite the saved one"
        )
    states.note_bucket(name, number)
    return bucket


def restore_bucket(
    spark: "SparkSession", client: Client, cluster: str, source: BucketSource, wish: Wish
) -> RestoredBucket:
    totals = [0, 0, 0]
    rows = newest(spark, source)
    if rows is not None:
        if wish.conflict is Conflict.REFUSE:  # There is nothing that could be deleted.
            rows = rows.where(~rows["kind"].isin(*DELETED))
        write = _writer(cluster, client.id, source.saved.name, wish)
        for row in rows.mapInArrow(write, WRITTEN).collect():
            totals = [total + more for total, more in zip(totals, row, strict=True)]
    return RestoredBucket(source.saved.name, source.run, *totals)


def newest(spark: "SparkSession", source: BucketSource) -> "DataFrame | None":
    """A row for each key: that of the last run which has it, and there the last."""
    from pyspark.sql import functions as f

    runs = [
        with_datatype(spark.read.parquet(*paths)).withColumn("run", f.lit(run))
        for run, paths in sorted(source.files.items())
        if paths
    ]
    if not runs:
        return None
    version = f.struct("value", "cas", "flags", "expiry", "kind", "datatype")
    rows = reduce(lambda some, more: some.unionByName(more), runs)
    last = f.max_by(version, f.struct("run", "seq")).alias("newest")
    return rows.groupBy("key").agg(last).select("key", "newest.*")


def with_datatype(rows: "DataFrame") -> "DataFrame":
    """Runs of format 1 have none."""
    from pyspark.sql import functions as f

    return rows if "datatype" in rows.columns else rows.withColumn("datatype", f.lit(0))


# -- The task --------------------------------------------------------------------------------------


def _writer(
    cluster: str, cluster_id: str, bucket: str, wish: Wish
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        workers.freeze()
        with workers.plain_errors():
            opened = workers.run(workers.client(cluster, cluster_id).bucket(bucket))
            for batch in batches:
                revisions = [_revision(row) for row in batch.to_pylist()]
                for at in range(0, len(revisions), ROWS_AT_ONCE):
                    numbers = write_some(opened, revisions[at : at + ROWS_AT_ONCE], wish)
                    counts = zip(("written", "kept", "renewed"), numbers, strict=True)
                    yield pa.RecordBatch.from_pydict({name: [count] for name, count in counts})

    return write


def _revision(row: dict[str, Any]) -> Revision:
    if row["kind"] in DELETED:
        return Revision(row["key"], None, row["cas"], row["flags"])
    numbers = (row[name] for name in ("cas", "flags", "expiry", "datatype"))
    return Revision(row["key"], row["value"], *numbers)


def write_some(bucket: Bucket, revisions: list[Revision], wish: Wish) -> tuple[int, int, int]:
    """How many were written, kept, renewed.  Keeps I2."""
    are_written = until_done(
        lambda left_ms: bucket.write_revisions(
            revisions, durability=wish.durability, timeout_ms=left_ms
        ),
        TIMEOUT_MS,
    )
    pairs = zip(revisions, are_written, strict=True)
    passed_over = [revision for revision, is_written in pairs if not is_written]
    written = len(revisions) - len(passed_over)
    if wish.conflict is not Conflict.OVERWRITE or not passed_over:
        return written, len(passed_over), 0
    renewed = workers.run(_overwrite(bucket, passed_over, wish.durability))
    return written, len(passed_over) - renewed, renewed


async def _overwrite(bucket: Bucket, revisions: list[Revision], durability: str | None) -> int:
    there = await bucket.read_revisions([each.key for each in revisions], timeout_ms=TIMEOUT_MS)
    renewed = 0
    for revision in revisions:
        found = there.get(revision.key)
        if found is not None and _is_same(found, revision):
            continue
        renewed += 1
        await overwrite(bucket, revision, durability, TIMEOUT_MS)
    return renewed


def _is_same(found: Revision, wanted: Revision) -> bool:
    """Also if a restore before this one wrote it, with a CAS of its own."""
    return found == msgspec.structs.replace(wanted, cas=found.cas)
