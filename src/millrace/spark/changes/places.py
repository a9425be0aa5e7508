"""Where a query stands: its last offset, corrected by what the tasks left in the ring."""

import contextlib
import json
import logging
from typing import Final

import msgspec

from millrace.client.cluster import Client
from millrace.core.documents.change_query import (
    QueryPlace,
    Settled,
    droppable,
    settle,
    settle_unknown,
)
from millrace.core.documents.document import PartitionId
from millrace.errors import Unavailable, UnknownLog, UsageError
from millrace.spark.changes import offsets
from millrace.spark.changes.masters import Masters
from millrace.spark.changes.offsets import BucketDocument, ChangesOffset, RingDocument
from millrace.spark.changes.options import ChangeOptions
from millrace.spark.changes.ring import KeptReceipt, Ring, new_name
from millrace.spark.options import EARLIEST, LATEST
from millrace.types import FIRST_LSN, Lsn

SLACK_RECEIPTS: Final = 256  # A ring is trimmed when it is worth while.
SLACK_SHARE: Final = 4
_log = logging.getLogger("millrace.spark")


class SettledOffset(msgspec.Struct, frozen=True):
    places: dict[PartitionId, Settled]
    bucket: BucketDocument
    ring: RingDocument  # For the next offset.


async def starting_places(
    options: ChangeOptions, cluster: str, masters: Masters
) -> dict[PartitionId, QueryPlace]:
    """Where a query begins that has no checkpoint."""
    record = masters.bucket.asker.map.record
    numbers = [PartitionId(at) for at in range(len(record.seats))]
    if options.starting == EARLIEST:
        return dict.fromkeys(numbers, QueryPlace())
    if options.starting != LATEST:
        return _given_places(options, cluster, masters)
    await masters.reload()
    states = await masters.states(numbers)
    if missing := [number for number in numbers if number not in states]:
        raise Unavailable(f"partitions {missing} of bucket {record.name!r} have no master now")
    return {
        number: QueryPlace(state.log, state.high, state.high, state.high, 0, state.high)
        for number, state in sorted(states.items())
    }


def _given_places(
    options: ChangeOptions, cluster: str, masters: Masters
) -> dict[PartitionId, QueryPlace]:
    record = masters.bucket.asker.map.record
    offset = offsets.parse(json.loads(options.starting))
    offsets.check_whose(offset, cluster, record)
    if wrong := offsets.remade(offset, record):
        raise UsageError(f"the option startingOffsets: {wrong}")
    given = offset.places()
    numbers = [PartitionId(at) for at in range(len(record.seats))]
    return {
        number: _since(given[number]) if number in given else QueryPlace() for number in numbers
    }


def _since(place: QueryPlace) -> QueryPlace:
    """This query has read nothing yet: who goes back further has nothing to take back."""
    return msgspec.structs.replace(place, since=place.seq)


