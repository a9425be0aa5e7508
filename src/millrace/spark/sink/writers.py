"""What Spark calls to write: tasks stage, the driver publishes.

Spark repeats tasks (failures, speculation) and micro-batches (restarts), and reports to `commit`
only the attempts that won.  So a task's rows go where nobody sees them, and `commit` makes the rows
of all winners visible at once, under a name that is the same when the batch comes again.

I1  The name of a micro-batch is (query id, batch id): both survive a restart, and come with the
    same rows.  Tasks know the query's id, `commit` does not: it is part of their messages.
I2  `abort` undoes nothing: Spark calls it also after a `commit` that did its work and then failed.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millrace.client.publications import Staged
from millrace.errors import UsageError
from millrace.spark import workers
from millrace.spark.sink import publishing
from millrace.spark.sink.columns import Routing, check_schema
from millrace.spark.sink.options import SinkOptions, application, check_stream
from millrace.spark.sink.publishing import Publication
from millrace.spark.sink.staging import staging

QUERY_ID: Final = "sql.streaming.queryId"  # Among the local properties of a streaming task.
APP_BYTES: Final = 16

Batches = Iterator[pa.RecordBatch]  # What Spark gives to Arrow writers; its row writers take rows.


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has staged."""

    query: str | None
    staged: tuple[Staged, ...]
    skipped: int


class BatchWriter(DataSourceArrowWriter):
    """Spark pickles the one that it makes, for the tasks and for `commit`: all have its name."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                "a log is only ever appended to, and mode overwrite would replace what it has: use "
                '.mode("append"); `millrace log trim` forgets what is old'
            )
        check_schema(schema, options)
        publishing.check_log(options)
        self._options = options
        self._schema = schema
        self._publication = _of_batch(options)

    def write(self, iterator: Batches) -> WriterCommitMessage:  # type: ignore[override]
        return _write(iterator, self._options, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with workers.plain_errors():
            _commit(self._options, self._publication, _won(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keeps I2."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Made anew for each micro-batch, and once more for its `commit`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                "a log is only ever appended to, and outputMode complete would replace what it "
                'has: use .outputMode("append"), or foreachBatch, which takes mode update, too'
            )
        check_stream(options)
        check_schema(schema, options)
        publishing.check_log(options)
        self._options = options
        self._schema = schema

    def write(self, iterator: Batches) -> WriterCommitMessage:  # type: ignore[override]
        return _write(iterator, self._options, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with workers.plain_errors():
            won = _won(messages)
            query = next((each.query for each in won if each.query is not None), None)
            if query is None:  # No task ran, so there is nothing that could come twice.
                return
            title = f"micro-batch {batchId} of the query {query}"
            _commit(self._options, Publication(query, batchId, title), won)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keeps I2."""


def _write(iterator: Batches, options: SinkOptions, schema: StructType) -> WriterCommitMessage:
    with workers.plain_errors(), staging(options) as work:
        context = TaskContext.get()
        assert context is not None
        routing = Routing(schema, options, context.partitionId())
        for batch in iterator:
            for log, rows in routing.route(batch):
                work.add(log, rows)
        return Written(context.getLocalProperty(QUERY_ID), work.finish(), routing.skipped)


def _of_batch(options: SinkOptions) -> Publication:
    app = application(options)
    if app is None or options.version is None:
        return Publication(secrets.token_hex(APP_BYTES), 0, "the rows of this write", is_once=True)
    title = f"the rows of txnAppId={options.app!r}, txnVersion={options.version}"
    return Publication(app, options.version, title)


def _won(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """By partition, so that rows are published in the frame's order."""
    return [each for each in messages if isinstance(each, Written)]


def _commit(options: SinkOptions, publication: Publication, won: Sequence[Written]) -> None:
    staged = [piece for each in won for piece in each.staged]
    publishing.tell_skipped(publication, sum(each.skipped for each in won))
    if staged or not publication.is_once:
        publishing.publish(options, publication, staged)
