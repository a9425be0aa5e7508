"""Planted bugs in what documents and change streams run on."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millrace.core.documents import (
    change_stream,
    consumer,
    failing_over,
    moving,
    settling,
    watching,
)
from millrace.core.documents.barriers import Barriers
from millrace.core.documents.change_stream import ChangeStream
from millrace.core.documents.consumer_effects import PersistStep
from millrace.core.documents.document import (
    NO_SEQ,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.flushing import NO_DOCUMENTS, Flushing
from millrace.core.documents.messages import SeqAck
from millrace.core.documents.partition import Partition
from millrace.core.documents.replica import ReplicaBacking
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.rollback import (
    Place,
    Refuse,
    RefuseReason,
    Start,
    StartReason,
    find_start,
)
from millrace.core.documents.snapshot_walk import MergedView, View
from millrace.core.documents.undoing import Undoing
from millrace.core.procedure import ReplaceBucket
from millrace.server.partitions import bucket as bucket_module
from millrace.server.partitions import following
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.flusher import Flusher
from millrace.sim.driver import NESTED_US, Driver
from millrace.sim.planting import Nursery, Patch

CANARIES = Nursery()
canary = CANARIES.plant


# -- Where a client begins (U1) -----------------------------------------------------------------


@canary
def a_stale_master_is_followed(patch: Patch) -> None:
    """A client that knows a later master goes back to an earlier one."""

    def trusting(master: FailoverLog, client: Place, *rest: Any) -> Start | Refuse:
        found = find_start(master, client, *rest)
        if isinstance(found, Refuse) and found.reason is RefuseReason.STALE_MASTER:
            log = FailoverLog(client.log.entries[client.log.position_of(master.newest) or 0 :])
            return find_start(master, msgspec.structs.replace(client, log=log), *rest)
        return found

    patch(consumer, "find_start", trusting)


@canary
def the_larger_seq_is_the_start(patch: Patch) -> None:
    """Where histories part a client keeps all it has seen."""

    def eager(master: FailoverLog, client: Place, *rest: Any) -> Start | Refuse:
        found = find_start(master, client, *rest)
        is_branched = isinstance(found, Start) and found.reason is StartReason.BRANCHED
        return Start(client.seen, StartReason.BRANCHED, "eager") if is_branched else found

    patch(consumer, "find_start", eager)


@canary
def a_running_snapshot_always_counts(patch: Patch) -> None:
    """A client in the middle of a snapshot goes on, though the new master has only some of it."""

    def hopeful(master: FailoverLog, client: Place, *rest: Any) -> Start | Refuse:
        return find_start(master, msgspec.structs.replace(client, running=NO_SEQ), *rest)

    patch(consumer, "find_start", hopeful)


@canary
def strangers_are_trusted(patch: Patch) -> None:
    """Without any failover id in common a client goes on from where it is."""

    def trusting(master: FailoverLog, client: Place, *rest: Any) -> Start | Refuse:
        found = find_start(master, client, *rest)
        if isinstance(found, Start) and found.reason is StartReason.NO_COMMON_ID:
            return Start(client.seen, StartReason.NO_COMMON_ID, "trusting")
        return found

    patch(consumer, "find_start", trusting)


# -- Rolling back (U2) --------------------------------------------------------------------------


@canary
def promoted_in_the_middle_of_an_undo(patch: Patch) -> None:
    """Nobody asks whether an undo is over."""
    patch(Partition, "has_undo", property(lambda self: False))


@canary
def those_that_undo_are_passed_over(patch: Patch) -> None:
    """A copy in the middle of an undo is as good as none when a master is chosen."""
    best = failing_over._best

    def hasty(seat: Any, knowing: Any, is_short: bool, force: bool) -> Any:
        able = {node: each for node, each in knowing.items() if not each.has_undo}
        return best(seat, able or knowing, is_short, force)

    patch(failing_over, "_best", hasty)


@canary
def the_log_is_stored_before_the_undo(patch: Patch) -> None:
    """The master's failover log is durable with the intent, and the intent is not."""

    def begin(self: Any, start: Seq) -> Any:
        keys = self.backing.keys_above(start) if start else None
        if keys is None:
            start, keys = NO_SEQ, []
        self._undoing = Undoing(start, keys)
        self.backing.begin_undo(start)
        self._is_finished = False
        if isinstance(self.backing, ReplicaBacking):
            self.backing.partition.log = self._log
        else:
            self.backing.log = self._log
        return self._persist(consumer.ConsumerPhase.LOWERING, PersistStep.INTENT)

    row, state = Partition.row, RingBacking.state

    def forgetful(self: Partition) -> Any:
        return msgspec.structs.replace(row(self), undo=None)

    patch(consumer.PartitionConsumer, "_begin_undo", begin)
    patch(Partition, "row", forgetful)
    patch(RingBacking, "state", lambda self: msgspec.structs.replace(state(self), undo=None))


