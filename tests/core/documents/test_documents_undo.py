"""Rolling a replica back: intent, undo, end, each durable before the next (U2, R-M, R-N)."""

import pytest

from millrace.core.documents.document import NO_SEQ, Document, FailoverId, Seq
from millrace.core.documents.partition import Partition, UndoPending
from tests.core.documents.partition_samples import (
    BA5E,
    CAFE,
    DEAD,
    NOW_US,
    Disk,
    deletion,
    flush,
    log,
    mutation,
    replica,
    seqs,
    values,
)

FAILED_OVER_AT_5 = log((DEAD, 5), (CAFE, 0))


def rolled_back(*documents: Document, start: int = 5, last: int | None = None) -> Partition:
    """All of it is on disk, and so is the intent to go back to `start`."""
    partition = replica(*documents, last=last)
    flush(partition)
    partition.begin_undo(Seq(start))
    flush(partition)
    return partition


@pytest.mark.parametrize(
    ("last", "start", "standing"),
    [
        pytest.param(8, 5, (5, 5, 5), id="below_the_last_complete_snapshot"),
        pytest.param(8, 8, (8, 8, 8), id="where_it_stands"),
        pytest.param(9, 8, (8, 0, 9), id="where_it_stands_in_the_middle_of_a_snapshot"),
    ],
)
def test_the_intent_lowers_where_it_stands(
    last: int, start: int, standing: tuple[int, int, int]
) -> None:
    partition = replica(mutation(b"a", 5), mutation(b"b", 8), last=last)
    partition.begin_undo(Seq(start))
    assert (partition.seen, partition.complete, partition.running) == standing
    assert partition.undo == start


def test_the_intent_is_durable_before_anything_is_undone() -> None:
    partition = replica(mutation(b"a", 5), mutation(b"b", 8))
    partition.begin_undo(Seq(5))
    row = flush(partition).row
    assert (row.undo, row.seen, row.complete) == (5, 5, 5)
    assert values(partition) == {b"a": b"value", b"b": b"value"}


def test_an_intent_that_is_renewed_goes_no_higher() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.begin_undo(Seq(3))
    partition.begin_undo(Seq(5))
    assert (partition.undo, partition.seen) == (3, 3)


def test_what_lies_above_no_longer_counts_as_persisted() -> None:
    partition = replica(mutation(b"a", 5), mutation(b"b", 8))
    flush(partition)
    partition.begin_undo(Seq(5))
    assert (partition.persisted, partition.persisted_complete) == (5, 5)


def test_a_flush_that_was_under_way_does_not_make_it_count_again() -> None:
    partition = replica(mutation(b"a", 5), mutation(b"b", 8))
    taken = partition.take_flush()
    partition.begin_undo(Seq(5))
    assert taken is not None
    partition.flushed(taken)
    assert (partition.persisted, partition.persisted_complete) == (5, 5)


def test_the_masters_versions_are_taken_with_their_seqs_and_others_forgotten() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 7), mutation(b"c", 8))
    partition.undo_documents([mutation(b"b", 3, b"theirs")], missing=[b"c"])
    partition.finish_undo(FAILED_OVER_AT_5)
    assert values(partition) == {b"a": b"value", b"b": b"theirs"}
    assert partition.table[b"b"].seq == 3
    taken = flush(partition)
    assert set(taken.removed) == {b"b", b"c"}
    assert seqs(taken.snapshot) == [3]
    assert (taken.row.undo, taken.row.log) == (None, FAILED_OVER_AT_5)


def test_undoing_twice_does_no_more() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 7), mutation(b"c", 8))
    for _ in range(2):
        partition.undo_documents([mutation(b"b", 3, b"theirs")], missing=[b"c"])
    assert values(partition) == {b"a": b"value", b"b": b"theirs"}
    assert seqs(partition.queue.snapshot()) == [3]


def test_a_seq_that_both_histories_gave_belongs_to_the_masters_document() -> None:
    """Seq 8 is b's here, and a's at the master; undoing b must leave a where it is."""
    partition = replica(mutation(b"a", 5), mutation(b"b", 8))
    partition.begin_undo(Seq(4))
    flush(partition)
    partition.undo_documents([mutation(b"a", 8, b"theirs")], missing=[])
    partition.undo_documents([mutation(b"b", 3, b"theirs")], missing=[])
    partition.finish_undo(log((DEAD, 4), (CAFE, 0)))
    taken = flush(partition)
    assert [(document.key, document.seq) for document in taken.snapshot] == [(b"b", 3), (b"a", 8)]


def test_an_undo_becomes_durable_as_a_whole() -> None:
    """Half of it on disk would put one history's documents in the place of the other's."""
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 7), mutation(b"c", 8))
    partition.undo_documents([mutation(b"b", 3)], missing=[])
    assert partition.take_flush() is None
    partition.begin_undo(Seq(2))
    row_alone = flush(partition)
    assert (row_alone.row.undo, row_alone.removed, len(row_alone.snapshot)) == (2, (), 0)
    partition.finish_undo(FAILED_OVER_AT_5)
    assert seqs(flush(partition).snapshot) == [3]


