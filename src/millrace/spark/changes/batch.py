"""`spark.read`: a consistent snapshot of a bucket, one row for each document.

Each partition is read from its beginning to the end of a snapshot that has all that its master had
when the read was planned, so whatever was acknowledged before is in it (the seed's barrier).
"""

import os
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace.client.cluster import Client
from millrace.core.documents.change_query import PartitionRange, QueryPlace, shared_out
from millrace.spark import workers
from millrace.spark.changes import task
from millrace.spark.changes.masters import Masters
from millrace.spark.changes.options import ChangeOptions, check_use
from millrace.types import FIRST_LSN

PATIENCE_S: Final = 20  # For masters that are away.


class SnapshotReader(DataSourceReader):
    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        check_use(options, "read")
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with workers.plain_errors():
            return workers.call(self._options, self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task.read(partition, self._schema)

    async def _plan(self, client: Client) -> list[InputPartition]:
        options = self._options
        bucket = await client.bucket(options.bucket)
        masters = Masters(bucket)
        try:
            ranges = await _ranges(masters)
        finally:
            await masters.close()
        count = os.cpu_count() or 1
        if options.partitions_per_task is not None:
            count = -(-len(ranges) // options.partitions_per_task)
        return [
            task.ChangesPartition(
                task.Task(
                    cluster=options.cluster,
                    cluster_id=client.id,
                    bucket=bucket.name,
                    bucket_id=bucket.asker.map.record.id,
                    ranges=tuple(some),
                    ring=None,
                    settled=FIRST_LSN,
                    is_again=False,
                    keeps_keys=False,
                    is_latest=True,
                    format=options.format,
                    key_prefix=options.key_prefix,
                    batch_rows=options.batch_rows,
                    batch_bytes=options.batch_bytes,
                )
            )
            for some in shared_out(ranges, count)
        ]


async def _ranges(masters: Masters) -> list[PartitionRange]:
    states = await masters.all_states(PATIENCE_S)
    return [
        PartitionRange(number, QueryPlace(), state.high)
        for number, state in sorted(states.items())
        if state.high
    ]