@canary
def an_undo_to_zero_keeps_what_was_there(patch: Patch) -> None:
    """Start 0 forgets nothing."""

    def wipe(self: Partition) -> None:
        self.high = self.purged = NO_SEQ

    patch(Partition, "wipe", wipe)
    patch(RingBacking, "wipe", lambda self: [])


@canary
def an_undo_forgets_no_key(patch: Patch) -> None:
    """What the master does not have stays."""
    undo = Partition.undo_documents
    undo_in_ring = RingBacking.undo_documents

    def partial(self: Partition, documents: Sequence[Document], missing: Sequence[bytes]) -> None:
        undo(self, documents, ())

    def partial_in_ring(self: RingBacking, documents: Any, missing: Any) -> Any:
        return undo_in_ring(self, documents, ())

    patch(Partition, "undo_documents", partial)
    patch(RingBacking, "undo_documents", partial_in_ring)


@canary
def the_ring_is_kept_after_the_state(patch: Patch) -> None:
    """Documents are processed before the ring buffer names them."""
    apply = RingBacking.apply

    def hasty(self: RingBacking, documents: Sequence[Document]) -> Any:
        return list(reversed(apply(self, documents)))

    patch(RingBacking, "apply", hasty)


@canary
def the_ring_forgets_what_was_fetched(patch: Patch) -> None:
    """What an undo fetched is in no ring buffer."""
    undo = RingBacking.undo_documents

    def forgetful(self: RingBacking, documents: Any, missing: Any) -> Any:
        effects = undo(self, documents, missing)
        self._fetched = []
        return effects

    patch(RingBacking, "undo_documents", forgetful)


@canary
def a_consumer_knows_of_all_deletions(patch: Patch) -> None:
    """Who begins below the purge seq believes that it could go back to there."""
    finish = RingBacking.finish_undo
    patch(RingBacking, "is_blind_to", lambda self, purged: False)
    patch(RingBacking, "finish_undo", lambda self, log, purged: finish(self, log, NO_SEQ))


@canary
def nothing_is_undone(patch: Patch) -> None:
    """A client takes its place back, and keeps what it had."""
    patch(ReplicaBacking, "keys_above", lambda self, start: [])
    patch(RingBacking, "keys_above", lambda self, start: [])


# -- Masters (U3) -------------------------------------------------------------------------------


@canary
def the_entry_is_at_the_high_seq(patch: Patch) -> None:
    """A master that had a part of a snapshot says that it had all of it."""
    promote = Partition.promote

    def boastful(self: Partition, term: int, id: FailoverId, is_takeover: bool) -> None:
        self.complete = self.seen = self.high
        promote(self, term, id, is_takeover)

    patch(Partition, "promote", boastful)


@canary
def seqs_go_on_from_what_was_seen(patch: Patch) -> None:
    """The next seq is one above the last that was streamed, whatever is stored beyond."""
    lead = Partition._lead

    def forgetful(self: Partition, term: int) -> None:
        self.high = self.seen
        lead(self, term)

    patch(Partition, "_lead", forgetful)


