"""How a pipeline with shards reads a bucket: by a streaming query whose batches go to them all."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from millrace.spark.pipelines.bucket_state.seen import lag_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from millrace.spark.pipelines.context import Context


class Followed(Protocol):
    """What the settings of such a pipeline say of the bucket."""

    @property
    def cluster(self) -> str: ...

    @property
    def bucket(self) -> str: ...

    @property
    def key_prefix(self) -> str: ...

    @property
    def changes_per_batch(self) -> int: ...

    @property
    def interval_ms(self) -> int: ...

    @property
    def until_caught_up(self) -> bool: ...


def follow_bucket(
    settings: Followed,
    context: "Context",
    take: Callable[[DataFrame, int], None],
    note: Callable[[], str] | None = None,
) -> None:
    """Brings the bucket's changes to `take`, batch by batch, until the pipeline is stopped, or has
    caught up if that was asked for."""
    changes = (
        context.spark.readStream.format("millrace-changes")
        .option("cluster", settings.cluster)
        .option("bucket", settings.bucket)
        .option("mode", "latest")
        .option("maxChangesPerTrigger", settings.changes_per_batch)
    )
    if settings.key_prefix:
        changes = changes.option("keyPrefix", settings.key_prefix)
    writer = changes.load().writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(context.checkpoint))
    query = _triggered(writer, settings.interval_ms, settings.until_caught_up).start()
    lag = partial(lag_of, settings.cluster, settings.bucket, context.state)
    context.follow_all([query], lag, note)


def changed_columns() -> list[Column]:
    """(key, value, version); the value is null for what is gone."""
    is_gone = f.col("_change_type") == "delete"
    return [
        f.col("key"),
        f.when(~is_gone, f.col("value")).alias("value"),
        f.col("_commit_version").alias("version"),
    ]


def task_count(frame: DataFrame, shards: int) -> int:
    return min(shards, int(frame.sparkSession.sparkContext.defaultParallelism))


def shard_of(key: str, shards: int) -> Column:
    return (f.crc32(f.col(key)) % shards).cast("int")


def spread(frame: DataFrame, tasks: int) -> DataFrame:
    """By the column `shard`: task n does the shards that leave n when divided by `tasks`."""
    # Each shard takes part in each batch, so no partition may be left out or merged.
    frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    return frame.repartitionById(tasks, (f.col("shard") % tasks).cast("int"))


def _triggered(
    writer: "DataStreamWriter", interval_ms: int, until_caught_up: bool
) -> "DataStreamWriter":
    if until_caught_up:
        return writer.trigger(availableNow=True)
    if interval_ms:
        return writer.trigger(processingTime=f"{interval_ms} milliseconds")
    return writer
