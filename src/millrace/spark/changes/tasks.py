"""Ranges shared out to tasks."""

import os
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from millrace.core.documents.change_query import keep_at_most, shared_out
from millrace.spark.changes.offsets import ChangesOffset, ranges_of
from millrace.spark.changes.options import ChangeOptions, Mode
from millrace.spark.changes.task import ChangesPartition, Task
from millrace.types import Lsn

TASK_CHANGES_MIN: Final = 5_000  # A task costs about as much as reading so many.


def tasks_of(
    offset: ChangesOffset, options: ChangeOptions, *, is_fresh: bool
) -> list[InputPartition]:
    """Those of the micro-batch that ends there."""
    ranges = keep_at_most(ranges_of(offset), options.rollback_keys)
    if not is_fresh:
        ranges = [msgspec.structs.replace(each, is_doubtful=True) for each in ranges]
    if options.partitions_per_task is not None:
        count = -(-len(ranges) // options.partitions_per_task)
    else:
        waiting = sum(max(0, each.end - each.place.seq) for each in ranges)
        count = min(os.cpu_count() or 1, 1 + waiting // TASK_CHANGES_MIN)
    return [
        ChangesPartition(
            Task(
                cluster=options.cluster,
                cluster_id=offset.cluster,
                bucket=offset.bucket.name,
                bucket_id=offset.bucket.id,
                ranges=tuple(some),
                ring=offset.ring.log,
                settled=Lsn(offset.ring.next),
                is_again=not is_fresh,
                keeps_keys=options.rollback_keys > 0,
                is_latest=options.mode is Mode.LATEST,
                format=options.format,
                key_prefix=options.key_prefix,
                batch_rows=options.batch_rows,
                batch_bytes=options.batch_bytes,
            )
        )
        for some in shared_out(ranges, count)
    ]
