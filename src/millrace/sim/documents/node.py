"""A simulated node that holds partitions: the node's own code on a virtual disk and network.

What is not simulated but real: `BucketPartitions` with its flusher, followers, sessions and waits,
`HostedBuckets`, `Upkeep`, `BucketFront` and `carry_out`, the frames of change streams.  What stands
in for `NodeDocuments` is how a life begins and ends, and how commands reach it.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import AMBIGUOUS, Command, DurabilityLevel, Outcome
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import WaitOutcome
from millrace.core.messages import (
    Message,
    MetaEntry,
    MetaGet,
    MetaGrant,
    MetaKeepAlive,
    MetaLease,
    MetaSet,
    Refused,
)
from millrace.core.messages.documents import CarriedOut, CarryOut, DescribeBuckets, SetPartitions
from millrace.core.procedure import Answer, Failure, ReadBucket
from millrace.meta.keys import LIVE, LiveNode
from millrace.server.documents.carrying_out import CONDITIONS, carry_out
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.front import BucketFront
from millrace.server.partitions.held import NO_LEASE
from millrace.server.partitions.hosting import HostedBuckets
from millrace.server.partitions.upkeep import Upkeep
from millrace.server.partitions.warming import warm_up
from millrace.server.partitions.wire import WireSession
from millrace.sim.documents.around import SimAround
from millrace.sim.documents.disk import DocumentDisk, SimDocuments
from millrace.sim.documents.lines import AcceptedLine, LineProcess
from millrace.sim.driver import Driver
from millrace.sim.metadata import METADATA_NUMBER
from millrace.sim.network import Connection
from millrace.sim.schedule import MS
from millrace.types import NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.world import DocumentsWorld

BOOT_US = 20 * MS
FOLLOW_MAP_US = 300 * MS
UNDER_WAY_MAX = 4  # Writes that a crash may find under way.


class DocumentsNode(LineProcess):
    def __init__(self, world: "DocumentsWorld", node: NodeId) -> None:
        super().__init__(world, node, f"n{node}")
        self.node = node
        self.disk = DocumentDisk()
        self.slow_us = 0
        self.waits_open = 0
        self.is_lease_believed = False  # It takes its lease for good, whatever the repository says.
        self._lease_believed = NO_LEASE
        self.store: SimDocuments
        self.hosted: HostedBuckets
        self.known: BucketRecord  # The map as it was read last.
        self._around: SimAround
        self._driver: Driver
        self._flusher: Flusher
        self._front: BucketFront
        self._upkeep: Upkeep
        self._is_stopping = False
        self._lease = NO_LEASE
        self._lease_until_us = 0

    # -- Life ---------------------------------------------------------------------------------

    def on_start(self) -> None:
        super().on_start()
        world = self.world
        self.store = SimDocuments(self.later, self.disk, world.shape.disk_us + self.slow_us)
        self._around = SimAround(self)
        self._driver = Driver(self)
        self._flusher = Flusher(self.store, self._around.later)
        self.hosted = HostedBuckets(self.store, self._flusher, self._around)
        self._front = BucketFront(
            world.record, self.store, self._around, _nobody_is_asked, lambda node: ""
        )
        fronts = {world.record.name: self._front}
        buckets = self.hosted.buckets
        self._upkeep = Upkeep(buckets, fronts, self.store, self._flusher, self._around)
        self.waits_open = 0
        self._is_stopping = False
        self._lease = NO_LEASE
        self._lease_until_us = 0
        self.is_lease_believed = False
        self.known = world.first_record
        self._hold_lease()
        self._follow_map()
        self.later(int(self.rng.random() * BOOT_US), self._load)

    def _follow_map(self) -> None:
        def read(found: tuple[BucketRecord | None, int] | Failure) -> None:
            if not isinstance(found, Failure) and found[0] is not None:
                self.known = found[0]

        self._driver.perform(ReadBucket(self.world.record.name), read)
        self.later(FOLLOW_MAP_US, self._follow_map)

    def _load(self) -> None:
        """The front end is told of the map, and the disk is read."""
        for id in self.store.buckets():
            bucket = self.hosted.make(id, self.world.record.name, self.world.record.attributes)
            self._go_on(warm_up(bucket, self.store))
            return
        self._loaded()

    def _go_on(self, loading: Coroutine[Any, Any, int]) -> None:
        """It yields after each bite."""
        try:
            loading.send(None)
        except StopIteration:
            self._loaded()
        else:
            self.later(100, self._go_on, loading)

    def _loaded(self) -> None:
        self.hosted.is_warm = True
        self.trace("is warm")
        self.world.ledger.observe(self)
        self._look_after()

    def _look_after(self) -> None:
        self._front.here = self.bucket
        self._upkeep.look()
        self.later(self.world.shape.upkeep_ms * MS, self._look_after)

    def on_crash(self) -> None:
        self.world.ledger.loses_memory(self)
        self.store.crash(self.rng.randrange(UNDER_WAY_MAX))

    def stop(self) -> None:
        """In order; it is down when all is on disk."""
        self._is_stopping = True
        bucket = self.bucket
        if bucket is None:
            self.crash()
        else:
            self.trace("stops")
            bucket.close(self._closed)

    def start_again(self) -> None:
        """Whoever takes too long to stop is killed."""
        if self.is_up and self._is_stopping:
            self.crash()
        if not self.is_up:
            self.start()

    def _closed(self) -> None:
        """After the event that wrote the last row."""
        self.later(0, self._stopped)

    def _stopped(self) -> None:
        self.world.count("node.stopped_in_order")
        self.crash()

    def wipe(self) -> None:
        assert not self.is_up
        self.trace("lost its disk")
        self.disk.partitions.clear()
        self.world.ledger.loses_disk(self)

    @property
    def bucket(self) -> BucketPartitions | None:
        return self.hosted.buckets.get(self.world.record.id)

    @property
    def is_warm(self) -> bool:
        """It is up, and has read its disk."""
        return self.is_up and self.hosted.is_warm

    def partition(self, number: PartitionId) -> Partition | None:
        """As it is in memory, None if this node is down or has none."""
        bucket = self.bucket if self.is_up else None
        return None if bucket is None else bucket.copy(number)

    # -- Being asked --------------------------------------------------------------------------

    def asked(self, connection: Connection, request: int, message: Message) -> None:
        def answer(said: Message) -> None:
            self.world.network.send(connection, self, said, request, True)

        match message:
            case DescribeBuckets():
                answer(self.hosted.describe(message))
            case SetPartitions():
                self.hosted.order(message, answer)
                self._front.here = self.bucket
                self.world.ledger.observe(self)
            case CarryOut(_, number, command):
                self._carry_out(number, command, lambda outcome: answer(CarriedOut(outcome)))

    def _carry_out(
        self, number: PartitionId, command: Command, done: Callable[[Outcome], None]
    ) -> None:
        """Durability is waited for as `carrying_out` does, without its event loop."""
        at_once = msgspec.structs.replace(command, level=DurabilityLevel.NONE)
        outcome = carry_out(self._front, number, at_once)
        assert isinstance(outcome, Outcome)
        ledger = self.world.ledger
        ledger.carried_out(self, number, command, outcome)
        bucket = self.bucket
        if not command.level or not outcome.id or bucket is None:
            done(outcome)
            return
        document = outcome.document
        assert document is not None
        token = MutationToken(number, FailoverId(outcome.id), document.seq, document.cas)
        ended = partial(self._waited, token, command, outcome, done)
        self.waits_open += 1
        bucket.wait(token, CONDITIONS[command.level], command.timeout_ms, ended)

    def _waited(
        self,
        token: MutationToken,
        command: Command,
        outcome: Outcome,
        done: Callable[[Outcome], None],
        ended: WaitOutcome,
    ) -> None:
        self.world.count(f"wait.{ended.value}")
        self.waits_open -= 1
        if ended is WaitOutcome.OK:
            self.world.ledger.is_durable(self, token, command)
        done(outcome if ended is WaitOutcome.OK else AMBIGUOUS)

    # -- Streams ------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> AcceptedLine:
        def open_session(line: AcceptedLine) -> WireSession:
            return WireSession(self.hosted.find, "", self._around, line)

        return AcceptedLine(self, connection, open_session)

    # -- Lease --------------------------------------------------------------------------------

    @property
    def lease(self) -> int:
        if self.is_lease_believed:
            return self._lease_believed
        return self._lease if self.world.schedule.now_us < self._lease_until_us else NO_LEASE

    def believe(self, is_believed: bool) -> None:
        self._lease_believed = self._lease
        self.is_lease_believed = is_believed and self._lease != NO_LEASE

    def _hold_lease(self) -> None:
        """A lease counts from when it was asked for: the repository grants it later."""
        ttl_ms = self.world.shape.lease_ms
        again_ms = ttl_ms // 3
        until_us = self.world.schedule.now_us + ttl_ms * MS
        if self._lease:
            kept = partial(self._kept, until_us)
            self.ask(METADATA_NUMBER, MetaKeepAlive(self._lease), again_ms, kept)
        else:
            granted = partial(self._granted, until_us)
            self.ask(METADATA_NUMBER, MetaGrant(ttl_ms), again_ms, granted)
        self.later(again_ms * MS, self._hold_lease)

    def _kept(self, until_us: int, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self.world.count("lease.expired")
            self._lease = NO_LEASE
        elif isinstance(answer, Message):
            self._lease_until_us = max(self._lease_until_us, until_us)
            self.ask(METADATA_NUMBER, MetaGet(LIVE.key(self.node)), 0, self._saw_myself)

    def _saw_myself(self, answer: Answer) -> None:
        """An announcement that was given up for lost may arrive after a later one, and take the
        key with it when its own lease ends."""
        if isinstance(answer, MetaEntry) and answer.lease != self._lease:
            self._lease = NO_LEASE

    def _granted(self, until_us: int, answer: Answer) -> None:
        if isinstance(answer, MetaLease):
            value = LIVE.encode(LiveNode(self.node, str(self.life)))
            alive = MetaSet(LIVE.key(self.node), value, -1, answer.lease)
            announced = partial(self._announced, answer.lease, until_us)
            self.ask(METADATA_NUMBER, alive, 0, announced)

    def _announced(self, lease: int, until_us: int, answer: Answer) -> None:
        if isinstance(answer, MetaEntry):
            self._lease = lease
            self._lease_until_us = until_us


async def _nobody_is_asked(node: NodeId, message: Message, timeout_ms: int) -> Message:
    raise AssertionError("clients of the simulator know the map")
