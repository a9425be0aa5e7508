"""The documents of a node: its store, its buckets, its front end, and what the keeper tells it.

Started before the node joins the cluster, so that its address can be told; partitions are loaded
in the background, and serve when the keeper has named them (R-Q).

  I1  A bucket's partitions are ordered about only after they are loaded.
  I2  Whatever this node has of a bucket that is deleted stays until the keeper orders it dropped.
  I3  What goes on in the background never ends unnoticed: whatever it cannot cope with is the
      node's failure.  A node that is not warm, and never will be, must not look healthy.
  I4  What a listing of the buckets says replaces all that was known when it began, whatever the
      ids: they are drawn before a bucket is made, and a restored repository gives them again.
      Against what was heard since, a listing counts only where its bucket has a larger id, or the
      same and a later revision, and so does an order: neither one about a deleted bucket nor an
      old listing puts that in the place of the next of its name.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

import millrace
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import NOT_MY_PARTITION, Outcome
from millrace.core.messages import Message
from millrace.core.messages.documents import (
    NO_FAILOVER_ID,
    BucketEmptied,
    CarriedOut,
    CarryOut,
    DescribeBuckets,
    EmptyBucket,
    SetPartitions,
)
from millrace.errors import MillraceError, NotConnected
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import AskNode
from millrace.server.documents.backend import BucketHost, StreamOutlet, StreamSession
from millrace.server.documents.carrying_out import carry_out
from millrace.server.documents.flushing import empty
from millrace.server.documents.front_end import DocumentFrontEnd
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.front import BucketFront, IsLinked
from millrace.server.partitions.hosting import HostedBuckets
from millrace.server.partitions.surroundings import Line, Listener, Timer
from millrace.server.partitions.upkeep import Upkeep
from millrace.server.partitions.warming import warm_up
from millrace.server.partitions.wire import WireLine, WireSession
from millrace.store.contract import StoreFailed
from millrace.store.documents.lmdb_documents import LmdbDocuments, open_documents
from millrace.types import NodeId

FOLLOW_S: Final = 0.5  # How often the map is looked at.
CLOSE_S: Final = 10.0

DocumentsRequest = DescribeBuckets | SetPartitions | CarryOut | EmptyBucket
Answer = Callable[[Message], None]

logger = logging.getLogger("millrace")


class NodeAround:
    """The event loop, the clock and the network of a node."""

    def __init__(
        self, node: NodeId, lease: Callable[[], int], find_address: Callable[[NodeId], str]
    ) -> None:
        self.node = node
        self._lease = lease
        self._find_address = find_address
        self._loop = asyncio.get_running_loop()

    @property
    def lease(self) -> int:
        return self._lease()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        if delay_ms:
            return self._loop.call_later(delay_ms / 1000, call)
        return self._loop.call_soon(call)

    def draw(self) -> int:
        return secrets.randbits(62) + 1

    def dial(self, node: NodeId, listener: Listener) -> Line:
        return WireLine(partial(self._find_address, node), listener)


class NodeDocuments:
    def __init__(
        self,
        node: NodeId,
        folder: Path,
        map_bytes: int,
        directory: ClusterDirectory,
        ask_node: AskNode,
        lease: Callable[[], int],
        is_linked: IsLinked = lambda _: True,
    ) -> None:
        self._node = node
        self._folder = folder
        self._map_bytes = map_bytes
        self._directory = directory
        self._ask_node = ask_node
        self._is_linked = is_linked
        self._around = NodeAround(node, lease, self._address_of)
        self._addresses: dict[NodeId, str] = {}
        self._fronts: dict[str, BucketFront] = {}
        self._listings = 0  # Of the buckets, that have begun.
        self._front_end = DocumentFrontEnd(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[list[BucketRecord]] | None = None

    # -- Life ---------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()

        def call_soon(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        self.store: LmdbDocuments = open_documents(self._folder, call_soon, self._map_bytes)
        self._flusher = Flusher(self.store, self._around.later)
        self._hosted = HostedBuckets(self.store, self._flusher, self._around)
        self._partitions = self._hosted.buckets
        await self._front_end.start(host, port)
        self.address = self._front_end.address

    def run(self, begin: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """After the node has joined its cluster.  `begin` keeps I3; whoever began something ends
        it before `close`."""
        upkeep = Upkeep(self._partitions, self._fronts, self.store, self._flusher, self._around)
        begin(self._follow())
        begin(upkeep.run())

    async def close(self) -> None:
        """In order: masters that come back find their rows clean."""
        tasks: set[asyncio.Task[Any]] = {*self._tasks}
        if self._reading is not None:
            tasks.add(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._front_end.close()
        closed = [self._close_bucket(bucket) for bucket in self._partitions.values()]
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*closed)
        except TimeoutError:
            logger.error("documents.not_flushed", extra={"fields": {"node": self._node}})
        self.store.close()

    async def _close_bucket(self, bucket: BucketPartitions) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bucket.close(lambda: done.set_result(None) if not done.done() else None)
        await done

    # -- The map ------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Know the buckets and the addresses; load what is on disk when both are known."""
        while True:
            try:
                records = await self._read_records()
            except MillraceError as error:
                logger.info("documents.waiting", extra={"fields": {"detail": str(error)}})
            else:
                if not self._hosted.is_warm:
                    await self._warm(records)  # Keeps I3: what the disk says is not waited for.
            await asyncio.sleep(FOLLOW_S)

    async def _read_map(self) -> None:
        """For whoever finds that it is old; however many do, it is read once at a time."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_records())
        with contextlib.suppress(MillraceError):  # The old one must do.
            await asyncio.shield(self._reading)

    async def _read_records(self) -> list[BucketRecord]:
        view = await self._directory.view()
        self._addresses = {node.id: node.documents for node in view.nodes if node.documents}
        self._listings += 1
        listing = self._listings
        records = await self._directory.buckets()
        self._take_records(records, listing)
        return records

    def _take_records(self, records: list[BucketRecord], listing: int) -> None:
        """Keeps I4.  Listings are counted as they begin."""
        for record in records:
            front = self._fronts.get(record.name)
            if front is None or listing > front.listings or _is_newer(record, front.record):
                self._take_record(record)
        for name in self._fronts.keys() - {record.name for record in records}:
            if listing > self._fronts[name].listings:
                del self._fronts[name]
        self._find_here()

    def _take_record(self, record: BucketRecord) -> None:
        front = self._fronts.get(record.name)
        if front is None or front.record.id != record.id:
            front = self._make_front(record)
        front.record = record
        front.listings = self._listings

    def _find_here(self) -> None:
        for front in self._fronts.values():
            front.here = self._partitions.get(front.record.id)

    def _make_front(self, record: BucketRecord) -> BucketFront:
        made = self._fronts[record.name] = BucketFront(
            record,
            self.store,
            self._around,
            self._ask_node,
            self._documents_at,
            self._read_map,
            self._is_linked,
        )
        made.listings = self._listings
        return made

    async def _warm(self, records: list[BucketRecord]) -> None:
        known = {record.id: record for record in records}
        for id in self.store.buckets():
            record = known.get(id)
            name, attributes = "", BucketAttributes()
            if record is not None:
                name, attributes = record.name, record.attributes
            bucket = self._hosted.make(id, name, attributes)
            loaded = await warm_up(bucket, self.store)
            fields = {"bucket": name, "documents": loaded}
            logger.info("documents.warm", extra={"fields": fields})
        self._hosted.is_warm = True
        self._find_here()

    def _address_of(self, node: NodeId) -> str:
        address = self._addresses.get(node)
        if address is None:
            raise NotConnected(f"the documents port of node {node} is not known")
        return address

    def _documents_at(self, node: NodeId) -> str:
        return self._addresses.get(node, "")

    # -- What other nodes and the keeper say --------------------------------------------------

    def handle(self, message: DocumentsRequest, answer: Answer) -> None:
        match message:
            case DescribeBuckets():
                answer(self._hosted.describe(message))
            case SetPartitions():
                self._order(message, answer)
            case CarryOut():
                self._carry_out(message, answer)
            case EmptyBucket():
                self._spawn(self._empty(message, answer))

    def _order(self, message: SetPartitions, answer: Answer) -> None:
        """Clients find the bucket as soon as the keeper has spoken of it; where its other
        partitions are is read at once."""
        self._hosted.order(message, answer)
        here = self._partitions.get(message.bucket)
        front = self._front_of(message.bucket)
        if front is None and here is not None and self._is_news(message):
            nobody = Seat(0, NO_FAILOVER_ID)
            seats = (nobody,) * here.attributes.partitions
            record = BucketRecord(here.id, message.name, here.attributes, seats, 0)
            front = self._make_front(record)
            self._spawn(self._read_map())
        if front is not None:
            front.here = here

    def _is_news(self, message: SetPartitions) -> bool:
        """Keeps I4.  Without a name the bucket is no more."""
        known = self._fronts.get(message.name)
        return bool(message.name) and (known is None or known.record.id < message.bucket)

    def _carry_out(self, message: CarryOut, answer: Answer) -> None:
        front = self._front_of(message.bucket)
        if front is None:
            self._spawn(self._carry_out_later(message, answer))
        else:
            self._carry_out_at(front, message, answer)

    async def _carry_out_later(self, message: CarryOut, answer: Answer) -> None:
        """Whoever passed it on has heard of the bucket before this node."""
        await self._read_map()
        front = self._front_of(message.bucket)
        if front is None:
            answer(CarriedOut(NOT_MY_PARTITION))
        else:
            self._carry_out_at(front, message, answer)

    def _carry_out_at(self, front: BucketFront, message: CarryOut, answer: Answer) -> None:
        outcome = carry_out(front, message.partition, message.command)
        if isinstance(outcome, Outcome):
            answer(CarriedOut(outcome))
        else:
            self._spawn(_carry_on(outcome, answer))

    async def _empty(self, order: EmptyBucket, answer: Answer) -> None:
        front = self._front_of(order.bucket)
        emptied = set() if front is None else await empty(front, order.marks)
        answer(BucketEmptied(tuple(sorted(emptied))))

    def _front_of(self, id: int) -> BucketFront | None:
        return next((each for each in self._fronts.values() if each.record.id == id), None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def failure(self) -> StoreFailed | None:
        """Why documents are not written, for good (the store's own) or for now."""
        return self.store.failure or self._flusher.failure

    @property
    def is_full(self) -> bool:
        return self._flusher.is_full or self.store.usage().is_full

    def readings(self) -> dict[str, float | dict[str, float]]:
        """For the node's metrics."""
        buckets = list(self._partitions.values())
        copies = [(bucket, copy) for bucket in buckets for copy in bucket.copies()]
        states = Counter(copy.state.value for _, copy in copies)
        return {
            "millrace_documents": sum(
                len(copy.table) for bucket, copy in copies if bucket.active(copy.number) is copy
            ),
            "millrace_document_partitions": {state: float(n) for state, n in states.items()},
            "millrace_document_memory_bytes": sum(bucket.memory_bytes for bucket in buckets),
            "millrace_document_queued_bytes": sum(bucket.queued_bytes for bucket in buckets),
            "millrace_document_flushes": self._flusher.flushes,
            "millrace_document_connections": self._front_end.counts.connections_now,
            "millrace_document_streams": sum(len(list(bucket.sessions)) for bucket in buckets),
        }

    # -- What the front end asks (`DocumentBackend`) ------------------------------------------

    @property
    def version(self) -> str:
        return f"millrace {millrace.__version__}"

    def bucket(self, name: str) -> BucketHost | None:
        return self._fronts.get(name)

    def bucket_names(self) -> list[str]:
        return sorted(self._fronts)

    def open_stream(self, bucket: str, outlet: StreamOutlet) -> StreamSession:
        return WireSession(self._find, bucket, self._around, outlet)

    def _find(self, name: str, id: int) -> BucketPartitions | None:
        """Keeps I4 for who does not say which bucket of the name is meant."""
        front = self._fronts.get(name)
        if not id and front is not None:
            id = front.record.id
        return self._hosted.find(name, id)


def _is_newer(record: BucketRecord, known: BucketRecord) -> bool:
    return (record.id, record.revision) > (known.id, known.revision)


async def _carry_on(outcome: Coroutine[Any, Any, Outcome], answer: Answer) -> None:
    answer(CarriedOut(await outcome))
