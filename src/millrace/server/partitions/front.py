"""One bucket as the front end sees it, whether this node holds partitions of it or none.

A client that does not know the map may ask any node: what this one is not the master of is passed
on to the one that is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from millrace.core.documents.document import Document, PartitionId
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
from millrace.core.documents.waits import Durability, WaitOutcome
from millrace.core.messages import Message
from millrace.core.messages.documents import BucketEmptied, CarriedOut, CarryOut, EmptyBucket
from millrace.errors import Corruption, MillraceError
from millrace.server.documents.backend import Stat
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.surroundings import Surroundings
from millrace.store.documents.contract import DocumentStore
from millrace.types import NO_NODE, NodeId

FORWARD_MS: Final = 10_000
EMPTY_MS: Final = 60_000

AskNode = Callable[[NodeId, Message, int], Awaitable[Message]]
Addresses = Callable[[NodeId], str]  # Of documents ports; empty: not known.
Reload = Callable[[], Awaitable[None]]  # Reads the map anew.


class BucketFront:
    def __init__(
        self,
        record: BucketRecord,
        store: DocumentStore,
        around: Surroundings,
        ask_node: AskNode,
        addresses: Addresses,
        reload: Reload | None = None,
    ) -> None:
        self.record = record
        self.is_congested = False
        self._store = store
        self._around = around
        self._ask_node = ask_node
        self._addresses = addresses
        self._reload = reload
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
        partition = self.copy(number)
        if partition is not None:
            partition.restore(found)
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
        outcome = await self._forward_once(number, command)
        if outcome == NOT_MY_PARTITION and self._reload is not None:
            await self._reload()
            outcome = await self._forward_once(number, command)
        return TEMPORARY_FAILURE if outcome == NOT_MY_PARTITION else outcome

    async def _forward_once(self, number: PartitionId, command: Command) -> Outcome:
        """NOT_MY_PARTITION: it is not where the map says."""
        master = self.record.seat(number).active
        if master in (NO_NODE, self._around.node):
            return NOT_MY_PARTITION
        message = CarryOut(self.record.id, number, command)
        try:
            answer = await self._ask_node(master, message, command.timeout_ms or FORWARD_MS)
        except MillraceError as error:
            is_harmless = error.is_definite or command.verb is Verb.GET
            return TEMPORARY_FAILURE if is_harmless else AMBIGUOUS
        return answer.outcome if isinstance(answer, CarriedOut) else TEMPORARY_FAILURE

    async def flush_elsewhere(self) -> bool:
        masters = {seat.active for seat in self.record.seats} - {NO_NODE, self._around.node}
        asked = [self._ask_node(node, EmptyBucket(self.record.id), EMPTY_MS) for node in masters]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return all(isinstance(each, BucketEmptied) and each.is_whole for each in answers)

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
        else:
            self.here.wait(token, condition, timeout_ms, ended)
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
