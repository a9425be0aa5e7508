"""What a flush carries, and what may leave memory after it (R-D, R-I)."""

import gc
import sys

import pytest

from millrace.core.documents.document import Document, PartitionState, Seq
from millrace.core.documents.partition import Partition
from millrace.core.documents.partition_row import PartitionRow
from tests.core.documents.partition_samples import (
    DEAD,
    NOW_US,
    NUMBER,
    Disk,
    flush,
    master,
    mutation,
    replica,
    seqs,
    values,
)


def test_a_flush_has_the_row_and_the_documents_of_one_moment() -> None:
    partition = master(b"a", b"b")
    taken = partition.take_flush()
    partition.store(b"c", b"", 0, 0, NOW_US)
    assert taken is not None
    assert (taken.row.high, seqs(taken.snapshot)) == (2, [1, 2])


def test_after_it_the_queue_has_what_came_since() -> None:
    partition = master(b"a", b"b")
    taken = partition.take_flush()
    partition.store(b"b", b"newer", 0, 0, NOW_US)
    assert taken is not None
    partition.flushed(taken)
    assert seqs(partition.queue.snapshot()) == [3]
    assert partition.persisted == 2


def test_when_all_is_on_disk_there_is_nothing_to_flush() -> None:
    partition = master(b"a")
    flush(partition)
    assert partition.take_flush() is None


def test_a_change_of_the_row_alone_is_flushed() -> None:
    partition = master(b"a")
    flush(partition)
    partition.set_state(PartitionState.DEAD, 2)
    assert flush(partition).row.state is PartitionState.DEAD


def test_one_flush_at_a_time() -> None:
    partition = master(b"a")
    partition.take_flush()
    with pytest.raises(AssertionError, match="one flush at a time"):
        partition.take_flush()


def test_whoever_watches_is_told_when_it_is_on_disk() -> None:
    partition, told = master(b"a"), list[Seq]()
    partition.on_change.append(lambda: told.append(partition.persisted))
    flush(partition)
    assert told == [1]


def test_a_flush_that_failed_is_given_again_with_what_came_since() -> None:
    partition = master(b"a", b"b")
    partition.delete(b"a", NOW_US)
    taken = partition.take_flush()
    partition.store(b"c", b"", 0, 0, NOW_US)
    assert taken is not None
    partition.flush_failed(taken)
    assert partition.persisted == 0
    assert seqs(flush(partition).snapshot) == [2, 3, 4]
    assert set(partition.table) == {b"b", b"c"}


def test_what_was_to_be_forgotten_is_still_to_be_after_a_failure() -> None:
    partition = replica(mutation(b"a", 1), mutation(b"b", 2))
    flush(partition)
    partition.begin_undo(Seq(0))
    flush(partition)
    partition.undo_documents([], missing=[b"a"])
    partition.finish_undo(partition.log)
    taken = partition.take_flush()
    assert taken is not None and taken.removed == (b"a",)
    partition.flush_failed(taken)
    assert flush(partition).removed == (b"a",)


def test_a_wipe_that_failed_is_still_to_be_done() -> None:
    partition = replica(mutation(b"a", 1))
    partition.begin_undo(Seq(0))
    partition.wipe()
    taken = partition.take_flush()
    assert taken is not None
    partition.flush_failed(taken)
    assert flush(partition).is_wipe


def test_of_a_replica_a_snapshot_counts_when_all_of_it_is_on_disk() -> None:
    """The flush caught it in the middle: 4 may have been elided by what is not there yet."""
    partition = replica(mutation(b"a", 3), last=3)
    flush(partition)
    partition.begin_snapshot(Seq(3), Seq(6))
    partition.apply([mutation(b"b", 5)])
    flush(partition)
    partition.apply([mutation(b"c", 6)])
    assert (partition.complete, partition.persisted, partition.persisted_complete) == (6, 5, 3)
    flush(partition)
    assert partition.persisted_complete == 6


def test_a_snapshot_on_disk_counts_although_another_is_complete_since() -> None:
    partition = replica(mutation(b"a", 3))
    taken = partition.take_flush()
    partition.begin_snapshot(Seq(3), Seq(6))
    partition.apply([mutation(b"b", 6)])
    assert taken is not None
    partition.flushed(taken)
    assert (partition.complete, partition.persisted_complete) == (6, 3)


def test_a_shutdown_in_order_says_so_and_a_start_takes_it_back() -> None:
    """Until that is on disk nothing may be served: a crash would look like an orderly end."""
    partition = master(b"a")
    partition.is_clean = True
    row = flush(partition).row
    assert row.is_clean
    back = Partition(NUMBER, row)
    assert not flush(back).row.is_clean


