"""`spark.readStream`: offsets, limits and partitions of micro-batches.

One process on the driver serves a query for its whole life; Spark calls one method at a time.  What
is kept between calls could be found out again: a restart loses nothing.

I1  An offset never goes back: a log that lost its end is not read twice.
I2  What an offset covers can be read without waiting for a writer.
I3  With AvailableNow no offset passes what was acknowledged when the query started, and the last
    one reaches it.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.errors import TimedOut
from millrace.spark import batch, bounds, offsets, plan, task, workers
from millrace.spark.ends import Watches
from millrace.spark.filters import Narrowing
from millrace.spark.offsets import LogOffset, Offset
from millrace.spark.options import LATEST, Bound, Options, check_use
from millrace.types import Lsn

AVAILABLE_NOW_PATIENCE_S: Final = 30  # For a writer that was under way when the query started.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        check_use(options, "readStream")
        self._options = options
        self._schema = schema
        self._watches: Watches | None = None
        self._latest: Offset | None = None
        self._pinned: dict[str, Lsn] | None = None  # With AvailableNow: where to stop.

    # -- What Spark calls ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with workers.plain_errors():
            return workers.call(self._options, self._initial).document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark takes one; `_limited` applies both."""
        if self._options.records_per_trigger is not None:
            return ReadMaxRows(self._options.records_per_trigger)
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with workers.plain_errors():
            self._pinned = workers.call(self._options, self._pin)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with workers.plain_errors():
            begin = offsets.parse(start)
            is_limited = not isinstance(limit, ReadAllAvailable)
            return workers.call(
                self._options, lambda client: self._next(client, begin, is_limited)
            ).document()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else self._latest.document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with workers.plain_errors():
            first, last = offsets.parse(start), offsets.parse(end)
            return workers.call(self._options, lambda client: self._plan(client, first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task.read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Logs are trimmed by their owners, not by those who have read them."""

    def stop(self) -> None:
        if self._watches is not None:
            workers.run(self._watches.close())

    # -- Offsets ------------------------------------------------------------------------------

    async def _initial(self, client: Client) -> Offset:
        logs = await bounds.find_logs(client, self._options)
        ends = {name: await bounds.readable_ends(log) for name, log in logs.items()}
        starting = self._options.starting or Bound("startingOffsets", LATEST)
        return _offset(client, logs, await bounds.resolve(starting, logs, ends))

    async def _pin(self, client: Client) -> dict[str, Lsn]:
        logs = await bounds.find_logs(client, self._options)
        return {name: (await bounds.complete_ends(log)).end for name, log in logs.items()}

    async def _next(self, client: Client, start: Offset, is_limited: bool) -> Offset:
        logs = await self._logs(client, start)
        begins = await self._begins(logs, start)
        ends = await self._ends(logs, begins)
        self._latest = _offset(client, logs, ends)
        if is_limited:
            ends = await self._limited(logs, begins, ends)
        return _offset(client, logs, ends, kept=start)

    async def _logs(self, client: Client, start: Offset) -> dict[str, Log]:
        """Those to read now.  Refuses a checkpoint of something else."""
        offsets.check_cluster(start, client.id)
        logs = await bounds.find_logs(client, self._options)
        for name, place in start.logs.items():
            if name in logs:
                offsets.check_log(name, place, logs[name].info.id)
            else:
                bounds.tell_lost(
                    self._options,
                    f"log {name!r} is in the checkpoint, and the query does not read it any more: "
                    "it was deleted, or the options changed",
                )
        if self._pinned is not None:  # Logs made since are for the next run.
            return {name: log for name, log in logs.items() if name in self._pinned}
        return logs

    async def _begins(self, logs: Mapping[str, Log], start: Offset) -> dict[str, Lsn]:
        """Where each log goes on; a log that was not there yet is read from its start."""
        begins: dict[str, Lsn] = {}
        for name, log in logs.items():
            place = start.logs.get(name)
            if place is None:
                begins[name] = (await bounds.readable_ends(log)).start
            else:
                begins[name] = place.next
        return begins

    async def _ends(self, logs: Mapping[str, Log], begins: Mapping[str, Lsn]) -> dict[str, Lsn]:
        """Keeps I1 to I3; waits if nothing is new."""
        if self._watches is None:
            self._watches = Watches()
        deadline = time.monotonic() + AVAILABLE_NOW_PATIENCE_S
        has_waited = False
        while True:
            self._watches.clear_news()
            found = await self._watches.ends(logs)
            ends = {
                name: max(begins[name], self._pinned_end(name, end)) for name, end in found.items()
            }
            is_new = any(ends[name] > begins[name] for name in ends)
            if is_new or self._is_done(ends) or (self._pinned is None and has_waited):
                return ends
            if time.monotonic() > deadline:
                raise TimedOut(f"writers did not complete what they began: {ends}, {self._pinned}")
            await self._watches.wait(self._options.wait_ms or 1)
            has_waited = True

    def _pinned_end(self, name: str, end: Lsn) -> Lsn:
        return end if self._pinned is None else min(end, self._pinned[name])

    def _is_done(self, ends: Mapping[str, Lsn]) -> bool:
        if self._pinned is None:
            return self._options.wait_ms == 0
        return all(ends[name] >= self._pinned[name] for name in ends)

    async def _limited(
        self, logs: Mapping[str, Log], begins: Mapping[str, Lsn], ends: Mapping[str, Lsn]
    ) -> dict[str, Lsn]:
        limited = dict(ends)
        records = self._options.records_per_trigger
        if records is not None:
            waiting = {name: limited[name] - begins[name] for name in limited}
            shares = plan.share(records, waiting)
            limited = {name: Lsn(begins[name] + shares[name]) for name in limited}
        size = self._options.bytes_per_trigger
        if size is not None:
            limited = await self._within_bytes(size, logs, begins, limited)
        return limited

    async def _within_bytes(
        self, size: int, logs: Mapping[str, Log], begins: Mapping[str, Lsn], ends: dict[str, Lsn]
    ) -> dict[str, Lsn]:
        weights = {name: await bounds.weigh(logs[name], begins[name], ends[name]) for name in logs}
        waiting = {name: sum(each.size_bytes for each in parts) for name, parts in weights.items()}
        if sum(waiting.values()) <= size:
            return ends
        shares = plan.share(size, waiting)
        for name, parts in weights.items():
            if waiting[name]:
                ends[name] = await _reach(logs[name], parts, shares[name])
        return ends

    # -- Partitions ---------------------------------------------------------------------------

    async def _plan(self, client: Client, start: Offset, end: Offset) -> list[InputPartition]:
        logs = await self._logs(client, end)
        begins = await self._begins(logs, start)
        ranges: dict[str, bounds.Range] = {}
        for name, place in end.logs.items():
            if name in logs and begins[name] < place.next:
                start_now = (await bounds.readable_ends(logs[name])).start
                wanted = (begins[name], place.next)
                ranges[name] = bounds.untrimmed(self._options, name, wanted, start_now)
        kept = {name: each for name, each in ranges.items() if each[0] < each[1]}
        selection = batch.select(self._schema, self._options, Narrowing())
        return await batch.partitions(client, self._options, logs, kept, selection)


def _offset(
    client: Client, logs: Mapping[str, Log], ends: Mapping[str, Lsn], kept: Offset | None = None
) -> Offset:
    """`kept`: what it says of logs that are not read now stays, so that nothing is read twice
    should they come back."""
    places = {} if kept is None else dict(kept.logs)
    places.update({name: LogOffset(logs[name].info.id, end) for name, end in ends.items()})
    return Offset(client.id, places)


async def _reach(log: Log, parts: list[plan.Weight], size: int) -> Lsn:
    """The position up to which about `size` bytes lie, at least one record on.  The piece in which
    it falls is weighed once more: it may be large."""
    first = parts[0].first
    left = size
    for part in parts:
        if left < part.size_bytes:
            finer = await bounds.weigh(log, part.first, part.end)
            return max(plan.reach(finer, left), Lsn(first + 1))
        left -= part.size_bytes
    return parts[-1].end