@canary
def an_unclean_restart_keeps_its_id(patch: Patch) -> None:
    """A master that lost its memory goes on as if it had not."""
    patch(watching, "is_doubtful", lambda *_: False)
    patch(settling, "is_doubtful", lambda *_: False)


@canary
def a_new_lease_is_as_good_as_the_old(patch: Patch) -> None:
    """A master that was taken for dead serves on as soon as it has a lease again."""

    def trusting(self: BucketPartitions, number: PartitionId) -> Partition | None:
        held = self.held.get(number)
        if held is None or not held.is_settled:
            return None
        return held.partition if held.partition.state is PartitionState.ACTIVE else None

    patch(BucketPartitions, "active", trusting)


@canary
def a_takeover_before_it_has_all(patch: Patch) -> None:
    """The new master leads under the old id, and lacks the last changes."""
    patch(moving, "_has_all", lambda last, target: True)


@canary
def failover_without_a_quorum(patch: Patch) -> None:
    """Whoever answers first becomes the master."""

    def hasty(seat: Any, copies: int, answers: Any, silent: Any = (), force: bool = False) -> Any:
        return failing_over.decide(seat, copies, answers, (), force=True)

    patch(watching, "decide", hasty)


@canary
def a_deposed_master_is_not_waited_for(patch: Patch) -> None:
    """An operator's failover is done while the master before serves its clients."""
    patch(watching, "_may_serve", lambda seat, around, hosted, copies: False)


@canary
def seats_are_written_without_comparing(patch: Patch) -> None:
    """Of two keepers the later one wins."""
    perform = Driver.perform

    def careless(self: Driver, effect: Any, resume: Any, left_us: int = NESTED_US) -> None:
        if isinstance(effect, ReplaceBucket):
            effect = msgspec.structs.replace(effect, expected=-1)
        perform(self, effect, resume, left_us)

    patch(Driver, "perform", careless)


@canary
def orders_of_earlier_terms_are_taken(patch: Patch) -> None:
    """A late order makes a node what it was."""
    check = BucketPartitions._check

    def careless(self: BucketPartitions, message: Any) -> Any:
        for order in message.orders:
            held = self.held.get(order.number)
            if held is not None:
                held.partition.term = min(held.partition.term, order.term)
        return check(self, msgspec.structs.replace(message, cas=self.cas))

    patch(BucketPartitions, "_check", careless)


# -- Waits --------------------------------------------------------------------------------------


@canary
def a_replica_acknowledges_seqs(patch: Patch) -> None:
    """What arrived counts, whether its snapshot is whole or not."""

    def eager(partition: Partition) -> SeqAck:
        seen = partition.seen
        return SeqAck(partition.number, partition.log.newest, seen, partition.persisted)

    patch(following, "ack_of", eager)


@canary
def a_replica_acknowledges_before_its_disk(patch: Patch) -> None:
    """What is in memory counts as persisted."""
    patch(Partition, "persisted_complete", property(lambda self: self.complete))


@canary
def a_flush_counts_when_it_begins(patch: Patch) -> None:
    """Documents leave the queue before they are durable."""
    take = Partition.take_flush

    def hasty(self: Partition) -> Any:
        flush = take(self)
        if flush is not None:
            self._flushing.row_on_disk = flush.row
            self.persisted = max(self.persisted, min(flush.row.seen, self.seen))
        return flush

    patch(Partition, "take_flush", hasty)


# -- Streams ------------------------------------------------------------------------------------


@canary
def every_change_ends_a_snapshot(patch: Patch) -> None:
    """A replica takes any seq for the end of a whole snapshot."""
    arrived = Partition._arrived

    def hasty(self: Partition, seq: Seq) -> None:
        arrived(self, seq)
        self.complete = self.running = seq

    patch(Partition, "_arrived", hasty)