class Places:
    def __init__(self, client: Client) -> None:
        self.client = client
        self._known: tuple[ChangesOffset, SettledOffset] | None = None
        self._receipts: list[KeptReceipt] | None = None  # All that are in the ring.
        self._ring = ""
        self._end = FIRST_LSN

    async def settled(
        self, offset: ChangesOffset, masters: Masters, options: ChangeOptions
    ) -> SettledOffset:
        if self._known is not None and self._known[0] == offset:
            return self._known[1]
        record = masters.bucket.asker.map.record
        has_ring = await self._read_receipts(offset)
        bucket = BucketDocument(record.id, record.name)
        if wrong := offsets.remade(offset, record):
            if options.fail_on_data_loss:
                raise UsageError(wrong)
            _log.warning(wrong)
            found = SettledOffset(_anew(offset, len(record.seats)), bucket, self._next())
        elif not has_ring:
            found = SettledOffset(_unknown(offset), bucket, self._next())
        else:
            places = self._settle(offset)
            is_doubtful = any(each.is_doubtful for each in places.values())
            settled_to = offset.ring.next if is_doubtful else self._end
            found = SettledOffset(places, bucket, RingDocument(self._ring, settled_to, self._end))
        self._known = offset, found
        return found

    def _next(self) -> RingDocument:
        return RingDocument(self._ring, self._end, self._end)

    async def ring_of(self, offset: ChangesOffset) -> RingDocument:
        """For the tasks of the micro-batch that ends there: it may have been planned long ago."""
        if await Ring(self.client, offset.ring.log).has(Lsn(offset.ring.next)):
            return offset.ring
        return RingDocument((await self._new_ring()).name, FIRST_LSN)

    async def _new_ring(self) -> Ring:
        ring = Ring(self.client, new_name())
        await ring.make()
        return ring

    async def _read_receipts(self, offset: ChangesOffset) -> bool:
        """From the beginning the first time: what is kept must be known to be trimmed.  False: the
        ring is gone, and there is a new one."""
        ring = Ring(self.client, offset.ring.log)
        if self._receipts is None or self._ring != ring.name:
            self._receipts, self._end = [], FIRST_LSN
            if not await ring.has(Lsn(offset.ring.next)):
                _log.warning(
                    "the ring %s is gone: partitions of the last micro-batch are read again, and "
                    "those that a failover takes back",
                    ring.name,
                )
                self._ring = (await self._new_ring()).name
                return False
            self._ring = ring.name
        found, end = await ring.receipts(self._end)
        self._receipts += found
        self._end = max(end, self._end)
        return True

    def _settle(self, offset: ChangesOffset) -> dict[PartitionId, Settled]:
        places: dict[PartitionId, Settled] = {}
        assert self._receipts is not None
        first = max(offset.ring.next, offset.ring.batch)
        recent = [each.receipt for each in self._receipts if each.lsn >= first]
        for number, document in sorted(offset.partitions.items(), key=lambda pair: int(pair[0])):
            partition, place = PartitionId(int(number)), offsets.place_of(document)
            if document.before is None:
                places[partition] = Settled(place, document.doubtful)
                continue
            before = offsets.place_of(document.before)
            mine = [receipt for receipt in recent if receipt.partition == partition]
            settled = places[partition] = settle(before, place, mine)
            if settled.place.era > before.era:
                details = "; ".join(sorted({receipt.detail for receipt in mine if receipt.detail}))
                _log.warning("partition %d: changes were taken back: %s", partition, details)
        return places

    async def trim(self, committed: ChangesOffset, keys_max: int) -> None:
        """What lies further back than `keys_max` changes is not needed any more, if the query has
        gone on since."""
        if committed.ring.log != self._ring:
            return
        settled = [each for each in self._receipts or () if each.lsn < committed.ring.next]
        newer = sum(each.receipt.keys for each in (self._receipts or ())[len(settled) :])
        kept = [each.receipt.keys for each in settled]
        at = droppable(kept, max(0, keys_max - newer))
        if sum(kept[:at]) + at < SLACK_RECEIPTS + keys_max // SLACK_SHARE:
            return
        with contextlib.suppress(Unavailable, UnknownLog):
            await Ring(self.client, self._ring).trim(Lsn(settled[at - 1].lsn + 1))
            assert self._receipts is not None
            del self._receipts[:at]


def _unknown(offset: ChangesOffset) -> dict[PartitionId, Settled]:
    """What the last micro-batch came to is not known any more, nor what one before it did about a
    partition that nobody has read since."""
    return {
        PartitionId(int(number)): settle_unknown(offsets.place_of(document))
        if document.before is not None or document.doubtful
        else Settled(offsets.place_of(document), False)
        for number, document in sorted(offset.partitions.items(), key=lambda pair: int(pair[0]))
    }


def _anew(offset: ChangesOffset, partitions: int) -> dict[PartitionId, Settled]:
    """Of a bucket that was made again, above all that was read of the one before."""
    era = 1 + max((each.era for each in offset.partitions.values()), default=0)
    return {PartitionId(at): Settled(QueryPlace(era=era), False) for at in range(partitions)}
