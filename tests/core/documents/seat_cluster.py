"""A cluster as the keeper sees it: nodes that hold copies of one bucket, and the repository.

Copies are lists of changes, each change a number of its own, so that it can be told what was lost.
Nodes keep the promises of `core/messages/documents.py`.  A procedure is played effect by effect, so
that anything may happen between two of them.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies
from millrace.core.documents.seats import majority, new_bucket
from millrace.core.documents.tending import Tended, Tending, tend
from millrace.core.documents.watching import BucketWatch, Surroundings
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.messages.documents import (
    NO_STATE_CAS,
    BucketsDescribed,
    CasMismatch,
    DescribeBuckets,
    HostedBucket,
    HostedPartition,
    PartitionOrder,
    PartitionsSet,
    SetPartitions,
)
from millrace.core.procedure import (
    Answer,
    Ask,
    AskAll,
    ClusterView,
    Failure,
    FailureKind,
    ListNodes,
    Note,
    Pause,
    Procedure,
    ReadBucket,
    ReplaceBucket,
)
from millrace.types import NO_NODE, NodeId

BUCKET = 7
NAME = "orders"
ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
PENDING, DEAD = PartitionState.PENDING, PartitionState.DEAD
SILENCE = Failure(FailureKind.TIMED_OUT, "it does not answer")


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


class Copy:
    """A partition on one node."""

    def __init__(self) -> None:
        self.state, self.term, self.log = DEAD, 0, NO_LOG
        self.changes: list[int] = []
        self.persisted = 0  # Of the changes.
        self.is_clean = self.is_ordered = self.has_undo = False
        self.master = NO_NODE
        self.replicas: tuple[NodeId, ...] = ()
        self.copies = 0
        self.acks: dict[NodeId, int] = {}  # What followers have, as their master knows.

    def take(self, order: PartitionOrder) -> None:
        if order.state is ACTIVE and not (order.is_takeover and order.id == self.log.newest):
            self.log = self.log.begin(order.id, Seq(len(self.changes)))
        if order.state is ACTIVE:
            self.acks = {}
            self.persisted = len(self.changes)
        self.state, self.term = order.state, order.term
        self.master, self.replicas, self.copies = order.master, order.replicas, order.copies
        self.is_ordered = True

    def follow(self, master: "Copy", changes_max: int) -> None:
        """Roll back to what both have, and take more."""
        pairs = zip(self.changes, master.changes, strict=False)
        common = next(
            (at for at, (mine, theirs) in enumerate(pairs) if mine != theirs),
            min(len(self.changes), len(master.changes)),
        )
        self.log = master.log
        self.changes = master.changes[: common + changes_max]
        self.persisted = len(self.changes)

    def describe(self, number: PartitionId) -> HostedPartition:
        high = Seq(len(self.changes))
        return HostedPartition(
            number,
            self.state,
            self.term,
            self.log,
            high,
            high,
            high,
            Seq(self.persisted),
            self.has_undo,
            self.is_clean,
            self.is_ordered,
            is_confirmed=self.is_ordered,
        )


class Node:
    def __init__(self, id: NodeId) -> None:
        self.id = id
        self.cas = NO_STATE_CAS
        self.copies: dict[PartitionId, Copy] = {}
        self.is_up = self.is_live = self.is_warm = True
        self.life = 1

    def answer(self, message: Message) -> Message:
        match message:
            case _ if not self.is_warm:
                return Refused(Refusal.NOT_READY)
            case DescribeBuckets(0):
                return BucketsDescribed((self._bucket(()),) if self.cas else ())
            case DescribeBuckets(_, partitions):
                numbers = [n for n in sorted(self.copies) if not partitions or n in partitions]
                return BucketsDescribed((self._bucket(numbers),) if self.cas else ())
            case SetPartitions():
                return self._order(message)
        raise AssertionError(message)

    def _bucket(self, numbers: Iterable[PartitionId]) -> HostedBucket:
        hosted = tuple(self.copies[number].describe(number) for number in numbers)
        return HostedBucket(BUCKET, self.cas, self.is_warm, True, hosted)

    def _order(self, message: SetPartitions) -> Message:
        if message.cas != self.cas:
            return CasMismatch(self.cas)
        for order in message.orders:
            held = self.copies.get(order.number)
            if held is not None and order.term < held.term:
                return Refused(Refusal.EPOCH)
            if held is not None and held.has_undo and order.state is ACTIVE:
                return Refused(Refusal.CONFLICT)
        for order in message.orders:
            if order.is_dropped:
                self.copies.pop(order.number, None)
            else:
                self.copies.setdefault(order.number, Copy()).take(order)
        self.cas += 1
        return PartitionsSet(self.cas)

    def restart(self, *, is_clean: bool, is_wiped: bool = False) -> None:
        """Without an orderly shutdown only what was on disk is left."""
        self.cas += 1_000
        if is_wiped:
            self.cas, self.copies = NO_STATE_CAS, {}
        for copy in self.copies.values():
            if not is_clean:
                del copy.changes[copy.persisted :]
            copy.persisted = len(copy.changes)
            copy.is_clean = is_clean and (copy.is_ordered or copy.is_clean)
            copy.is_ordered = False
            copy.master, copy.acks = NO_NODE, {}
        self.is_up = self.is_live = True
        self.life += 1

    def stop(self) -> None:
        """Its lease ends with it."""
        self.is_up = self.is_live = False


class SeatCluster:
    def __init__(self, wanted: Iterable[Copies], *, node_count: int = 3, replicas: int = 1) -> None:
        self.nodes = {NodeId(n): Node(NodeId(n)) for n in range(1, node_count + 1)}
        self.record = new_bucket(BUCKET, NAME, BucketAttributes(replicas=replicas), wanted, 0)
        self.version = 1
        self.watch = BucketWatch()
        self.now_ms = 0
        self.ids = (FailoverId(0xCAFE_0000 + n) for n in count(1))
        self.written = count(1)
        self.acknowledged: set[int] = set()
        self.notes: list[Note] = []
        self.history: list[BucketRecord] = [self.record]
        self.on_effect: Callable[[Any], None] = lambda effect: None
        self.is_undelivered: Callable[[Ask], bool] = lambda ask: False
        self.is_lost: Callable[[Ask], bool] = lambda ask: False  # Whose answers are.

    # -- What the keeper uses -----------------------------------------------------------------

    def ask(self, ask: Ask) -> Answer:
        node = self.nodes[ask.node]
        if not node.is_up or self.is_undelivered(ask):
            return Failure(FailureKind.CONNECT, f"node {ask.node} is not reached")
        answer = node.answer(ask.message)
        return SILENCE if self.is_lost(ask) else answer

    def perform(self, effect: Any) -> Any:
        self.on_effect(effect)
        match effect:
            case Ask():
                return self.ask(effect)
            case AskAll(asks):
                return [self.ask(each) for each in asks]
            case ReadBucket(name):
                assert name == NAME
                return self.record, self.version
            case ListNodes():
                return ClusterView((), self.around().live)
            case ReplaceBucket(record, expected):
                if expected != self.version:
                    return 0
                self.record, self.version = record, self.version + 1
                self.history.append(record)
                return self.version
            case Note():
                self.notes.append(effect)
                return None
            case Pause():
                self.replicate()
                return None
        raise AssertionError(effect)

    def play(self, procedure: Procedure[Any]) -> Any:
        answer: object = None
        while True:
            try:
                effect = procedure.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = self.perform(effect)

    def around(self) -> Surroundings:
        live = frozenset(id for id, node in self.nodes.items() if node.is_live)
        lives = {id: self.nodes[id].life for id in live}
        return Surroundings(live, live, lives=lives)

    def tending(self, **fields: Any) -> Tending:
        return Tending(self.watch, self.around(), self.ids, self.now_ms, self.watch.seats, **fields)

    def tend(self, *, after_ms: int = 0, **fields: Any) -> Tended:
        self.now_ms += after_ms
        tended = self.play(tend(NAME, self.tending(**fields)))
        assert isinstance(tended, Tended), tended
        return tended

    # -- What clients and streams do ----------------------------------------------------------

    def copies(self, number: int = 0) -> Iterator[tuple[NodeId, Copy]]:
        for id, node in self.nodes.items():
            if PartitionId(number) in node.copies:
                yield id, node.copies[PartitionId(number)]

    def copy(self, node: int, number: int = 0) -> Copy:
        return self.nodes[NodeId(node)].copies[PartitionId(number)]

    def seat(self, number: int = 0) -> Seat:
        return self.record.seats[number]

    def serving(self, number: int = 0) -> list[NodeId]:
        """Who takes writes of clients."""
        return [
            id
            for id, copy in self.copies(number)
            if copy.state is ACTIVE
            and copy.is_ordered
            and self.nodes[id].is_up
            and self.nodes[id].is_live
        ]

    def write(self, changes: int = 1, number: int = 0) -> None:
        for id in self.serving(number):
            self.copy(id, number).changes += [next(self.written) for _ in range(changes)]

    def flush(self) -> None:
        for node in self.nodes.values():
            for copy in node.copies.values():
                copy.persisted = len(copy.changes)

    def replicate(self, changes_max: int = 1_000_000) -> None:
        for id, node in self.nodes.items():
            for number in node.copies if node.is_up else ():
                self.stream(id, number, changes_max)

    def stream(self, follower: NodeId, number: PartitionId, changes_max: int) -> None:
        """From its master, who may have lost its lease: streams do not end with it."""
        copy = self.nodes[follower].copies[number]
        source = self.nodes.get(copy.master)
        if source is None or not source.is_up or number not in source.copies:
            return
        master = source.copies[number]
        is_sending = master.is_ordered and master.state in (ACTIVE, DEAD)
        if is_sending and copy.is_ordered and copy.state in (REPLICA, PENDING):
            copy.follow(master, changes_max)
            self._acknowledge(follower, copy, master)

    def _acknowledge(self, follower: NodeId, copy: Copy, master: Copy) -> None:
        if follower in master.replicas:
            master.acks[follower] = len(copy.changes)
        acks = [master.acks.get(node, 0) for node in master.replicas]
        held = sorted((master.persisted, *acks), reverse=True)
        needed = majority(master.copies)
        if len(held) >= needed and master.state is ACTIVE:
            self.acknowledged |= set(master.changes[: held[needed - 1]])

    def logs(self, number: int = 0) -> list[FailoverLog]:
        return [copy.log for _, copy in self.copies(number)]