@canary
def a_replica_streams_parts_of_snapshots(patch: Patch) -> None:
    """Whatever it has is shown as if it were whole."""
    patch(change_stream, "viewable", lambda partition: partition.high)


@canary
def the_queue_hides_the_disk(patch: Patch) -> None:
    """A view of a partition with a queue leaves out what was flushed before."""

    def short(partition: Partition, after: Seq, open_disk: Callable[[], Any]) -> View:
        root = partition.queue.snapshot()
        return MergedView(root, None if root.count else open_disk(), partition.high)

    patch(bucket_module, "view_of", short)


@canary
def the_disk_is_viewed_before_the_queue(patch: Patch) -> None:
    """What a flush wrote between the two is in neither."""
    begin = Flusher._begin
    seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def remember(self: Flusher) -> None:
        for bucket, number in self._changed:
            seen[bucket, number] = self._store, self._store.view(bucket, number)
        begin(self)

    def early(self: BucketPartitions, number: Any, after: Seq) -> View:
        store, view = seen.get((self.id, number), (None, None))
        if store is not self._store:
            view = self._store.view(self.id, number)
        return change_stream.view_of(self.held[number].partition, after, lambda: _Shared(view))

    patch(Flusher, "_begin", remember)
    patch(BucketPartitions, "open_view", early)


class _Shared:
    """Views of the canary above are taken once and read by many."""

    def __init__(self, view: Any) -> None:
        self.scan = view.scan

    def close(self) -> None: ...


@canary
def a_renewed_view_extends_nothing(patch: Patch) -> None:
    """A snapshot whose view was taken anew ends where it was to end before."""
    open = ChangeStream.open

    def silent(self: ChangeStream, now_ms: int) -> Any:
        first, last, is_running = self.first, self.last, self.sent < self.last
        marker = open(self, now_ms)
        if not is_running or marker is None:
            return marker
        assert isinstance(self.view, MergedView)
        self.first, self.last, self.view.last = first, last, last
        return None

    patch(ChangeStream, "open", silent)


@canary
def purged_tombstones_leave_no_trace(patch: Patch) -> None:
    """The purge seq is not raised."""
    purge = Partition.purge

    def silent(self: Partition, tombstones: Sequence[Document]) -> None:
        purged = self.purged
        purge(self, tombstones)
        self.purged = purged

    patch(Partition, "purge", silent)


@canary
def streams_from_zero_end_at_the_purge_seq(patch: Patch) -> None:
    """Who begins anew because of a purge is sent back again when the first view is over."""
    begin = ChangeStream.__init__

    def strict(self: ChangeStream, *rest: Any) -> None:
        begin(self, *rest)
        self._purged = NO_SEQ

    patch(ChangeStream, "__init__", strict)


@canary
def barriers_come_back_at_once(patch: Patch) -> None:
    """A cookie is returned with the next partition."""
    patch(Barriers, "_is_reached", lambda self, cycles, following: True)


@canary
def barriers_compare_both_parts(patch: Patch) -> None:
    """A cookie waits for more cycles and for a later partition, as the seed wrote it."""

    def strict(self: Barriers, cycles: int, following: int) -> bool:
        first = self._markers[0]
        return cycles > first.cycles and following > first.partition

    patch(Barriers, "_is_reached", strict)
    patch(Barriers, "return_all", lambda self: [])


@canary
def the_row_is_written_before_its_documents(patch: Patch) -> None:
    """A flush is two transactions, the row first."""
    take = Flushing.take

    def row_first(self: Flushing, row: Any) -> Any:
        flush = take(self, row)
        if flush is not None and flush.snapshot.count and row != self.row_on_disk:
            self.failed(flush)
            self._taken = msgspec.structs.replace(
                flush, snapshot=NO_DOCUMENTS, removed=(), is_wipe=False, tombstones=()
            )
            return self._taken
        return flush

    patch(Flushing, "take", row_first)
