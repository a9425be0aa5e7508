"""One bucket as the front end sees it, whether this node holds partitions of it or none.

A client that does not know the map may ask any node: what this one is not the master of is passed
on to the one that is (`forwarding.py`).

I1  A partition counts as emptied elsewhere only if its master led it in one term, from before it
    was asked until after it had answered.
I2  A wait whose future is cancelled is forgotten.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from millrace.core.documents.document import Document, PartitionId, PartitionState
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    AMBIGUOUS,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    Operations,
    Outcome,
    ValueUnavailable,
    Verb,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import WAIT_MS_DEFAULT, Durability, WaitOutcome
from millrace.core.messages.documents import (
    BucketEmptied,
    BucketsDescribed,
    CarriedOut,
    CarryOut,
    DescribeBuckets,
    EmptyBucket,
    HostedPartition,
)
from millrace.errors import Corruption, MillraceError, NoAnswer
from millrace.runtime.procedures import AskNode
from millrace.server.documents.backend import Stat
from millrace.server.documents.flushing import Marks, mark
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.forwarding import Forwarding, Reload
from millrace.server.partitions.surroundings import Surroundings
from millrace.store.documents.contract import DocumentStore
from millrace.types import NO_NODE, NodeId

FORWARD_MS: Final = 10_000  # And as long as the master waits for durability.
EMPTY_MS: Final = 60_000
DESCRIBE_MS: Final = 10_000

Addresses = Callable[[NodeId], str]  # Of documents ports; empty: not known.
IsLinked = Callable[[NodeId], bool]  # What is asked of the node now leaves now.


class BucketFront:
    def __init__(
        self,
        record: BucketRecord,
        store: DocumentStore,
        around: Surroundings,
        ask_node: AskNode,
        addresses: Addresses,
        reload: Reload | None = None,
        is_linked: IsLinked = lambda _: True,
    ) -> None:
        self.record = record
        self.listings = 0  # Of the buckets: how many had begun when the record was heard.
        self.is_congested = False
        self.damaged: Collection[PartitionId] = ()
        self._store = store
        self._around = around
        self._ask_node = ask_node
        self._addresses = addresses
        self._reload = reload
        self._is_linked = is_linked
        self._proven: set[NodeId] = set()  # They have answered, and nothing failed since.
        self._forwarding = Forwarding(self._forward_once, self._is_proven, reload)
        self.here: BucketPartitions | None = None  # None: this node holds nothing of it.
        self._operations = Operations(record.attributes.value_bytes_max, self._load, self._fetch)

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def operations(self) -> Operations:
        return self._operations

    @property
    def is_serving(self) -> bool:
        return self.here is not None and self.here.is_serving

    def is_damaged(self, number: PartitionId) -> bool:
        return number in self.damaged

    def now_us(self) -> int:
        return self._around.now_us()

    def partition_of(self, key: bytes) -> PartitionId:
        return self.record.partition_of(key)

    def active(self, number: PartitionId) -> Partition | None:
        return None if self.here is None else self.here.active(number)

    def copies(self) -> Iterator[Partition]:
        return iter(()) if self.here is None else self.here.copies()

    def copy(self, number: PartitionId) -> Partition | None:
        return None if self.here is None else self.here.copy(number)

    def _load(self, document: Document) -> Document:
        number = self.partition_of(document.key)
        try:
            found = self._store.get(self.record.id, number, document.key)
        except Corruption as error:
            raise ValueUnavailable(str(error)) from error
        if found is None or found.cas != document.cas:
            raise ValueUnavailable(f"{document.key!r} is not on disk")
        if self.here is not None:
            self.here.restore(number, found)
        return found

    def _fetch(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        try:
            return self._store.get_many(self.record.id, number, keys)
        except Corruption as error:
            raise ValueUnavailable(str(error)) from error

    # -- Elsewhere ----------------------------------------------------------------------------

    async def forward(self, number: PartitionId, command: Command) -> Outcome:
        """If the map turns out to be old, once more with the present one.  After that the client
        may try again: the keeper may be choosing another master."""
        return await self._forwarding.forward(number, command)

    def _is_proven(self, number: PartitionId) -> bool:
        master = self.record.seat(number).active
        if master in self._proven:
            return self._is_linked(master)
        return master in (NO_NODE, self._around.node)

    async def _forward_once(self, number: PartitionId, command: Command) -> Outcome:
        """NOT_MY_PARTITION: it is not where the map says."""
        master = self.record.seat(number).active
        if master in (NO_NODE, self._around.node):
            return NOT_MY_PARTITION
        message = CarryOut(self.record.id, number, command)
        wait_ms = (command.timeout_ms or WAIT_MS_DEFAULT) if command.level else 0
        try:
            answer = await self._ask_node(master, message, FORWARD_MS + wait_ms)
        except MillraceError as error:
            if not isinstance(error, NoAnswer):  # It was sent: nothing passes it on the link.
                self._proven.discard(master)
            is_harmless = error.is_definite or command.verb is Verb.GET
            return TEMPORARY_FAILURE if is_harmless else AMBIGUOUS
        self._proven.add(master)
        return answer.outcome if isinstance(answer, CarriedOut) else TEMPORARY_FAILURE

    # -- Emptying -----------------------------------------------------------------------------

    @property
    def numbers(self) -> Collection[PartitionId]:
        return [PartitionId(number) for number in range(len(self.record.seats))]

    def named_here(self) -> set[PartitionId]:
        seats, node = self.record.seats, self._around.node
        return {PartitionId(number) for number, seat in enumerate(seats) if seat.active == node}

    async def reload_map(self) -> None:
        if self._reload is not None:
            await self._reload()

    async def flush_elsewhere(
        self, numbers: Collection[PartitionId], marks: Marks
    ) -> set[PartitionId]:
        wanted: defaultdict[NodeId, set[PartitionId]] = defaultdict(set)
        for number in numbers:
            wanted[self.record.seat(number).active].add(number)
        nodes = wanted.keys() - {NO_NODE, self._around.node}
        work = (self._empty_at(node, wanted[node], marks) for node in nodes)
        emptied = await asyncio.gather(*work)
        return set[PartitionId]().union(*emptied)

    async def _empty_at(
        self, node: NodeId, numbers: set[PartitionId], marks: Marks
    ) -> set[PartitionId]:
        """Those that the node has emptied as their master.  Keeps I1."""
        try:
            before = await self._led_by(node)
            led = [before[each] for each in sorted(numbers & before.keys())]
            order = EmptyBucket(self.record.id, tuple(mark(marks, each) for each in led))
            answer = await self._ask_node(node, order, EMPTY_MS)
            after = await self._led_by(node)
        except MillraceError:
            return set()
        emptied = answer.partitions if isinstance(answer, BucketEmptied) else ()
        terms = {number: each.term for number, each in after.items()}
        return {each for each in emptied if each in before and before[each].term == terms.get(each)}

    async def _led_by(self, node: NodeId) -> dict[PartitionId, HostedPartition]:
        answer = await self._ask_node(node, DescribeBuckets(self.record.id), DESCRIBE_MS)
        described = answer.buckets if isinstance(answer, BucketsDescribed) else ()
        return {
            each.number: each
            for bucket in described
            for each in bucket.partitions
            if each.is_ordered and each.state is PartitionState.ACTIVE
        }

    # -- Waiting ------------------------------------------------------------------------------

    def wait(
        self, number: PartitionId, token: MutationToken, condition: Durability, timeout_ms: int
    ) -> "asyncio.Future[WaitOutcome]":
        future: asyncio.Future[WaitOutcome] = asyncio.get_running_loop().create_future()

        def ended(outcome: WaitOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        if self.here is None:
            ended(WaitOutcome.NOT_MY_PARTITION)
            return future
        held = self.here.held.get(token.partition)
        self.here.wait(token, condition, timeout_ms, ended)

        def forget_if_cancelled(_: "asyncio.Future[WaitOutcome]") -> None:
            if future.cancelled() and held is not None:
                held.waits.forget(ended)  # Keeps I2.

        future.add_done_callback(forget_if_cancelled)
        return future

    # -- For clients and people ---------------------------------------------------------------

    def map_json(self) -> bytes:
        """As Couchbase's clients read it."""
        nodes = sorted({node for seat in self.record.seats for node in seat.holders})
        places = {node: at for at, node in enumerate(nodes)}
        copies = self.record.attributes.replicas
        chains = [
            [places.get(seat.active, -1), *_padded([places[n] for n in seat.replicas], copies)]
            for seat in self.record.seats
        ]
        return msgspec.json.encode(
            {
                "name": self.name,
                "rev": self.record.revision,
                "nodeLocator": "vbucket",
                "vBucketServerMap": {
                    "hashAlgorithm": "CRC",
                    "numReplicas": copies,
                    "serverList": [self._addresses(node) for node in nodes],
                    "vBucketMap": chains,
                },
            }
        )

    def stats(self, group: str) -> Iterable[Stat] | None:
        match group:
            case "":
                return self._general()
            case "partitions":
                return self._of_partitions()
            case "upr":
                return self._of_streams()
        return None

    def _general(self) -> Iterator[Stat]:
        copies = list(self.copies())
        active = [copy for copy in copies if self.active(copy.number) is copy]
        here = self.here
        yield "curr_items", str(sum(len(copy.table) for copy in active))
        yield "partitions", str(len(copies))
        yield "partitions_active", str(len(active))
        yield "memory_bytes", str(here.memory_bytes if here is not None else 0)
        yield "queued_bytes", str(here.queued_bytes if here is not None else 0)
        yield "memory_bytes_max", str(self.record.attributes.memory_bytes)

    def _of_partitions(self) -> Iterator[Stat]:
        for copy in self.copies():
            yield f"state:{copy.number}", copy.state.value
            yield f"high_seq:{copy.number}", str(copy.high)
            yield f"complete_seq:{copy.number}", str(copy.complete)
            yield f"persisted_seq:{copy.number}", str(copy.persisted)
            yield f"purge_seq:{copy.number}", str(copy.purged)
            yield f"failover_id:{copy.number}", f"{copy.log.newest:016x}"

    def _of_streams(self) -> Iterator[Stat]:
        if self.here is not None:
            for session in self.here.sessions:
                for name, value in session.producer.stats().items():
                    yield name, str(value)


def _padded(places: list[int], count: int) -> list[int]:
    return (places + [-1] * count)[:count]
