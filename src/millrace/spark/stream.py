"""`spark.readStream`: offsets, limits and partitions of micro-batches.

One process on the driver serves a query for its whole life; Spark calls one method at a time.  What
is kept between calls could be found out again: a restart loses nothing.

I1  An offset goes back only where a log lost its end, and then the loss is told first.
I2  What an offset covers can be read without waiting for a writer.
I3  With AvailableNow no offset passes what was acknowledged when the query started, and the last
    one reaches it.
"""

import logging
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
from millrace.core.runs import Runs
from millrace.errors import TimedOut, UsageError
from millrace.spark import batch, bounds, limiting, offsets, task, workers
from millrace.spark.ends import Watches
from millrace.spark.filters import Narrowing
from millrace.spark.offsets import LogOffset, Offset
from millrace.spark.options import LATEST, Bound, Options, check_use
from millrace.types import Lsn

AVAILABLE_NOW_PATIENCE_S: Final = 15  # For a writer that was under way when the query started.
_NO_MATCH: Final = "logPattern"  # Among what was told.
_log = logging.getLogger("millrace.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        check_use(options, "readStream")
        self._options = options
        self._schema = schema
        self._watches: Watches | None = None
        self._latest: Offset | None = None
        self._pinned: dict[str, Lsn] | None = None  # With AvailableNow: where to stop.
        self._told: set[str] = set()

    # -- What Spark calls ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with workers.plain_errors():
            return workers.call(self._options, self._initial).document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark takes one; `limiting` applies both."""
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
        logs = await self._find_logs(client)
        ends = await bounds.of_each(logs, bounds.readable_ends)
        starting = self._options.starting or Bound("startingOffsets", LATEST)
        return _offset(client, logs, await bounds.resolve(starting, logs, ends))

    async def _find_logs(self, client: Client) -> dict[str, Log]:
        """A pattern that matches nothing may come to match: that is told once, and waited for."""
        logs = await bounds.find_logs(client, self._options)
        if not logs and _NO_MATCH not in self._told:
            self._told.add(_NO_MATCH)
            _log.warning(
                "%s; the query waits for one", await bounds.no_match(client, self._options)
            )
        return logs

    async def _pin(self, client: Client) -> dict[str, Lsn]:
        logs = await self._find_logs(client)
        ends = await bounds.of_each(logs, bounds.complete_ends)
        return {name: each.end for name, each in ends.items()}

    async def _next(self, client: Client, start: Offset, is_limited: bool) -> Offset:
        logs, known = await self._logs(client, start)
        begins = {
            name: known[name].next if name in known else (await bounds.readable_ends(log)).start
            for name, log in logs.items()
        }
        joined = {name: begins[name] for name in logs if name not in known}
        latest = await self._ends(logs, begins, joined)
        runs = await bounds.runs_of_each(logs, begins, latest)
        ends = latest
        if is_limited:
            ends = await limiting.limited(self._options, logs, runs, begins, latest)
        self._latest = _reported(client, logs, runs, begins, ends, latest)
        return _offset(client, logs, ends, known, joined)

    async def _logs(
        self, client: Client, start: Offset
    ) -> tuple[dict[str, Log], dict[str, LogOffset]]:
        """Those to read now, and what is known of where they were read to; places of logs that are
        not read now stay, should they come back.  Refuses a checkpoint of something else."""
        offsets.check_cluster(start, client.id)
        logs = await self._find_logs(client)
        known = dict(start.logs)
        for name in sorted(set(known) - set(logs)):
            self._tell_lost(
                f"log {name!r} is in the checkpoint, and the query does not read it any more: it "
                "was deleted, or the options changed; correct the options, or give the query a "
                "checkpointLocation of its own"
            )
            if name not in {info.name for info in await client.logs()}:
                del known[name]  # It will never come back: its successor has another id.
        for name in sorted(set(known) & set(logs)):
            if wrong := offsets.remade(name, known[name], logs[name].info.id):
                if self._options.fail_on_data_loss:
                    raise UsageError(wrong)
                self._tell_lost(wrong)
                del known[name]
        if self._pinned is not None:  # Logs made since are for the next run.
            logs = {name: log for name, log in logs.items() if name in self._pinned}
        return logs, known

    def _tell_lost(self, message: str) -> None:
        """A warning is given once."""
        if message not in self._told:
            bounds.tell_lost(self._options, message)
            self._told.add(message)

    async def _ends(
        self, logs: Mapping[str, Log], begins: dict[str, Lsn], joined: dict[str, Lsn]
    ) -> dict[str, Lsn]:
        """Keeps I1 to I3; waits if nothing is new."""
        if self._watches is None:
            self._watches = Watches()
        started_s = time.monotonic()
        has_waited = False
        while True:
            self._watches.clear_news()
            found = await self._watches.ends(logs)
            await self._check_begins(logs, begins, joined, found)
            ends = {
                name: max(begins[name], self._pinned_end(name, end)) for name, end in found.items()
            }
            is_new = any(ends[name] > begins[name] for name in ends)
            if is_new or self._is_done(ends) or (self._pinned is None and has_waited):
                return ends
            if time.monotonic() > started_s + AVAILABLE_NOW_PATIENCE_S:
                await self._pin_lower(logs, ends)
            await self._watches.wait(self._options.wait_ms or 1)
            has_waited = True

    async def _check_begins(
        self,
        logs: Mapping[str, Log],
        begins: dict[str, Lsn],
        joined: dict[str, Lsn],
        found: Mapping[str, Lsn],
    ) -> None:
        """A log that ends before where the query was has lost its end: what is written there now
        are other records."""
        for name, end in found.items():
            if begins[name] <= end:
                continue
            last = (await bounds.complete_ends(logs[name])).end
            if begins[name] > last:
                read_to, end_now = (logs[name].show(Lsn(each - 1)) for each in (begins[name], last))
                self._tell_lost(
                    f"log {name!r} was read up to {read_to} and ends at {end_now} now: its end is "
                    "lost, and positions above it are given to other records"
                )
                begins[name] = joined[name] = last

    async def _pin_lower(self, logs: Mapping[str, Log], ends: Mapping[str, Lsn]) -> None:
        """Positions that were given to writers and lost with their sequencer never come."""
        assert self._pinned is not None
        for name, log in logs.items():
            last = (await bounds.complete_ends(log)).end
            if ends[name] < self._pinned[name] <= last:
                raise TimedOut(
                    f"log {name!r}: writers did not complete positions {log.show(ends[name])} to "
                    f"{log.show(Lsn(self._pinned[name] - 1))}, which they were given before the "
                    "query started"
                )
            self._pinned[name] = min(self._pinned[name], last)

    def _pinned_end(self, name: str, end: Lsn) -> Lsn:
        return end if self._pinned is None else min(end, self._pinned[name])

    def _is_done(self, ends: Mapping[str, Lsn]) -> bool:
        if self._pinned is None:
            return self._options.wait_ms == 0
        return all(ends[name] >= self._pinned[name] for name in ends)

    # -- Partitions ---------------------------------------------------------------------------

    async def _plan(self, client: Client, start: Offset, end: Offset) -> list[InputPartition]:
        logs, known = await self._logs(client, end)
        ranges: dict[str, bounds.Range] = {}
        for name, place in known.items():
            if name not in logs:
                continue
            first = _first(place, start.logs.get(name))
            if first < place.next:
                start_now = (await bounds.readable_ends(logs[name])).start
                wanted = (first, place.next)
                ranges[name] = bounds.untrimmed(self._options, logs[name], wanted, start_now)
        kept = {name: each for name, each in ranges.items() if each[0] < each[1]}
        selection = batch.select(self._schema, self._options, Narrowing())
        return await batch.partitions(client, self._options, logs, kept, selection)


def _offset(
    client: Client,
    logs: Mapping[str, Log],
    ends: Mapping[str, Lsn],
    known: Mapping[str, LogOffset] | None = None,
    joined: Mapping[str, Lsn] | None = None,
) -> Offset:
    """`joined` logs say where they are read from: a batch that is planned again must not depend on
    what was trimmed meanwhile."""
    places = {} if known is None else dict(known)
    for name, end in ends.items():
        first = None if joined is None else joined.get(name)
        is_told = first is not None and first < end
        places[name] = LogOffset(logs[name].info.id, end, first if is_told else None)
    return Offset(client.id, places)


def _reported(
    client: Client,
    logs: Mapping[str, Log],
    runs: Mapping[str, Runs],
    begins: Mapping[str, Lsn],
    ends: Mapping[str, Lsn],
    latest: Mapping[str, Lsn],
) -> Offset:
    """Where the logs end, and how many records the positions stand for."""
    places = {
        name: LogOffset(
            logs[name].info.id,
            last,
            taken=runs[name].within(begins[name], ends[name]),
            waiting=runs[name].within(ends[name], last),
        )
        for name, last in latest.items()
    }
    return Offset(client.id, places)


def _first(place: LogOffset, before: LogOffset | None) -> Lsn:
    """Where a log is read from that is read up to `place`; one that joined with nothing to read
    says nothing of it."""
    if place.first is not None:
        return place.first
    return before.next if before is not None and before.id == place.id else place.next
