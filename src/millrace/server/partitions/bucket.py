"""The partitions that this node holds of one bucket: what the keeper orders, what others stream.

I1  An order is carried out whole or not at all, only if it comes with the bucket's state CAS,
    and is answered when the rows are durable (R-Q).
I2  A master serves nobody before its row is durable, nor before an order has named it under the
    node's present lease: while it had none another may have become the master.  The state CAS
    changes with the lease, so that no order from before it counts.
I3  What changed within one event is looked at once, after it.
I4  Room is reckoned only for a bucket that is stirred: something was written, loaded or read from
    disk since, or an order came, or the last reckoning found changes that are not on disk or too
    much memory taken.  In any other it is as it was.
I5  What the disk does not give back stays there until an order makes the partition anew, or says
    that the bucket is no more; until then the bucket is here.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from millrace.core.documents.change_stream import view_of
from millrace.core.documents.document import Document, PartitionId, PartitionState, Seq
from millrace.core.documents.map import BucketAttributes
from millrace.core.documents.messages import MutationToken, SeqAck
from millrace.core.documents.partition import Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.documents.snapshot_walk import View
from millrace.core.documents.waits import WAIT_MS_DEFAULT, Durability, WaitOutcome
from millrace.core.messages import Message, Refusal, Refused
from millrace.core.messages.documents import (
    CasMismatch,
    HostedBucket,
    HostedPartition,
    PartitionOrder,
    PartitionsSet,
    SetPartitions,
)
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.following import Following
from millrace.server.partitions.held import NO_LEASE, HeldPartition, Waiter
from millrace.server.partitions.sessions import ProducerSession
from millrace.server.partitions.surroundings import Surroundings, Timer
from millrace.store.documents.contract import DocumentStore
from millrace.types import NO_NODE, NodeId

Answer = Callable[[Message], None]
REPLICA_NAME: Final = "replica"  # Of the connections that replicas follow with; ":<node>" follows.
WAITS_LOOK_MS: Final = 100
CAS_MAX: Final = (1 << 63) - 1
EVICT_SHARE: Final = 20  # When room is made, a twentieth of the memory more than needed.

_ACTIVE: Final = PartitionState.ACTIVE  # A name, for it is asked for with every request.

logger = logging.getLogger("millrace")


class BucketPartitions:
    def __init__(
        self,
        id: int,
        name: str,
        attributes: BucketAttributes,
        store: DocumentStore,
        flusher: Flusher,
        around: Surroundings,
    ) -> None:
        self.id = id
        self.name = name
        self.attributes = attributes
        self.cas = around.draw()
        self._lease = around.lease  # The last that it had.
        self.is_warm = False
        self.is_enabled = False  # The front end is on: an order came since the start.
        self.is_stirred = True  # Keeps I4.
        self.held: dict[PartitionId, HeldPartition] = {}
        self._isolated: set[PartitionId] = set()  # Damaged on disk.
        self._store = store
        self._flusher = flusher
        self._around = around
        self._following = Following(self, flusher, around)
        self._sessions: dict[ProducerSession, None] = {}  # In the order of coming.
        self._changed: set[PartitionId] = set()
        self._is_look_due = False
        self._waits_timer: Timer | None = None

    # -- Coming and going -----------------------------------------------------------------------

    def take(self, number: PartitionId, row: PartitionRow) -> HeldPartition:
        """A partition that the disk has; the caller loads its documents before `warmed`."""
        return self._hold(Partition(number, row), was_clean=row.is_clean)

    def load(self, number: PartitionId, documents: Sequence[Document], row: PartitionRow) -> None:
        """More of what the disk has of it.  Keeps I4."""
        self.held[number].partition.load(documents, row)
        self.is_stirred = True

    def isolate(self, number: PartitionId, why: str) -> None:
        """The disk does not give the partition back.  Keeps I5."""
        self.held.pop(number, None)
        self._isolated.add(number)
        fields = {"bucket": self.name, "partition": number, "detail": why}
        logger.error("partition.damaged", extra={"fields": fields})

    def warmed(self) -> None:
        self.is_warm = True

    @property
    def is_empty(self) -> bool:
        """Nothing of it is here, not even on disk."""
        return not self.held and not self._isolated

    def _make(self, number: PartitionId, term: int) -> HeldPartition:
        if number in self._isolated:
            self._drop_isolated(number)
        return self._hold(Partition(number, PartitionRow(created=term)))

    def _hold(self, partition: Partition, *, was_clean: bool = False) -> HeldPartition:
        held = HeldPartition(partition, was_clean=was_clean)
        self.held[partition.number] = held
        partition.on_change.append(partial(self._note_change, partition.number))
        return held

    def close(self, done: Callable[[], None]) -> None:
        """A shutdown in order: follow nobody, stream nothing, obey nobody, leave clean rows."""
        self.is_enabled = self.is_warm = False
        self._following.close()
        for session in list(self._sessions):
            session.closed()
        waiting = len(self.held)
        if not waiting:
            done()
            return

        def one_less() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                done()

        for held in self.held.values():
            held.is_settled = False
            held.partition.is_clean = held.is_ordered or held.was_clean
            self._flusher.durable(self.id, held.partition, one_less)

    def drop(self) -> None:
        """Nothing of the bucket is wanted here any more."""
        for number in list(self.held):
            self._drop(number)
        for number in list(self._isolated):
            self._drop_isolated(number)
        self._following.close()
        for session in list(self._sessions):
            session.close()

    # -- Orders ---------------------------------------------------------------------------------

    def describe(self, partitions: Sequence[PartitionId] = ()) -> HostedBucket:
        chosen = partitions or sorted(self.held)
        lease = self._around.lease
        told = tuple(self.held[number].describe(lease) for number in chosen if number in self.held)
        return self.summarize(told)

    def summarize(self, told: tuple[HostedPartition, ...] = ()) -> HostedBucket:
        self._look_at_lease()
        documents = sum(
            len(each.partition.table)
            for each in self.held.values()
            if each.partition.state is PartitionState.ACTIVE
        )
        return HostedBucket(
            self.id,
            self.cas,
            self.is_warm,
            self.is_enabled,
            told,
            documents,
            self.memory_bytes,
            self.queued_bytes,
        )

    def _look_at_lease(self) -> None:
        """Keeps I2."""
        lease = self._around.lease
        if lease not in (self._lease, NO_LEASE):
            self._lease, self.cas = lease, self.cas % CAS_MAX + 1

    def order(self, message: SetPartitions, answer: Answer) -> None:
        self._look_at_lease()
        refused = self._check(message)
        if refused is not None:
            answer(refused)
            return
        self.attributes = message.attributes
        self.is_stirred = True
        self.cas = cas = self._around.draw()
        self.is_enabled = True
        if not message.name:  # Keeps I5.
            for number in list(self._isolated):
                self._drop_isolated(number)
        waiting = len(message.orders)
        if not waiting:
            answer(PartitionsSet(cas))
            return

        def one_less() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                answer(PartitionsSet(cas))

        for order in message.orders:
            self._obey(order, one_less)

    def _check(self, message: SetPartitions) -> CasMismatch | Refused | None:
        """Keeps I1."""
        if not self.is_warm:
            detail = f"bucket {self.name!r} is being loaded, or the node is stopping"
            return Refused(Refusal.NOT_READY, detail=detail)
        if message.cas != self.cas:
            return CasMismatch(self.cas)
        for order in message.orders:
            held = self.held.get(order.number)
            if held is None:
                continue
            found = held.partition
            if order.term < found.term:
                detail = f"partition {order.number} is at term {found.term}"
                return Refused(Refusal.EPOCH, detail=detail)
            if order.state is PartitionState.ACTIVE and not order.is_dropped:
                why = _why_not_master(found, order)
                if why:
                    detail = f"partition {order.number}: {why}"
                    return Refused(Refusal.CONFLICT, detail=detail)
        return None

    def _obey(self, order: PartitionOrder, done: Callable[[], None]) -> None:
        if order.is_dropped:
            self._drop(order.number)
            done()
            return
        held = self.held.get(order.number) or self._make(order.number, order.term)
        held.is_settled = False
        held.is_ordered = True
        held.lease = self._around.lease
        held.was_clean = False
        held.partition.is_clean = False
        self._become(held.partition, order)
        held.master = order.master
        held.replicas = order.replicas
        held.copies = order.copies
        held.waits.keep_replicas(order.replicas)
        self._recall(order.number)
        self._follow(held)

        def settled() -> None:
            if held.partition.term == order.term:  # Not overtaken by another order.
                held.is_settled = True
            done()

        self._flusher.durable(self.id, held.partition, settled)

    def _become(self, partition: Partition, order: PartitionOrder) -> None:
        if order.state is not PartitionState.ACTIVE:
            partition.set_state(order.state, order.term)
        elif partition.state is PartitionState.ACTIVE and partition.log.newest == order.id:
            partition.set_state(PartitionState.ACTIVE, order.term)
        else:
            partition.promote(order.term, order.id, order.is_takeover)

    def _follow(self, held: HeldPartition) -> None:
        is_follower = held.partition.state in (PartitionState.REPLICA, PartitionState.PENDING)
        master = held.master if is_follower else NO_NODE
        self._following.follow(held.partition, master)

    def _drop(self, number: PartitionId) -> None:
        held = self.held.pop(number, None)
        self._flusher.forget(self.id, number)
        if held is not None:
            self._following.follow(held.partition, NO_NODE)
            held.partition.set_state(PartitionState.DEAD, held.partition.term)
            self._look_at_waits(held)
            held.partition.on_change.clear()
            self._tell_sessions(number)
            self._store.drop(self.id, number, lambda failure: None)

    def _drop_isolated(self, number: PartitionId) -> None:
        self._isolated.discard(number)
        self._store.drop(self.id, number, lambda failure: None)

    # -- Serving --------------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Keeps I2, for all of them."""
        return self.is_warm and self.is_enabled and self._around.lease != NO_LEASE

    def active(self, number: PartitionId) -> Partition | None:
        """If this node is its master.  One whose lease is over still is, for all that it knows:
        whoever serves asks for `is_serving`, too."""
        held = self.held.get(number)
        if held is None or not held.is_settled:
            return None
        lease = self._around.lease
        if lease != held.lease and lease != NO_LEASE:  # Keeps I2.
            return None
        return held.partition if held.partition.state is _ACTIVE else None

    def copy(self, number: PartitionId) -> Partition | None:
        held = self.held.get(number)
        return None if held is None else held.partition

    def copies(self) -> Iterator[Partition]:
        for number in sorted(self.held):
            yield self.held[number].partition

    def restore(self, number: PartitionId, document: Document) -> None:
        """A value was read from disk."""
        held = self.held.get(number)
        if held is not None:
            held.partition.restore(document)
            self.is_stirred = True

    # -- What a producer needs (`ChangeSource`) -------------------------------------------------

    def partition(self, number: PartitionId) -> Partition | None:
        """One that may be streamed: it knows by order what it is."""
        held = self.held.get(number)
        return held.partition if held is not None and held.is_ordered else None

    def open_view(self, number: PartitionId, after: Seq) -> View:
        partition = self.held[number].partition
        return view_of(partition, after, lambda: self._store.view(self.id, number))

    def newest(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        table = self.held[number].partition.table
        found: list[Document] = []
        missing: list[bytes] = []
        for key in keys:
            document = table.get(key)
            if document is not None and document.value is not None:
                found.append(document)
            else:
                missing.append(key)
        return found + self._store.get_many(self.id, number, missing) if missing else found

    # -- Streams --------------------------------------------------------------------------------

    def add_session(self, session: ProducerSession) -> None:
        self._sessions[session] = None

    def remove_session(self, session: ProducerSession) -> None:
        self._sessions.pop(session, None)

    @property
    def sessions(self) -> Iterable[ProducerSession]:
        return self._sessions

    def acknowledged(self, name: str, ack: SeqAck) -> None:
        """A replica says how far it is."""
        held = self.held.get(ack.partition)
        kind, _, node = name.partition(":")
        if held is None or kind != REPLICA_NAME or not node.isdigit():
            return
        if NodeId(int(node)) not in held.replicas:
            return  # One that is being made counts for nobody yet: `_recall` looks again.
        held.waits.replica_acked(NodeId(int(node)), ack.id, ack.complete, ack.persisted)
        self._note_change(ack.partition)

    def _recall(self, number: PartitionId) -> None:
        """What replicas said before they were counted: they say it once."""
        for session in self._sessions:
            ack = session.producer.acks.get(number)
            if ack is not None:
                self.acknowledged(session.name, ack)

    def _note_change(self, number: PartitionId) -> None:
        self.is_stirred = True
        self._changed.add(number)
        if not self._is_look_due:
            self._is_look_due = True
            self._around.later(0, self._look)

    def _look(self) -> None:
        """Keeps I3."""
        self._is_look_due = False
        changed, self._changed = self._changed, set()
        for number in changed:
            held = self.held.get(number)
            if held is not None:
                self._flusher.touch(self.id, held.partition)
                self._following.changed(number)
                if len(held.waits):
                    self._look_at_waits(held)
        for number in changed:
            self._tell_sessions(number)

    # -- Durability waits -----------------------------------------------------------------------

    def wait(self, token: MutationToken, condition: Durability, wait_ms: int, done: Waiter) -> None:
        """`done` is called once, never from inside this."""
        held = self.held.get(token.partition)
        deadline_ms = self._around.now_ms() + (wait_ms or WAIT_MS_DEFAULT)
        if held is None or not held.is_ordered:
            self._around.later(0, partial(done, WaitOutcome.NOT_MY_PARTITION))
        elif not held.waits.add(done, token.id, token.seq, condition, deadline_ms):
            self._around.later(0, partial(done, WaitOutcome.TIMED_OUT))
        else:
            self._note_change(token.partition)

    def _look_at_waits(self, held: HeldPartition) -> None:
        copies = held.copies or 1 + max(self.attributes.replicas, len(held.replicas))
        now_ms = self._around.now_ms()
        for done, outcome in held.waits.look(held.partition, copies, now_ms):
            done(outcome)
        if len(held.waits) and self._waits_timer is None:
            self._waits_timer = self._around.later(WAITS_LOOK_MS, self._look_at_all_waits)

    def _look_at_all_waits(self) -> None:
        """For those whose time is up."""
        self._waits_timer = None
        for held in list(self.held.values()):
            if len(held.waits):
                self._look_at_waits(held)

    # -- Room -----------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        return sum(held.partition.memory_bytes for held in self.held.values())

    @property
    def queued_bytes(self) -> int:
        return sum(held.partition.queue.size_bytes for held in self.held.values())

    def explain_following(self, number: PartitionId) -> str:
        return self._following.explain(number)

    def replica_bytes_queued(self) -> int:
        return sum(
            held.partition.queue.size_bytes
            for held in self.held.values()
            if held.partition.state is not PartitionState.ACTIVE
        )

    def make_room(self) -> None:
        """Values that are on disk leave memory, the same share of each partition.  Keeps I4."""
        if not self.is_stirred:
            return
        total_bytes = self.memory_bytes
        surplus_bytes = total_bytes - self.attributes.memory_bytes
        self.is_stirred = surplus_bytes > 0 or self.queued_bytes > 0
        if surplus_bytes <= 0:
            return
        spare_bytes = self.attributes.memory_bytes // EVICT_SHARE
        wanted_bytes = surplus_bytes + spare_bytes
        for held in self.held.values():
            partition = held.partition
            grown_bytes = partition.memory_bytes - held.kept_bytes
            if grown_bytes * len(self.held) <= spare_bytes:
                continue  # Looking for what can go costs a walk through all of its keys.
            part_bytes = int(wanted_bytes * partition.memory_bytes / total_bytes) + 1
            is_enough = partition.evict(part_bytes) >= part_bytes
            if is_enough:
                held.kept_bytes = 0
            else:  # What is queued may leave as soon as it is on disk.
                held.kept_bytes = partition.memory_bytes - partition.queue.size_bytes

    def _tell_sessions(self, number: PartitionId) -> None:
        for session in self._sessions:
            session.changed(number)


def _why_not_master(partition: Partition, order: PartitionOrder) -> str:
    """What stands in the way of a promotion; empty: nothing."""
    if partition.has_undo:
        return "its undo is not over"
    is_master = partition.state is PartitionState.ACTIVE
    if order.is_takeover and partition.log.newest == order.id and not is_master:
        return "" if partition.is_whole else "it is in the middle of a snapshot"
    if not order.is_takeover and partition.log.newest == order.id and not is_master:
        return "the failover id names the history before"
    return ""
