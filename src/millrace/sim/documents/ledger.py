"""The truth about a world's documents, and what is checked at every event.

**G11.**  A change whose wait ended well is held, at that moment, by a majority of the copies that
count: in memory, or on disk where the wait was for that; a copy that crashed since the change (for
disks: lost its disk) had it when it said so.  From then on no failover may lose it while a majority
of the copies still has it, in memory or on the disk of one that is down: whoever is promoted must
have it.  If crashes and lost disks have left it to fewer the wait was not for that, and the change
is excused; so are all when an operator gives the partition up.

"Has" is said by histories: a copy has a change if its complete seq reaches it in a history that
contains it (`histories.py`).  That documents are what histories say is checked at the end.
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.core.documents.document import (
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.messages import MutationToken
from millrace.core.documents.operations import (
    Command,
    DurabilityLevel,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.seats import copies_counted, majority, voters
from millrace.server.partitions.held import HeldPartition
from millrace.sim.documents.histories import Change, Histories, check_forward, compare
from millrace.sim.violation import Violation
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.follower import Follower
    from millrace.sim.documents.node import DocumentsNode
    from millrace.sim.documents.world import DocumentsWorld

READ_BYTES = 1 << 20


class _Watched:
    """A partition object of one life of a node, as it was seen last."""

    def __init__(self, node: "DocumentsNode", held: HeldPartition) -> None:
        self.node = node
        self.life = node.life
        self.held = held
        self.id = FailoverId(0)  # Under which it leads; 0: it does not.
        self.high = held.partition.high
        self.undo = held.partition.undo
        self.purged = held.partition.purged
        self.log = held.partition.log


class Durable(msgspec.Struct):
    change: Change
    level: DurabilityLevel
    is_excused: bool = False


class DocumentsLedger:
    def __init__(self, world: "DocumentsWorld") -> None:
        self._world = world
        self.histories = Histories()
        self.record: BucketRecord | None = None
        self.durable: dict[PartitionId, list[Durable]] = {}
        self._watched: dict[int, _Watched] = {}
        self._crashed_us: dict[NodeId, int] = {}
        self._wiped_us: dict[NodeId, int] = {}

    # -- Partitions -----------------------------------------------------------------------------

    def observe(self, node: "DocumentsNode") -> None:
        """Whatever it holds by now is watched."""
        bucket = node.bucket
        for held in bucket.held.values() if bucket is not None else ():
            if id(held.partition) not in self._watched:
                watched = self._watched[id(held.partition)] = _Watched(node, held)
                held.partition.on_change.append(partial(self._changed, watched))
                self._changed(watched)

    def _changed(self, watched: _Watched) -> None:
        partition = watched.held.partition
        self._count_states(watched, partition)
        is_master = partition.state is PartitionState.ACTIVE and watched.held.is_ordered
        if not is_master:
            watched.id = FailoverId(0)
        elif watched.id != partition.log.newest:
            self._leads(watched, partition)
        elif partition.high > watched.high:
            self._take_changes(watched, partition)
        watched.high = partition.high

    def _count_states(self, watched: _Watched, partition: Partition) -> None:
        count = self._world.count
        if partition.undo is not None:
            if partition.undo != watched.undo:
                count("undo.begun" if partition.undo else "undo.to_zero")
            self._world.nemesis.saw_undo(watched.node, partition.number)
        elif watched.undo is not None and partition.high > partition.seen:
            count("undo.fetched_ahead")
            self._world.nemesis.saw_fetched(partition.number)
        if partition.purged > watched.purged:
            count("purge.raised")
        watched.undo, watched.purged = partition.undo, partition.purged
        if partition.log != watched.log:
            check_forward(f"node {watched.node.node}", watched.log, partition.log)
            watched.log = partition.log

    def _leads(self, watched: _Watched, partition: Partition) -> None:
        watched.id = partition.log.newest
        entry = partition.log.entries[0]
        carried = self._above(watched.node, partition.number, entry.seq)
        if carried and self.histories.of(partition.number, entry.id) is None:
            self._world.count("promoted.in_a_snapshot")
        master = watched.node.number, watched.life
        log, number = partition.log, partition.number
        buried = self._buried(partition)
        self.histories.begun(number, log, partition.high, master, carried, buried)
        self._check_documents(watched.node, partition, partition.high)

    def look_around(self, number: int) -> None:
        """Whoever holds a whole snapshot holds what its history says (G10)."""
        for node in self._world.nodes:
            partition = node.partition(PartitionId(number)) if node.is_warm else None
            if partition is not None and partition.is_whole and partition.log.entries:
                self._check_documents(node, partition, partition.complete)
        for follower in self._world.followers:
            if follower.is_up and follower.followed[number].is_whole:
                self._check_follower(follower, number)

    def _check_documents(self, node: "DocumentsNode", partition: Partition, high: Seq) -> None:
        truth = self.histories.documents(partition.number, partition.log.newest, high)
        live = {key: found for key, found in partition.table.items() if not found.kind}
        compare(f"node {node.node}, partition {partition.number}", live, truth)

    def _check_follower(self, follower: "Follower", number: int) -> None:
        backing = follower.followed[number].backing
        if backing.log.entries:
            newest, high = backing.log.newest, backing.snapshot
            truth = self.histories.documents(PartitionId(number), newest, high)
            found = follower.disks[number].documents
            compare(f"{follower.name}, partition {number}", found, truth)

    def _buried(self, partition: Partition) -> dict[bytes, Seq]:
        """Deletions beyond the entry that it knows by their absence alone."""
        entries = partition.log.entries
        if partition.purged <= entries[0].seq or len(entries) < 2:
            return {}
        number, before = partition.number, entries[1].id
        expected = self.histories.documents(number, before, entries[0].seq)
        return {key: partition.purged for key in expected if partition.peek(key) is None}

    def _above(self, node: "DocumentsNode", number: PartitionId, seq: Seq) -> list[Document]:
        bucket = node.bucket
        assert bucket is not None
        view = bucket.open_view(number, seq)
        found: list[Document] = []
        while documents := view.read(found[-1].seq if found else seq, READ_BYTES):
            found += documents
        view.close()
        return found

    def _take_changes(self, watched: _Watched, partition: Partition) -> None:
        number, newest = partition.number, partition.log.newest
        if self.record is not None and self.record.seat(number).id != newest:
            self._world.count("stale_master.change")
        master = watched.node.number, watched.life
        now_us = self._world.schedule.now_us
        for seq in range(watched.high + 1, partition.high + 1):
            document = partition.queue.get(Seq(seq))
            if document is not None:
                self.histories.changed(number, newest, document, master, now_us)
                if document.kind is ChangeKind.EXPIRATION:
                    self._world.count("document.expired")

    # -- Commands -------------------------------------------------------------------------------

    def carried_out(
        self, node: "DocumentsNode", number: PartitionId, command: Command, outcome: Outcome
    ) -> None:
        """A master reads what it has written, and serves only while nobody else is the master."""
        partition = node.partition(number)
        is_answer = outcome.status in (OperationStatus.OK, OperationStatus.NOT_FOUND)
        if partition is None or not is_answer:
            return
        self._check_master(node, number)
        if command.verb is not Verb.GET:
            return
        history = self.histories.of(number, partition.log.newest)
        newest = history.newest.get(command.key) if history is not None else None
        if newest is None:
            return
        wanted = None if newest.is_deleted else newest
        if outcome.document != wanted:
            detail = f"node {node.node} reads {outcome.document}, and has written {newest}"
            raise Violation("read", detail)

    def _check_master(self, node: "DocumentsNode", number: PartitionId) -> None:
        """Unless it takes its lease for good, which nothing can be done about."""
        if node.is_lease_believed or self.record is None:
            return
        master = self.record.seat(number).active
        if master not in (node.node, NO_NODE):
            detail = f"node {node.node} serves partition {number}, whose master is node {master}"
            raise Violation("master", detail)

    def is_durable(self, node: "DocumentsNode", token: MutationToken, command: Command) -> None:
        """A wait ended well."""
        change = Change(token.partition, token.id, token.seq)
        bucket = node.bucket
        assert bucket is not None
        held = bucket.held[token.partition]
        copies = 1 + max(bucket.attributes.replicas, len(held.replicas))
        holders = [
            each for each in (node.node, *held.replicas) if self._had(each, change, command.level)
        ]
        if len(holders) < majority(copies):
            detail = f"{change} is said to be safe ({command.level.name}), but only {holders} of "
            raise Violation("G11", f"{detail}{copies} copies have it")
        self._world.count(f"durable.{command.level.name.lower()}")
        self.durable.setdefault(token.partition, []).append(Durable(change, command.level))

    def _had(self, number: NodeId, change: Change, level: DurabilityLevel) -> bool:
        history = self.histories.of(change.partition, change.id)
        assert history is not None
        made_us = history.made_us[change.seq]
        if level is DurabilityLevel.PERSIST_TO_MAJORITY:
            has_lost = self._wiped_us.get(number, -1) >= made_us
            return has_lost or self._has_on_disk(number, change)
        has_lost = self._crashed_us.get(number, -1) >= made_us
        return has_lost or self.has(number, change)

    # -- Who has what ---------------------------------------------------------------------------

    def has(self, number: NodeId, change: Change) -> bool:
        """In memory, or on disk if the node is down."""
        node = self._world.node(number)
        if not node.is_warm:
            return self._has_on_disk(number, change)
        partition = node.partition(change.partition)
        if partition is None:
            return False
        newest, complete = partition.log.newest, partition.complete
        return self.histories.has(change.partition, newest, complete, change)

    def _has_on_disk(self, number: NodeId, change: Change) -> bool:
        disk = self._world.node(number).disk
        stored = disk.partitions.get((self._world.record.id, change.partition))
        if stored is None:
            return False
        row = stored.row
        return self.histories.has(change.partition, row.log.newest, row.complete, change)

    # -- Masters --------------------------------------------------------------------------------

    def record_set(self, record: BucketRecord) -> None:
        before, self.record = self.record, record
        if before is None:
            return
        for at, (old, new) in enumerate(zip(before.seats, record.seats, strict=True)):
            if new.term <= old.term and new != old:
                raise Violation("seat", f"partition {at}: the term of {new} is not above {old}")
            if new.id != old.id and new.active != NO_NODE:
                self._promoted(PartitionId(at), old, new)
            if new.deposed not in (NO_NODE, old.deposed):
                node = self._world.node(new.deposed)
                self._world.nemesis.saw_deposition(PartitionId(at), node)

    def _was_wiped(self, number: NodeId, partition: PartitionId) -> bool:
        """After it had answered the keeper, which will notice, and choose again."""
        node = self._world.node(number)
        is_on_disk = (self._world.record.id, partition) in node.disk.partitions
        return not is_on_disk and node.partition(partition) is None

    def _promoted(self, number: PartitionId, old: Seat, new: Seat) -> None:
        self._world.count("promoted")
        self._world.nemesis.saw_promotion(self._world.node(new.active))
        if self._was_wiped(new.active, number):
            return
        needed = majority(copies_counted(old, self._world.record.attributes))
        for durable in self.durable.get(number, ()):
            if durable.is_excused or self.has(new.active, durable.change):
                continue
            holders = [node for node in voters(old) if self.has(node, durable.change)]
            if len(holders) >= needed:
                detail = f"node {new.active} is promoted without {durable.change}"
                raise Violation("G11", f"{detail}, which {holders} have")
            durable.is_excused = True
            self._world.count("durable.excused")

    def is_given_up(self, number: PartitionId) -> None:
        """An operator forces a failover."""
        for durable in self.durable.get(number, ()):
            durable.is_excused = True

    def loses_memory(self, node: "DocumentsNode") -> None:
        self._crashed_us[node.node] = self._world.schedule.now_us
        for key in [key for key, watched in self._watched.items() if watched.node is node]:
            self._watched[key].held.partition.on_change.clear()

    def loses_disk(self, node: "DocumentsNode") -> None:
        self._crashed_us[node.node] = self._wiped_us[node.node] = self._world.schedule.now_us
