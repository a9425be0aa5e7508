"""What the masters of a bucket's partitions say of themselves, asked by the driver of a query.

One connection to each node is kept.  A master that does not answer is left out: its partition waits
until it does, or another takes its place, and the others go on.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable
from typing import Final

from millrace.client.bucket import Bucket
from millrace.client.changes.connection import (
    Pushed,
    StreamConnection,
    StreamSettings,
    open_connection,
)
from millrace.client.changes.high_seqs import high_seqs
from millrace.core.documents.change_query import MasterState, Settled
from millrace.core.documents.document import PartitionId, Seq
from millrace.core.documents.messages import FailoverLogGot, GetFailoverLog
from millrace.errors import MetadataUnavailable, MillraceError, Unavailable
from millrace.spark.changes.reading import BUFFER_BYTES, NOOP_INTERVAL_S

PAUSE_S: Final = 0.1  # Between two looks for those that did not answer.


class Masters:
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._map = bucket.asker.map
        self._settings = StreamSettings("spark:driver", bucket.name, BUFFER_BYTES, NOOP_INTERVAL_S)
        self._open: dict[str, StreamConnection] = {}

    async def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    async def reload(self) -> None:
        """Raises UnknownBucket.  Without the repository the old map must do."""
        with contextlib.suppress(MetadataUnavailable):
            await self._map.reload()

    async def changed(self, settled: dict[PartitionId, Settled]) -> list[PartitionId]:
        """Those that may have anything new: more than was read, or another master."""
        highs = await high_seqs(self.bucket.asker)
        seats = self._map.record.seats
        return [
            number
            for number, each in settled.items()
            if each.is_doubtful
            or not each.is_told
            or highs.get(number, Seq(0)) > each.place.seq
            or (each.place.seq and seats[number].id != each.place.log.newest)
        ]

    async def states(self, numbers: Collection[PartitionId]) -> dict[PartitionId, MasterState]:
        """Of those that answer."""
        by_address: dict[str, list[PartitionId]] = {}
        for number in numbers:
            by_address.setdefault(self._map.masters[number], []).append(number)
        asked = [self._ask(address, some) for address, some in by_address.items() if address]
        return {number: state for pairs in await asyncio.gather(*asked) for number, state in pairs}

    async def all_states(self, patience_s: float) -> dict[PartitionId, MasterState]:
        """Of every partition, as soon as all answer.  Raises Unavailable, UnknownBucket."""
        numbers = [PartitionId(at) for at in range(len(self._map.masters))]
        deadline_s = time.monotonic() + patience_s
        while True:
            states = await self.states(numbers)
            missing = [number for number in numbers if number not in states]
            if not missing:
                return states
            if time.monotonic() > deadline_s:
                raise Unavailable(f"partitions {missing} of the bucket have no master that answers")
            await asyncio.sleep(PAUSE_S)
            await self.reload()

    async def _ask(
        self, address: str, numbers: Iterable[PartitionId]
    ) -> list[tuple[PartitionId, MasterState]]:
        try:
            connection = await self._connection(address)
            answers = await asyncio.gather(
                *(connection.ask(GetFailoverLog(number)) for number in numbers)
            )
        except MillraceError as error:
            if not isinstance(error, Unavailable):
                raise
            return []
        return [
            (answer.partition, MasterState(answer.log, answer.high, answer.purged))
            for answer in answers
            if isinstance(answer, FailoverLogGot) and answer.log.entries
        ]

    async def _connection(self, address: str) -> StreamConnection:
        known = self._open.get(address)
        if known is not None and known.is_open:
            return known
        self._open[address] = await open_connection(address, self._settings, _ignore, _lost)
        return self._open[address]


def _ignore(connection: StreamConnection, pushed: Pushed) -> None:
    connection.processed(pushed.size_bytes)


def _lost(connection: StreamConnection, detail: str) -> None:
    """Whoever asks next dials again."""
