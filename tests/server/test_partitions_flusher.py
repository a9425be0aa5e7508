"""The flusher: one write at a time, nothing lost when one fails, whoever waits is told in order."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import PartitionId, PartitionState, Seq
from millrace.core.documents.partition import Partition
from millrace.core.documents.partition_row import PartitionRow
from millrace.core.messages import Refusal
from millrace.core.messages.cluster import DamagedPartition
from millrace.server.partitions.flusher import (
    RETRY_DAMAGED_MS,
    RETRY_MS,
    Flusher,
    PartitionsDamaged,
)
from millrace.sim.documents.disk import SimDocuments
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import PartitionBatch
from tests.support.partition_nodes import CAFE, DEAD, EPOCH_US, World

BUCKET = 1


class Rig:
    def __init__(self, partitions: int = 1) -> None:
        self.world = World()
        self.store = SimDocuments(self.world.later)
        self.flusher = Flusher(self.store, lambda ms, call: self.world.later(ms * 1000, call))
        self.partitions = [Partition(PartitionId(number)) for number in range(partitions)]
        for partition in self.partitions:
            partition.promote(1, CAFE, is_takeover=False)

    def put(self, key: bytes, at: int = 0) -> None:
        self.partitions[at].store(key, b"value", 0, 0, EPOCH_US)
        self.flusher.touch(BUCKET, self.partitions[at])

    def on_disk(self, at: int = 0) -> set[bytes]:
        stored = self.store.disk.partitions.get((BUCKET, PartitionId(at)))
        return set() if stored is None else set(stored.documents)

    def break_disk(self) -> None:
        self.store.disk.capacity_bytes = 0

    def mend_disk(self) -> None:
        self.store.disk.capacity_bytes = 1 << 30


def test_what_changed_in_one_event_is_one_write() -> None:
    rig = Rig(partitions=3)
    for at in range(30):
        rig.put(b"%d" % at, at % 3)
    rig.world.pass_ms(100)
    assert rig.store.commits == 1
    assert [len(rig.on_disk(at)) for at in range(3)] == [10, 10, 10]


def test_what_changes_while_a_write_runs_gathers_for_the_next() -> None:
    rig = Rig()
    rig.put(b"first")
    rig.world.until(lambda: rig.flusher._is_writing)
    for at in range(10):
        rig.put(b"%d" % at)
        rig.world.later(10, lambda: None)
    rig.world.pass_ms(100)
    assert rig.store.commits == 2
    assert len(rig.on_disk()) == 11


def test_a_flush_leaves_the_queue_only_when_it_is_durable() -> None:
    rig = Rig()
    rig.put(b"k")
    rig.world.until(lambda: rig.flusher._is_writing)
    assert rig.partitions[0].queue.count == 1
    rig.world.until(lambda: rig.flusher.flushes == 1)
    assert rig.partitions[0].queue.count == 0
    assert rig.partitions[0].persisted == 1


def test_a_failed_flush_is_tried_again_after_a_rest_with_all_of_it() -> None:
    rig = Rig(partitions=2)
    rig.put(b"a", 0)
    rig.put(b"b", 1)
    rig.break_disk()
    rig.world.pass_ms(RETRY_MS // 2)
    assert rig.flusher.failure is not None
    rig.put(b"c", 0)
    rig.mend_disk()
    rig.world.pass_ms(RETRY_MS // 4)
    assert rig.on_disk(0) == set(), "it rests"
    rig.world.pass_ms(RETRY_MS)
    assert rig.flusher.failure is None
    assert (rig.on_disk(0), rig.on_disk(1)) == ({b"a", b"c"}, {b"b"})


def test_whoever_waits_through_a_failure_is_told_once_in_the_order_of_asking() -> None:
    rig = Rig()
    rig.partitions[0].is_clean = True  # What a shutdown waits for is to be all of it.
    told: list[int] = []
    rig.put(b"a")
    rig.break_disk()
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(1))
    rig.world.pass_ms(RETRY_MS // 2)
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(2))
    assert told == []
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert told == [1, 2]


def test_whoever_waits_for_nothing_new_is_told_without_a_write() -> None:
    rig = Rig()
    rig.put(b"a")
    rig.world.pass_ms(100)
    told: list[None] = []
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    assert not told, "never from inside the call"
    rig.world.pass_ms(1)
    assert told == [None]
    assert rig.store.commits == 1


def test_who_waits_for_a_partition_that_is_forgotten_is_told_and_nothing_is_written() -> None:
    rig = Rig()
    told: list[None] = []
    rig.partitions[0].set_state(PartitionState.DEAD, 2)
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    rig.flusher.forget(BUCKET, PartitionId(0))
    rig.world.pass_ms(100)
    assert told == [None]
    assert rig.store.commits == 0


@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 2)),
            st.tuples(st.just("wait"), st.integers(0, 2)),
            st.tuples(st.sampled_from(("break", "mend", "pass")), st.integers(0, 400)),
        ),
        max_size=40,
    ),
)
def test_whatever_fails_when_everything_gets_to_the_disk(
    must_be_whole: bool, steps: list[tuple[str, int]]
) -> None:
    """Unless a shutdown waits, the row is enough where there is no room for documents."""
    rig = Rig(partitions=3)
    for partition in rig.partitions:
        partition.is_clean = must_be_whole
    asked = 0
    told: list[bool] = []
    written: list[set[bytes]] = [set(), set(), set()]
    for number, (what, at) in enumerate(steps):
        match what:
            case "put":
                rig.put(b"%d" % number, at)
                written[at].add(b"%d" % number)
            case "wait":
                wanted, of = set(written[at]), at
                asked += 1
                rig.flusher.durable(
                    BUCKET,
                    rig.partitions[at],
                    lambda wanted=wanted, of=of: told.append(wanted <= rig.on_disk(of)),  # type: ignore[misc]
                )
            case "break":
                rig.break_disk()
            case "mend":
                rig.mend_disk()
            case _:
                rig.world.pass_ms(at)
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert [rig.on_disk(at) for at in range(3)] == written
    assert len(told) == asked
    assert all(told) or not must_be_whole


# -- A disk that has no room for some of it -------------------------------------------------------

LARGE = bytes(10_000)


def full_rig() -> Rig:
    """Two partitions, and a document of the first that does not fit."""
    rig = Rig(partitions=2)
    rig.store.disk.capacity_bytes = 5_000
    for at in range(2):
        rig.put(b"kept", at)
        rig.put(b"old", at)
    rig.world.pass_ms(100)
    rig.partitions[0].store(b"large", LARGE, 0, 0, EPOCH_US)
    rig.flusher.touch(BUCKET, rig.partitions[0])
    return rig


def row_of(rig: Rig, at: int) -> PartitionRow:
    return rig.store.disk.partitions[BUCKET, PartitionId(at)].row


def test_what_does_not_fit_of_one_partition_keeps_nothing_of_another_from_the_disk() -> None:
    rig = full_rig()
    other = rig.partitions[1]
    tombstone = other.delete(b"old", EPOCH_US)
    other.store(b"new", b"v", 0, 0, EPOCH_US)
    told: list[None] = []
    rig.flusher.durable(BUCKET, other, lambda: told.append(None))
    rig.world.pass_ms(100)
    assert rig.flusher.is_full
    assert told == [None]
    assert rig.on_disk(1) == {b"kept", b"old", b"new"}
    assert rig.store.get(BUCKET, PartitionId(1), b"old") == tombstone
    assert other.queue.count == 0
    assert tombstone is not None
    other.purge([tombstone])
    rig.flusher.touch(BUCKET, other)
    rig.world.pass_ms(2 * RETRY_MS)
    assert rig.on_disk(1) == {b"kept", b"new"}
    assert row_of(rig, 1).purged == tombstone.seq


def test_of_a_partition_that_does_not_fit_the_row_is_written_with_the_seqs_on_disk() -> None:
    rig = full_rig()
    partition = rig.partitions[0]
    partition.set_state(PartitionState.DEAD, 7)
    told: list[None] = []
    rig.flusher.durable(BUCKET, partition, lambda: told.append(None))
    rig.world.pass_ms(100)
    assert told == [None]
    row = row_of(rig, 0)
    assert (row.state, row.term, row.log) == (PartitionState.DEAD, 7, partition.log)
    assert (row.high, row.seen, row.complete, row.running) == (2, 2, 2, 2)
    assert (partition.persisted, partition.queue.count) == (2, 1)
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert row_of(rig, 0) == partition.row()
    assert rig.on_disk(0) == {b"kept", b"old", b"large"}


def test_what_is_written_of_it_is_not_written_again_and_again() -> None:
    rig = full_rig()
    rig.partitions[0].delete(b"old", EPOCH_US)
    rig.partitions[0].set_state(PartitionState.DEAD, 7)
    rig.world.pass_ms(2 * RETRY_MS)
    written: list[int] = []
    write = rig.store.disk.write

    def counted(batches: Sequence[PartitionBatch]) -> StoreFailed | None:
        failure = write(batches)
        written.extend([len(batches)] if failure is None else [])
        return failure

    rig.store.disk.write = counted  # type: ignore[method-assign]
    rig.world.pass_ms(10 * RETRY_MS)
    assert rig.flusher.is_full
    assert not written


def test_deletions_make_room_for_what_was_changed_before_them() -> None:
    rig = Rig()
    rig.store.disk.capacity_bytes = 30_000
    partition = rig.partitions[0]
    partition.store(b"first", LARGE, 0, 0, EPOCH_US)
    partition.store(b"second", LARGE, 0, 0, EPOCH_US)
    rig.flusher.touch(BUCKET, partition)
    rig.world.pass_ms(100)
    partition.store(b"third", LARGE, 0, 0, EPOCH_US)
    rig.flusher.touch(BUCKET, partition)
    rig.world.pass_ms(2 * RETRY_MS)
    assert rig.flusher.is_full
    partition.delete(b"first", EPOCH_US)
    rig.flusher.touch(BUCKET, partition)
    rig.world.pass_ms(3 * RETRY_MS)
    assert rig.flusher.failure is None
    assert partition.persisted == 4
    stored = rig.store.get(BUCKET, PartitionId(0), b"third")
    assert stored is not None and stored.value == LARGE


def test_a_crash_between_leaves_a_partition_that_lost_its_last_changes() -> None:
    """A deletion may be there without the mutation before it: it lies above what was seen."""
    rig = full_rig()
    partition = rig.partitions[0]
    tombstone = partition.delete(b"old", EPOCH_US)
    assert tombstone is not None
    partition.store(b"old", b"again", 0, 0, EPOCH_US)
    gone = partition.delete(b"kept", EPOCH_US)
    assert gone is not None
    rig.world.pass_ms(100)
    assert rig.flusher.is_full
    row = row_of(rig, 0)
    assert (row.high, row.seen, row.complete) == (gone.seq, 2, 2)
    found = Partition(PartitionId(0), row)
    found.load(rig.store.load(BUCKET, PartitionId(0), Seq(0), 10, True), row)
    assert found.table.keys() == {b"old"}, "a deletion that was taken back is not carried out"
    found.promote(2, DEAD, is_takeover=False)
    assert found.store(b"new", b"v", 0, 0, EPOCH_US).seq == gone.seq + 1
    assert found.store(b"new", b"v", 0, 0, EPOCH_US).cas > gone.cas


def test_nothing_of_an_undo_is_written_in_parts_nor_told_to_be() -> None:
    rig = Rig()
    rig.store.disk.capacity_bytes = 5_000
    partition = rig.partitions[0]
    rig.put(b"a")
    rig.put(b"b")
    rig.world.pass_ms(100)
    partition.store(b"large", LARGE, 0, 0, EPOCH_US)
    partition.delete(b"b", EPOCH_US)
    partition.set_state(PartitionState.REPLICA, 3)
    partition.begin_undo(Seq(1))
    told: list[None] = []
    rig.flusher.durable(BUCKET, partition, lambda: told.append(None))
    rig.world.pass_ms(2 * RETRY_MS)
    row = row_of(rig, 0)
    assert (row.state, row.term) == (PartitionState.REPLICA, 3)
    assert (row.undo, row.seen, row.high) == (None, 2, 2)
    assert not told
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert told == [None]
    assert row_of(rig, 0).undo == 1


def test_what_is_dropped_while_it_does_not_fit_is_not_there_again() -> None:
    rig = full_rig()
    told: list[None] = []
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    rig.partitions[0].is_clean = True
    rig.world.until(lambda: rig.flusher._is_writing)
    rig.flusher.forget(BUCKET, PartitionId(0))
    rig.store.drop(BUCKET, PartitionId(0), lambda failure: None)
    rig.world.pass_ms(5 * RETRY_MS)
    assert (BUCKET, PartitionId(0)) not in rig.store.disk.partitions
    assert told == [None]
    assert rig.flusher.failure is None


# -- A partition whose own write fails -------------------------------------------------------------

DAMAGED = StoreFailed(Refusal.UNAVAILABLE, "its row is damaged")


def damaged_rig() -> tuple[Rig, list[list[PartitionId]]]:
    """Three partitions; the first is damaged.  With what was written, or tried."""
    rig = Rig(partitions=3)
    for at in range(3):
        rig.put(b"old", at)
    rig.world.pass_ms(100)
    tried: list[list[PartitionId]] = []
    write = rig.store.disk.write

    def damaged(batches: Sequence[PartitionBatch]) -> StoreFailed | None:
        tried.append([batch.partition for batch in batches])
        return DAMAGED if PartitionId(0) in tried[-1] else write(batches)

    rig.store.disk.write = damaged  # type: ignore[method-assign]
    rig.put(b"k", 0)
    rig.put(b"k", 1)
    rig.world.pass_ms(10)
    return rig, tried


def heal(rig: Rig) -> None:
    del rig.store.disk.write  # type: ignore[method-assign]


def test_others_are_written_together_and_at_once_beside_a_damaged_one() -> None:
    rig, tried = damaged_rig()
    tried.clear()
    for round_number in range(10):
        rig.put(b"%d" % round_number, 0)
        rig.put(b"%d" % round_number, 1)
        rig.put(b"%d" % round_number, 2)
        rig.world.pass_ms(10)
    assert tried == [[1, 2]] * 10
    assert rig.on_disk(0) == {b"old"}
    assert rig.partitions[0].queue.count == 11


def test_what_is_damaged_is_told_as_that() -> None:
    rig, _ = damaged_rig()
    assert not rig.flusher.is_full
    assert not rig.flusher.has_store_failed
    assert isinstance(rig.flusher.failure, PartitionsDamaged)
    assert rig.flusher.failure.partitions == (DamagedPartition(BUCKET, PartitionId(0)),)
    assert "partition 0 of bucket 1 cannot be written: its row" in rig.flusher.failure.detail


def test_a_damaged_one_is_tried_now_and_then_until_it_is_written() -> None:
    rig, tried = damaged_rig()
    told: list[None] = []
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    tried.clear()
    rig.world.pass_ms(2 * RETRY_DAMAGED_MS)
    assert tried == [[0], [0]]
    assert not told
    heal(rig)
    rig.put(b"more", 0)
    rig.world.pass_ms(RETRY_DAMAGED_MS)
    assert rig.on_disk(0) == {b"old", b"k", b"more"}
    assert told == [None]
    assert rig.flusher.failure is None
    rig.put(b"at once", 0)
    rig.world.pass_ms(10)
    assert b"at once" in rig.on_disk(0)


def test_a_damaged_one_that_changes_while_it_is_written_is_written_again() -> None:
    rig, _ = damaged_rig()
    heal(rig)
    rig.world.until(lambda: rig.flusher._is_writing)
    rig.put(b"meanwhile", 0)
    rig.world.pass_ms(10)
    assert rig.on_disk(0) == {b"old", b"k", b"meanwhile"}


def test_a_damaged_one_that_is_dropped_is_damaged_no_longer() -> None:
    rig, tried = damaged_rig()
    told: list[None] = []
    rig.flusher.durable(BUCKET, rig.partitions[0], lambda: told.append(None))
    rig.flusher.forget(BUCKET, PartitionId(0))
    assert rig.flusher.failure is None
    tried.clear()
    rig.world.pass_ms(2 * RETRY_DAMAGED_MS)
    assert told == [None]
    assert tried == []


def test_a_disk_that_is_full_as_well_is_what_is_told() -> None:
    rig, _ = damaged_rig()
    rig.break_disk()
    rig.put(b"more", 1)
    rig.world.pass_ms(100)
    assert rig.flusher.is_full
    rig.mend_disk()
    rig.world.pass_ms(2 * RETRY_MS)
    assert b"more" in rig.on_disk(1)
    assert not rig.flusher.is_full
    assert rig.flusher.failure is not None


def test_a_store_that_failed_for_good_is_not_the_damage_of_partitions() -> None:
    rig, _ = damaged_rig()
    rig.store.failure = DAMAGED  # type: ignore[attr-defined]
    rig.store.disk.write = lambda batches: DAMAGED  # type: ignore[method-assign]
    rig.put(b"more", 1)
    rig.world.pass_ms(100)
    assert rig.flusher.has_store_failed
    assert set(rig.flusher.damaged) == {(BUCKET, 0)}
    rig.world.pass_ms(2 * RETRY_DAMAGED_MS)
    assert not rig.flusher.damaged
    assert rig.flusher.failure == DAMAGED
