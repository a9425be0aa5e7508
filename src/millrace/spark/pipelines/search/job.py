"""`run_search`: a streaming query over a bucket's changes that keeps a full-text index up to date.

millrace-changes ──▶ by document ──▶ Index (SQLite FTS5), one file for each shard
"""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.spark.pipelines.bucket_state.batches import Batches, by_shard, latest_of, task_number
from millrace.spark.pipelines.bucket_state.seen import note_seen
from millrace.spark.pipelines.bucket_state.shard import check_host
from millrace.spark.pipelines.bucket_state.stream import (
    changed_columns,
    follow_bucket,
    shard_of,
    spread,
    task_count,
)
from millrace.spark.pipelines.search.index import Index, index_file
from millrace.spark.pipelines.search.record import open_record
from millrace.spark.pipelines.search.settings import SearchSettings
from millrace.spark.pipelines.search.texts import columns_of, texts_of
from millrace.spark.workers import freeze, plain_errors

if TYPE_CHECKING:
    from millrace.spark.pipelines.context import Context

TAKEN_FIELDS: Final = "shard int"


class IndexWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is told: of one batch, the shards of its number."""

    state: Path
    batch: int
    shards: int
    tasks: int
    driver_host: str
    fields: tuple[str, ...]
    tokenizer: str


def run_search(settings: SearchSettings, context: "Context") -> None:
    """Keeps the index up to date until the pipeline is stopped, or it has caught up if that was
    asked for.  Raises UsageError, StateMismatch."""
    open_record(settings, context.state)

    def take(frame: DataFrame, batch: int) -> None:
        work = IndexWork(
            state=context.state,
            batch=batch,
            shards=settings.shards,
            tasks=task_count(frame, settings.shards),
            driver_host=socket.gethostname(),
            fields=settings.fields,
            tokenizer=settings.tokenizer.fts5,
        )
        changed = frame.select(shard_of("key", work.shards).alias("shard"), *changed_columns())
        taken = spread(changed, work.tasks).mapInArrow(index_stage(work), TAKEN_FIELDS)
        taken.write.format("noop").mode("overwrite").save()
        note_seen(context.state, context.checkpoint, settings.cluster, batch)

    follow_bucket(settings, context, take)


def index_stage(work: IndexWork) -> Callable[[Batches], Batches]:
    """From (shard, key, value, version) to the shards that took the batch."""

    def run(batches: Batches) -> Batches:
        with plain_errors():
            check_host(work.driver_host)
            freeze()
            came = by_shard(batches)
            numbers = range(task_number(), work.shards, work.tasks)
            for number in numbers:
                _take(work, number, came.get(number))
            yield pa.record_batch([pa.array(numbers, pa.int32())], names=["shard"])

    return run


def _take(work: IndexWork, number: int, came: pa.Table | None) -> None:
    """All shards take each batch, also when nothing came: a question is of one batch of all."""
    index = Index(index_file(work.state, number), columns_of(work.fields), work.tokenizer)
    try:
        index.take(work.batch, {} if came is None else _texts(latest_of(came), work.fields))
    finally:
        index.close()


def _texts(changed: pa.Table, fields: tuple[str, ...]) -> dict[bytes, list[str] | None]:
    keys: list[Any] = changed["key"].to_pylist()
    values: list[Any] = changed["value"].to_pylist()
    return {
        key: None if value is None else texts_of(value, fields)
        for key, value in zip(keys, values, strict=True)
    }
