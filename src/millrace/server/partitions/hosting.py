"""The buckets of which a node has partitions: what the keeper is told of them, and what it orders.

I1  Nothing is told and nothing is ordered before all that the disk has is loaded.
I2  A bucket is known as long as the node has a partition of it, if only a damaged one.  When the
    last one is dropped, whoever streams from it, or is followed for it, hears that the connection
    is over: what is made anew later has nothing to do with it.
I3  Who says which bucket it means gets that one or none.  A name may be given again while others
    still hold what was deleted: to follow another bucket, a replica of it would throw away what
    it has and be counted as a copy that is not there.
"""

from collections.abc import Callable

from millrace.core.documents.map import BucketAttributes
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.messages.documents import (
    NO_STATE_CAS,
    BucketsDescribed,
    DescribeBuckets,
    PartitionsSet,
    SetPartitions,
)
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.surroundings import Surroundings
from millrace.store.documents.contract import DocumentStore

Answer = Callable[[Message], None]


class HostedBuckets:
    def __init__(self, store: DocumentStore, flusher: Flusher, around: Surroundings) -> None:
        self.is_warm = False
        self.buckets: dict[int, BucketPartitions] = {}
        self._store = store
        self._flusher = flusher
        self._around = around

    def make(self, id: int, name: str, attributes: BucketAttributes) -> BucketPartitions:
        made = BucketPartitions(id, name, attributes, self._store, self._flusher, self._around)
        self.buckets[id] = made
        return made

    def find(self, name: str, id: int = 0) -> BucketPartitions | None:
        """Keeps I3: if an id is given the name says nothing.  Without one the one with the largest
        id: one that was deleted may be here still, and its name used again."""
        if id:
            return self.buckets.get(id)
        ids = (id for id, bucket in self.buckets.items() if bucket.name == name)
        return self.buckets.get(max(ids, default=0))

    def describe(self, message: DescribeBuckets) -> BucketsDescribed | Refused:
        if not self.is_warm:
            return self._not_ready()
        if message.bucket:
            asked = self.buckets.get(message.bucket)
            return BucketsDescribed(() if asked is None else (asked.describe(message.partitions),))
        return BucketsDescribed(tuple(each.summarize() for each in self.buckets.values()))

    def order(self, message: SetPartitions, answer: Answer) -> None:
        """Keeps I1."""
        if not self.is_warm:
            answer(self._not_ready())
            return
        bucket = self.buckets.get(message.bucket)
        if bucket is None:
            if all(order.is_dropped for order in message.orders):
                answer(PartitionsSet(NO_STATE_CAS))
                return
            bucket = self.make(message.bucket, message.name, message.attributes)
            bucket.warmed()
            if message.cas == NO_STATE_CAS:
                bucket.cas = NO_STATE_CAS
        bucket.order(message, answer)
        if bucket.is_empty:  # Keeps I2.
            del self.buckets[bucket.id]
            bucket.drop()

    def _not_ready(self) -> Refused:
        return Refused(Refusal.NOT_READY, detail="documents are being loaded")
