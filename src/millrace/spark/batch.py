"""`spark.read`: bounds, plan, partitions.  Runs on the driver at each action."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.spark import bounds, plan, task, workers
from millrace.spark.columns import STORED, stored_columns
from millrace.spark.filters import Narrowing, narrow
from millrace.spark.options import EARLIEST, LATEST, Bound, Options, check_use
from millrace.types import Lsn, Selection


class BatchReader(DataSourceReader):
    """The reader for sessions in which Spark pushes no filters: it must not have the method."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_use(options, "read")
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        with workers.plain_errors():
            return workers.call(self._options, self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task.read(partition, self._schema)

    async def _plan(self, client: Client) -> list[InputPartition]:
        logs = await bounds.find_some_logs(client, self._options)
        ends = await bounds.of_each(logs, bounds.complete_ends)
        starting = self._options.starting or Bound("startingOffsets", EARLIEST)
        ending = self._options.ending or Bound("endingOffsets", LATEST)
        firsts = await bounds.resolve(starting, logs, ends)
        lasts = await bounds.resolve(ending, logs, ends)
        ranges: dict[str, bounds.Range] = {}
        for name, log in logs.items():
            narrowed = self._narrowed(name, (firsts[name], lasts[name]))
            if narrowed is not None:
                ranges[name] = bounds.untrimmed(self._options, log, narrowed, ends[name].start)
        selection = select(self._schema, self._options, self._narrowing)
        return await partitions(client, self._options, logs, ranges, selection)

    def _narrowed(self, log: str, wanted: bounds.Range) -> bounds.Range | None:
        """What filters leave of a range; None: nothing."""
        narrowing = self._narrowing
        if narrowing.is_empty or (narrowing.logs is not None and log not in narrowing.logs):
            return None
        first, end = max(wanted[0], narrowing.first), min(wanted[1], narrowing.end)
        return (Lsn(first), Lsn(end)) if first < end else None


class PushingReader(BatchReader):
    """The same, with filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """All are given back: Spark applies them again, to rows of gaps too."""
        self._narrowing = narrow(filters)
        return filters


def select(schema: StructType, options: Options, narrowing: Narrowing) -> Selection | None:
    """What is asked of the nodes; None: everything."""
    keys = options.keys
    if narrowing.keys is not None:
        both = narrowing.keys if keys is None else narrowing.keys & set(keys)
        keys = tuple(sorted(both))
    columns = stored_columns(schema)
    selection = Selection(columns, narrowing.time_first_us, narrowing.time_end_us, keys)
    return None if selection == Selection(STORED) else selection


async def partitions(
    client: Client,
    options: Options,
    logs: Mapping[str, Log],
    ranges: Mapping[str, bounds.Range],
    selection: Selection | None,
) -> list[InputPartition]:
    found = await asyncio.gather(
        *(bounds.survey(logs[name], first, end) for name, (first, end) in ranges.items())
    )
    surveys = dict(zip(ranges, found, strict=True))
    pieces = plan.pieces(surveys, os.cpu_count() or 1, options.partitions_min)
    return [
        task.LogPartition(
            task.Task(
                cluster=options.cluster,
                cluster_id=client.id,
                info=logs[piece.log].info,
                standing=logs[piece.log].standing,
                first=piece.first,
                end=piece.end,
                selection=selection,
                fail_on_data_loss=options.fail_on_data_loss,
                include_gaps=options.include_gaps,
                batch_rows=options.batch_rows,
                batch_bytes=options.batch_bytes,
            )
        )
        for piece in pieces
    ]
