"""What is done for partitions now and then: room, documents that expire, tombstones that are old.

I1  Each round does a bounded amount, so nobody waits for it.
I2  Only a master lets documents expire; whoever follows hears of it as a change.
I3  Tombstones go when they are older than the bucket keeps them, and the partition remembers up
    to which seq (U9).
I4  While the disk is full changes are refused, but not what makes room.
I5  A partition whose own writes fail takes no changes until one succeeds: they would never be on
    disk, and fill the memory.  All others do; only a disk that takes nothing stops them, or too
    much of their bucket that is not on disk yet.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from millrace.core.documents.document import ChangeKind, PartitionId, PartitionState
from millrace.core.documents.partition import MICROSECONDS, Partition
from millrace.errors import Corruption
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.front import BucketFront
from millrace.server.partitions.surroundings import Surroundings
from millrace.store.documents.contract import DocumentStore

ROUND_S: Final = 0.05
EXPIRE_LOOKED_AT: Final = 5_000
PURGE_TOMBSTONES_MAX: Final = 1_000
QUEUED_BYTES_MAX: Final = 128 << 20  # Not on disk yet: beyond it changes are refused for now.

logger = logging.getLogger("millrace")


class Upkeep:
    def __init__(
        self,
        buckets: Mapping[int, BucketPartitions],
        fronts: Mapping[str, BucketFront],
        store: DocumentStore,
        flusher: Flusher,
        around: Surroundings,
    ) -> None:
        self._buckets = buckets
        self._fronts = fronts
        self._store = store
        self._flusher = flusher
        self._around = around
        self._damaged: set[tuple[int, PartitionId]] = set()  # It is said once of each.
        self._rounds = self._walk()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            self.look()

    def look(self) -> None:
        """A round."""
        for bucket in list(self._buckets.values()):
            bucket.make_room()
        for front in list(self._fronts.values()):
            front.is_congested = self._is_congested(front)
            front.operations.is_disk_full = self._flusher.is_full  # Keeps I4.
            id, damaged = front.record.id, self._flusher.damaged
            front.damaged = {number for bucket, number in damaged if bucket == id}  # Keeps I5.
        next(self._rounds, None)

    def _is_congested(self, front: BucketFront) -> bool:
        """Keeps I4 and I5."""
        if self._flusher.is_full or self._flusher.has_store_failed:
            return True
        here = front.here
        if here is None or not here.is_stirred:  # Else it was just found that nothing is queued.
            return False
        return here.queued_bytes > QUEUED_BYTES_MAX

    def _walk(self) -> Iterator[None]:
        """All partitions in turn, for ever.  Keeps I1: a bite of one in each round."""
        while True:
            held = [
                (bucket, each.partition)
                for bucket in self._buckets.values()
                for each in bucket.held.values()
            ]
            if not held:
                yield
            for bucket, partition in held:
                yield from self._expire(bucket, partition)
                self._purge(bucket, partition)
                yield

    def _expire(self, bucket: BucketPartitions, partition: Partition) -> Iterator[None]:
        """Keeps I2."""
        memory = partition.memory
        keys = memory.expiring()
        for first in range(0, len(keys), EXPIRE_LOOKED_AT):
            if first:
                yield
            if bucket.active(partition.number) is not partition or not bucket.is_serving:
                return
            now_us = self._around.now_us()
            bite = keys[first : first + EXPIRE_LOOKED_AT]
            for key in memory.expired(bite, now_us // MICROSECONDS):
                partition.delete(key, now_us, ChangeKind.EXPIRATION)

    def _purge(self, bucket: BucketPartitions, partition: Partition) -> None:
        """Keeps I3."""
        if partition.has_undo or partition.state is PartitionState.DEAD:
            return
        before_s = self._around.now_us() // MICROSECONDS - bucket.attributes.purge_after_s
        number = partition.number
        try:
            old = self._store.tombstones(bucket.id, number, before_s, PURGE_TOMBSTONES_MAX)
        except Corruption as error:  # They stay; all else goes on.
            if (bucket.id, number) not in self._damaged:
                self._damaged.add((bucket.id, number))
                fields = {"bucket": bucket.name, "partition": number, "detail": str(error)}
                logger.error("partition.damaged", extra={"fields": fields})
            return
        if old:
            partition.purge(old)