def test_warm_up_brings_back_what_was_flushed() -> None:
    disk, partition = Disk(), master(b"a", b"b", b"c")
    partition.delete(b"b", NOW_US)
    disk.flush(partition)
    back = disk.start()
    assert values(back) == values(partition)
    assert back.row() == partition.row()
    assert back.take_flush() is None
    assert back.memory_bytes == partition.memory_bytes


def test_warm_up_goes_on_in_batches() -> None:
    row = PartitionRow(PartitionState.REPLICA, high=Seq(2), seen=Seq(2), complete=Seq(2))
    partition = Partition(NUMBER, row)
    partition.load([mutation(b"a", 1)], row)
    partition.load([mutation(b"b", 2)], row)
    assert seqs(partition.table.values()) == [1, 2]
    assert (partition.persisted, partition.last_cas) == (2, NOW_US + 2)


# -- Memory -----------------------------------------------------------------------------------


def evicted(document: Document) -> bool:
    return document.value is None


def test_values_on_disk_leave_memory_and_the_rest_of_the_document_stays() -> None:
    partition = master(b"a")
    stored = partition.store(b"a", b"x" * 100, 3, 99, NOW_US, datatype=1)
    flush(partition)
    before = partition.memory_bytes
    assert partition.evict(1) == 100
    assert partition.memory_bytes == before - 100
    held = partition.peek(b"a")
    assert held == Document(b"a", None, stored.seq, stored.cas, 3, 99, datatype=1)


def test_values_that_are_not_on_disk_stay() -> None:
    partition = master(b"a")
    flush(partition)
    partition.store(b"b", b"not on disk", 0, 0, NOW_US)
    partition.store(b"a", b"changed", 0, 0, NOW_US)
    assert partition.evict(10**6) == 0


def test_no_more_leaves_than_is_wanted() -> None:
    partition = master(b"a", b"b", b"c")
    flush(partition)
    partition.evict(1)
    assert [evicted(document) for document in partition.table.values()] == [True, False, False]


def test_each_goes_in_its_turn() -> None:
    partition = master(b"a", b"b", b"c")
    flush(partition)
    partition.evict(1)
    partition.restore(mutation(b"a", 1, b"value of a"))
    partition.evict(1)
    assert [key for key, held in partition.table.items() if evicted(held)][-1] == b"b"


def test_a_second_round_begins_when_the_first_is_over() -> None:
    partition = master(b"a")
    flush(partition)
    original = partition.peek(b"a")
    assert original is not None
    for _ in range(3):
        assert partition.evict(1) == len(b"value of a")
        partition.restore(original)
    assert partition.peek(b"a") is original


@pytest.mark.parametrize(
    ("is_rewritten", "value"),
    [
        pytest.param(False, b"value of a", id="unchanged"),
        pytest.param(True, b"newer", id="changed_meanwhile"),
    ],
)
def test_a_value_comes_back_unless_the_document_changed(is_rewritten: bool, value: bytes) -> None:
    partition = master(b"a")
    original = partition.peek(b"a")
    flush(partition)
    partition.evict(1)
    if is_rewritten:
        partition.store(b"a", b"newer", 0, 0, NOW_US)
    assert original is not None
    partition.restore(original)
    assert values(partition) == {b"a": value}


def test_the_same_seq_of_another_history_is_another_document() -> None:
    partition = replica(mutation(b"a", 1))
    flush(partition)
    partition.evict(1)
    other = Document(b"a", b"other", Seq(1), mutation(b"a", 99).cas)
    partition.restore(other)
    assert values(partition) == {b"a": None}


def test_memory_is_what_the_table_holds() -> None:
    partition = master(b"a", b"b", b"c")
    partition.store(b"a", b"another", 0, 0, NOW_US)
    partition.delete(b"b", NOW_US)
    flush(partition)
    partition.evict(5)
    partition.promote(2, DEAD, is_takeover=False)
    assert partition.memory_bytes == sum(held.size for held in partition.table.values())


def test_a_value_is_freed_when_table_queue_and_readers_let_go() -> None:
    gc.disable()
    try:
        partition = master()
        document = partition.store(b"a", b"x" * 1_000, 0, 0, NOW_US)
        alone = sys.getrefcount(document) - 2  # The table and the queue.
        reader = partition.queue.snapshot()
        partition.store(b"a", b"newer", 0, 0, NOW_US)
        assert sys.getrefcount(document) == alone + 1
        del reader
        assert sys.getrefcount(document) == alone
    finally:
        gc.enable()
