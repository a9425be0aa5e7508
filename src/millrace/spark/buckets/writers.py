"""What Spark calls to write a bucket: tasks write, the driver counts.

I1  A task that runs again, or a micro-batch that comes again, writes the same documents again.
    Until it is done readers may see some of them; afterwards there is no difference.
"""

import logging
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

from millrace.client.bucket import Bucket
from millrace.client.cluster import Client
from millrace.errors import UnknownBucket, UsageError
from millrace.spark import workers
from millrace.spark.buckets.columns import KEYS_SHOWN, Rows, check_schema
from millrace.spark.buckets.options import BucketOptions
from millrace.spark.buckets.writing import Writing

OVERWRITES: Final = (
    "rows replace the documents of their keys and no others; to begin with an empty bucket delete "
    "it and make it anew, and use "
)
_log: Final = logging.getLogger("millrace.spark")

Batches = Iterator[pa.RecordBatch]  # What Spark gives to Arrow writers; its row writers take rows.


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did: rows that no bucket can take, and the keys of the first of them."""

    rows: int
    bad: int
    bad_keys: tuple[str, ...]


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: BucketOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(f'{OVERWRITES}.mode("append")')
        check_schema(schema, options)
        check_bucket(options)
        self._options = options

    def write(self, iterator: Batches) -> WriterCommitMessage:  # type: ignore[override]
        return _write(iterator, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell_bad(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keeps I1: what was written stays."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Made anew for each micro-batch, and once more for its `commit`."""

    def __init__(self, options: BucketOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(f'{OVERWRITES}.outputMode("update")')
        check_schema(schema, options)
        check_bucket(options)
        self._options = options

    def write(self, iterator: Batches) -> WriterCommitMessage:  # type: ignore[override]
        return _write(iterator, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell_bad(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keeps I1: what was written stays."""


def check_bucket(options: BucketOptions) -> None:
    """Before a task runs."""
    workers.call(options, lambda client: open_bucket(client, options.bucket))


async def open_bucket(client: Client, name: str) -> Bucket:
    try:
        return await client.bucket(name)
    except UnknownBucket:
        address = next(iter(client.directory.addresses.values()), "HOST:PORT")
        raise UnknownBucket(
            f"the cluster {client.name!r} at {address} has no bucket {name!r}: "
            f"`millrace --cluster {address} bucket create {name}` makes it"
        ) from None


def _write(iterator: Batches, options: BucketOptions) -> WriterCommitMessage:
    with workers.plain_errors():
        workers.freeze()
        bucket = workers.call(options, lambda client: open_bucket(client, options.bucket))
        context = TaskContext.get()
        assert context is not None
        rows = Rows(options, bucket.attributes.value_bytes_max, context.partitionId())
        writing = Writing(bucket, options)
        for batch in iterator:
            writing.add(rows.changes(batch))
        writing.finish()
        return Written(writing.written, rows.bad, tuple(rows.bad_keys))


def _tell_bad(options: BucketOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    won = [each for each in messages if isinstance(each, Written)]
    count = sum(each.bad for each in won)
    if count:
        keys = [key for each in won for key in each.bad_keys][:KEYS_SHOWN]
        _log.warning(
            "%d rows were left out of bucket %r (onError=skip); keys of some: %s",
            count,
            options.bucket,
            ", ".join(keys),
        )