def test_a_crash_in_the_middle_leaves_all_of_it_to_be_undone() -> None:
    disk, partition = Disk(), replica(mutation(b"a", 5), mutation(b"b", 7), mutation(b"c", 8))
    disk.flush(partition)
    partition.begin_undo(Seq(5))
    disk.flush(partition)
    partition.undo_documents([mutation(b"b", 8, b"theirs")], missing=[])
    disk.flush(partition)
    back = disk.start()
    assert (back.undo, back.seen) == (5, 5)
    assert sorted(disk.above(Seq(5))) == [b"b", b"c"]


@pytest.mark.parametrize(
    ("fetched", "high"),
    [
        pytest.param(3, 5, id="below_the_start"),
        pytest.param(50, 50, id="above_all_that_was_seen"),
    ],
)
def test_the_next_seq_lies_above_what_was_fetched(fetched: int, high: int) -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.undo_documents([mutation(b"b", fetched)], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    flush(partition)
    partition.promote(2, BA5E, is_takeover=False)
    assert partition.log.entries[0].seq == 5
    assert partition.store(b"c", b"", 0, 0, NOW_US).seq == high + 1


def test_what_was_fetched_beyond_is_no_whole_snapshot_until_the_stream_is_there() -> None:
    """Others would get a state without b, which the master had in an earlier version."""
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.undo_documents([mutation(b"b", 10)], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    flush(partition)
    assert not partition.is_whole
    partition.begin_snapshot(Seq(5), Seq(10))
    partition.apply([mutation(b"c", 9), mutation(b"b", 10)])
    assert partition.is_whole


def test_a_later_version_that_was_fetched_is_kept() -> None:
    """Who lags may send an earlier one on the way; the later comes again at its own seq."""
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    newer = mutation(b"b", 50, b"newer")
    partition.undo_documents([newer], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    partition.begin_snapshot(Seq(5), Seq(30))
    partition.apply([mutation(b"b", 30, b"older")])
    assert partition.peek(b"b") is newer
    assert partition.seen == 30


def test_what_is_on_disk_beyond_the_stream_is_known() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.undo_documents([mutation(b"b", 50)], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    flush(partition)
    assert (partition.persisted, partition.disk_high) == (5, 50)


@pytest.mark.parametrize(
    ("start", "newest", "is_needed"),
    [
        pytest.param(4, DEAD, True, id="more_was_seen"),
        pytest.param(5, DEAD, False, id="fetched_from_that_master"),
        pytest.param(5, BA5E, True, id="fetched_from_one_that_is_gone"),
    ],
)
def test_versions_fetched_from_a_master_that_is_gone_are_undone_too(
    start: int, newest: FailoverId, is_needed: bool
) -> None:
    """Nothing above 5 was streamed, but b is there at 50, which the next master never had."""
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.undo_documents([mutation(b"b", 50)], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    flush(partition)
    theirs = FAILED_OVER_AT_5 if newest == DEAD else FAILED_OVER_AT_5.begin(BA5E, Seq(20))
    assert partition.undo_needed(Seq(start), theirs) is is_needed


def test_the_end_must_be_on_disk_before_it_can_be_the_master() -> None:
    """Until then its views would show what the disk still has of the other history."""
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    partition.undo_documents([], missing=[b"b"])
    partition.finish_undo(FAILED_OVER_AT_5)
    assert not partition.is_whole
    with pytest.raises(UndoPending):
        partition.promote(2, BA5E, is_takeover=False)
    flush(partition)
    partition.promote(2, BA5E, is_takeover=False)


def test_a_tombstone_that_is_on_disk_alone_is_undone() -> None:
    partition = rolled_back(mutation(b"a", 5), deletion(b"b", 8))
    assert b"b" not in partition.table
    partition.undo_documents([mutation(b"b", 3)], missing=[])
    partition.finish_undo(FAILED_OVER_AT_5)
    assert values(partition) == {b"a": b"value", b"b": b"value"}
    assert flush(partition).removed == (b"b",)


# -- Back to nothing --------------------------------------------------------------------------


def test_a_rollback_to_0_forgets_everything() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8), start=0)
    partition.wipe()
    partition.finish_undo(log((DEAD, 0)), purged=Seq(4))
    assert (partition.table, partition.queue.count, partition.memory_bytes) == ({}, 0, 0)
    taken = flush(partition)
    assert taken.is_wipe
    assert (taken.row.high, taken.row.seen, taken.row.purged) == (0, 0, 4)


def test_a_wipe_is_carried_out_once() -> None:
    partition = rolled_back(mutation(b"a", 5), start=0)
    partition.wipe()
    flush(partition)
    partition.finish_undo(log((DEAD, 0)))
    partition.begin_snapshot(NO_SEQ, Seq(1))
    partition.apply([mutation(b"c", 1)])
    taken = flush(partition)
    assert (taken.is_wipe, seqs(taken.snapshot)) == (False, [1])


def test_only_a_rollback_to_0_wipes() -> None:
    partition = rolled_back(mutation(b"a", 5), mutation(b"b", 8))
    with pytest.raises(AssertionError, match="undo to 0"):
        partition.wipe()


def test_deletions_that_the_master_forgot_never_come_here() -> None:
    partition = replica(mutation(b"a", 5))
    partition.finish_undo(log((CAFE, 0)), purged=Seq(3))
    assert partition.row().purged == 3
