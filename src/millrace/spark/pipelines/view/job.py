"""`run_view`: a streaming query over a bucket's changes whose every batch goes through the shards.

    millrace-changes ──▶ by document ──▶ DocumentShard ──▶ by view key ──▶ GroupShard ──▶ results
                                                                                      └─▶ seen

A batch that Spark runs again, with the same number, changes nothing twice; what the view has seen
is noted only when its results are where they belong (`shard.py` and `seen.py` of `bucket_state`).
"""

import socket
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from millrace.errors import CorruptStore
from millrace.spark.pipelines.bucket_state.seen import note_seen
from millrace.spark.pipelines.bucket_state.shard import open_shard
from millrace.spark.pipelines.bucket_state.stream import (
    changed_columns,
    follow_bucket,
    shard_of,
    spread,
    task_count,
)
from millrace.spark.pipelines.view.functions import FunctionName
from millrace.spark.pipelines.view.groups import group_folder
from millrace.spark.pipelines.view.record import open_record
from millrace.spark.pipelines.view.reduces import BuiltIn
from millrace.spark.pipelines.view.results import Results
from millrace.spark.pipelines.view.selecting import selected, with_document
from millrace.spark.pipelines.view.set_aside import count_set_aside
from millrace.spark.pipelines.view.settings import Language, OnError, ViewSettings
from millrace.spark.pipelines.view.tasks import (
    CHANGE_FIELDS,
    RESULT_FIELDS,
    document_stage,
    group_stage,
)
from millrace.spark.pipelines.view.work import Work

if TYPE_CHECKING:
    from millrace.spark.pipelines.context import Context

SET_ASIDE: Final = "set_aside"


def run_view(settings: ViewSettings, context: "Context") -> None:
    """Keeps the view up to date until the pipeline is stopped, or it has caught up if that was
    asked for.  Raises UsageError, StateMismatch; FunctionFailed inside what Spark raises."""
    view = View(settings, context)
    follow_bucket(settings, context, view.take, view.note)


class View:
    """The driver's side of a view."""

    def __init__(self, settings: ViewSettings, context: "Context") -> None:
        for name in settings.functions:
            name.load()
        if settings.language is Language.SQL:
            with_document(settings.map)
        self._settings = settings
        self._context = context
        self._results = Results(settings, open_record(settings, context.state).id)
        self._set_aside = count_set_aside(context.home / SET_ASIDE)

    def take(self, frame: DataFrame, batch: int) -> None:
        """One batch, perhaps again."""
        work = self._work(frame, batch)
        changed = self._changed(frame)
        try:
            documents = spread(changed, work.tasks).mapInArrow(document_stage(work), CHANGE_FIELDS)
            sharded = documents.select(shard_of("view_key", work.shards).alias("shard"), "*")
            results = spread(sharded, work.tasks).mapInArrow(group_stage(work), RESULT_FIELDS)
            self._results.write(results, batch)
        finally:
            frame.unpersist()
        check_taken(work)
        note_seen(self._context.state, self._context.checkpoint, self._settings.cluster, batch)
        self._tell_set_aside(work)

    def note(self) -> str:
        """What is to be said of the view besides its progress."""
        return f"{self._set_aside} set aside" if self._set_aside else ""

    def _changed(self, frame: DataFrame) -> DataFrame:
        """(shard, key, value, version, row)"""
        shard = shard_of("key", self._settings.shards)
        if self._settings.language is Language.SQL:
            kept = frame.persist().select(*changed_columns())  # Read once, looked at twice.
            return selected(kept, self._settings.map, self._settings.columns, shard)
        row = f.lit(None).cast("binary").alias("row")
        return frame.select(shard.alias("shard"), *changed_columns(), row)

    def _work(self, frame: DataFrame, batch: int) -> Work:
        settings = self._settings
        functions = {name.option: name for name in settings.functions}
        reduce: BuiltIn | FunctionName = functions.get("reduce") or BuiltIn(settings.reduce)
        is_set_aside = settings.on_error is OnError.SET_ASIDE
        return Work(
            state=self._context.state,
            batch=batch,
            shards=settings.shards,
            tasks=task_count(frame, settings.shards),
            driver_host=socket.gethostname(),
            language=settings.language,
            map=functions.get("map"),
            reduce=reduce,
            set_aside=self._context.home / SET_ASIDE if is_set_aside else None,
            table=self._results.begin(batch),
        )

    def _tell_set_aside(self, work: Work) -> None:
        count = 0 if work.set_aside is None else count_set_aside(work.set_aside, work.batch)
        if count:
            assert work.set_aside is not None
            self._set_aside = count_set_aside(work.set_aside)
            self._context.say(
                f"batch {work.batch}: {count} documents set aside, for reasons that stand in "
                f"{work.set_aside}"
            )


def check_taken(work: Work) -> None:
    """Every shard has taken the batch.  If not, Spark has left out tasks: better to stop."""
    for number in range(work.shards):
        shard = open_shard(group_folder(work.state, number))
        with shard.env.begin() as txn:
            last = shard.last_batch(txn)
        if last != work.batch:
            raise CorruptStore(f"{shard.folder} stands at batch {last} after batch {work.batch}")
