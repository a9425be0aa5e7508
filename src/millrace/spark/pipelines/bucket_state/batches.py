"""The rows that a task of a pipeline with shards is given, by shard and by document."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

Batches = Iterator[pa.RecordBatch]


def latest_of(came: pa.Table) -> pa.Table:
    """Of several changes of one document the last."""
    keys = came["key"]
    if pc.count_distinct(keys).as_py() == len(keys):
        return came
    ordered = came.sort_by("version")
    last = {key: at for at, key in enumerate(ordered["key"].to_pylist())}
    return ordered.take(pa.array(last.values(), pa.int64()))


def by_shard(batches: Batches) -> dict[int, pa.Table]:
    gathered = [batch for batch in batches if batch.num_rows]
    if not gathered:
        return {}
    table = pa.Table.from_batches(gathered)
    shards = table["shard"]
    numbers: list[Any] = shards.unique().to_pylist()
    return {number: table.filter(pc.equal(shards, pa.scalar(number))) for number in numbers}


def task_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
