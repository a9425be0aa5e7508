"""`spark.readStream`: offsets, limits and tasks of micro-batches.

One process on the driver serves a query for its whole life; Spark calls one method at a time.  What
is kept between calls could be found out again: a restart loses nothing.

I1  A micro-batch begins where the receipts of the one before say (`places.py`).
I2  A micro-batch that is planned again after a restart takes nothing for granted: what its tasks
    handed out before is in the ring, and they look.
I3  With AvailableNow the last offset reaches what every master had when the query started.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.client.cluster import Client
from millrace.core.documents.change_query import (
    MasterState,
    Planned,
    Settled,
    cut_to,
    plan_partition,
)
from millrace.core.documents.document import PartitionId
from millrace.core.documents.rollback import Refuse
from millrace.errors import Unavailable
from millrace.spark import workers
from millrace.spark.changes import offsets, task
from millrace.spark.changes.masters import Masters
from millrace.spark.changes.offsets import BucketDocument, ChangesOffset, RingDocument
from millrace.spark.changes.options import ChangeOptions, check_use
from millrace.spark.changes.places import Places, starting_places
from millrace.spark.changes.ring import Ring, new_name
from millrace.spark.changes.tasks import tasks_of
from millrace.types import FIRST_LSN

LOOK_MS_FIRST: Final = 20  # Between two looks at what masters have, while there is nothing new.
LOOK_MS_MAX: Final = 100
AVAILABLE_NOW_PATIENCE_S: Final = 60  # For a master that is away.
_log = logging.getLogger("millrace.spark")


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        check_use(options, "readStream")
        self._options = options
        self._schema = schema
        self._masters: Masters | None = None
        self._places: Places | None = None
        self._latest: dict[str, Any] | None = None
        self._fresh = ""  # The offset that was planned last, and has not been read yet.
        self._pinned: dict[PartitionId, MasterState] | None = None  # With AvailableNow.
        self._told: dict[PartitionId, str] = {}

    # -- What Spark calls ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with workers.plain_errors():
            return workers.call(self._options, self._initial).document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        changes = self._options.changes_per_trigger
        return ReadAllAvailable() if changes is None else ReadMaxRows(changes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with workers.plain_errors():
            self._pinned = workers.call(self._options, self._pin)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with workers.plain_errors():
            begin = offsets.parse(start)
            is_limited = not isinstance(limit, ReadAllAvailable)
            found = workers.call(
                self._options, lambda client: self._next(client, begin, is_limited)
            )
            if found is None:
                return start
            document = found.document()
            self._fresh = json.dumps(document)
            return document

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Keeps I2."""
        is_fresh = self._fresh == json.dumps(end)
        self._fresh = ""
        with workers.plain_errors():
            last = offsets.parse(end)
            ring = workers.call(self._options, lambda client: self._ring_of(client, last, is_fresh))
            last = msgspec.structs.replace(last, ring=ring)
            return tasks_of(last, self._options, is_fresh=is_fresh)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task.read(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        last, keys_max = offsets.parse(end), self._options.rollback_keys
        with workers.plain_errors():
            workers.call(self._options, lambda client: self._opened(client).trim(last, keys_max))

    def stop(self) -> None:
        if self._masters is not None:
            workers.run(self._masters.close())

    # -- Offsets ------------------------------------------------------------------------------

    async def _initial(self, client: Client) -> ChangesOffset:
        masters = await self._open(client)
        record = masters.bucket.asker.map.record
        places = await starting_places(self._options, client.id, masters)
        ring = Ring(client, new_name())
        await ring.make()
        documents = {str(number): offsets.document_of(each) for number, each in places.items()}
        bucket = BucketDocument(record.id, record.name)
        return ChangesOffset(client.id, bucket, documents, RingDocument(ring.name, FIRST_LSN))

    async def _open(self, client: Client) -> Masters:
        """A bucket that was made again is another one."""
        bucket = await client.bucket(self._options.bucket)
        if self._masters is None or self._masters.bucket is not bucket:
            if self._masters is not None:
                await self._masters.close()
            self._masters = Masters(bucket)
        return self._masters

    async def _check(self, client: Client, offset: ChangesOffset) -> Masters:
        masters = await self._open(client)
        offsets.check_whose(offset, client.id, masters.bucket.asker.map.record)
        return masters

    async def _ring_of(self, client: Client, last: ChangesOffset, is_fresh: bool) -> RingDocument:
        await self._check(client, last)
        return last.ring if is_fresh else await self._opened(client).ring_of(last)

    def _opened(self, client: Client) -> Places:
        """A client that could not reach its cluster was replaced by another."""
        if self._places is None or self._places.client is not client:
            self._places = Places(client)
        return self._places

    async def _pin(self, client: Client) -> dict[PartitionId, MasterState]:
        """What to reach."""
        return await (await self._open(client)).all_states(AVAILABLE_NOW_PATIENCE_S)

    async def _next(
        self, client: Client, start: ChangesOffset, is_limited: bool
    ) -> ChangesOffset | None:
        masters = await self._check(client, start)
        settled = await self._opened(client).settled(start, masters, self._options)
        planned = await self._wait(masters, settled.places)
        if not planned:
            return None
        if is_limited and self._options.changes_per_trigger is not None:
            planned = cut_to(planned, self._options.changes_per_trigger)
        documents = {
            str(number): offsets.document_of(planned[number].end, planned[number].range)
            if number in planned
            else offsets.unread(each)
            for number, each in settled.places.items()
        }
        return ChangesOffset(client.id, settled.bucket, documents, settled.ring)

    async def _wait(
        self, masters: Masters, settled: dict[PartitionId, Settled]
    ) -> dict[PartitionId, Planned]:
        """What there is to read, as soon as there is anything; empty: nothing for now."""
        began_s = time.monotonic()
        look_ms = LOOK_MS_FIRST
        while True:
            await masters.reload()
            planned = await self._plan(masters, settled)
            waited_s = time.monotonic() - began_s
            if planned or self._is_done(settled):
                return planned
            if self._pinned is None and waited_s * 1000 >= self._options.wait_ms:
                return {}
            if waited_s >= AVAILABLE_NOW_PATIENCE_S:
                raise Unavailable(
                    f"bucket {self._options.bucket!r}: masters of some partitions do not answer"
                )
            await asyncio.sleep(look_ms / 1000)
            look_ms = min(LOOK_MS_MAX, 2 * look_ms)

    async def _plan(
        self, masters: Masters, settled: dict[PartitionId, Settled]
    ) -> dict[PartitionId, Planned]:
        numbers = [
            number for number in await masters.changed(settled) if self._is_wanted(number, settled)
        ]
        states = await masters.states(numbers)
        found: dict[PartitionId, Planned] = {}
        highs = {number: each.place for number, each in settled.items()}
        for number, state in states.items():
            planned = plan_partition(number, settled[number], state)
            if isinstance(planned, Refuse):
                self._tell(number, planned.detail)
            elif planned is not None:
                found[number] = planned
                highs[number] = planned.end
            if self._pinned is not None and state.high < self._pinned[number].high:
                self._pinned[number] = state  # What was lost since cannot be reached.
        self._latest = {str(number): highs[number].seq for number in sorted(highs)}
        return found

    def _is_wanted(self, number: PartitionId, settled: dict[PartitionId, Settled]) -> bool:
        """Keeps I3: what comes after that is for the next run."""
        if self._pinned is None:
            return True
        place, pinned = settled[number].place, self._pinned[number]
        is_behind = place.seq < pinned.high or place.log.position_of(pinned.log.newest) is None
        is_untold = settled[number].is_doubtful or not settled[number].is_told
        return is_untold or (is_behind and place.seq + pinned.high > 0)

    def _is_done(self, settled: dict[PartitionId, Settled]) -> bool:
        if self._pinned is None:
            return False
        return not any(self._is_wanted(number, settled) for number in settled)

    def _tell(self, number: PartitionId, detail: str) -> None:
        """Once, until something else is in the way."""
        if self._told.get(number) != detail:
            self._told[number] = detail
            _log.warning("bucket %r: partition %d waits: %s", self._options.bucket, number, detail)
