"""A partition as it follows a master, and as it becomes one (R-G, R-E, R-P, U3, U4)."""

from collections.abc import Callable

import pytest

from millrace.core.documents.document import NO_SEQ, PartitionState, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.partition import NotWhole, OutOfOrder, Partition, UndoPending, UsedId
from tests.core.documents.partition_samples import (
    CAFE,
    DEAD,
    NOW_US,
    deletion,
    flush,
    log,
    master,
    mutation,
    replica,
    seqs,
    values,
)

Standing = tuple[int, int, int]


def standing(partition: Partition) -> Standing:
    """Seen, complete, and where the snapshot ends that runs."""
    return partition.seen, partition.complete, partition.running


def test_the_masters_seqs_are_kept() -> None:
    partition = replica(mutation(b"a", 3), mutation(b"b", 8))
    assert seqs(partition.table.values()) == [3, 8]
    assert seqs(partition.queue.snapshot()) == [3, 8]


def test_an_update_leaves_one_version() -> None:
    partition = replica(mutation(b"a", 1), mutation(b"b", 2))
    partition.begin_snapshot(Seq(2), Seq(4))
    partition.apply([mutation(b"a", 3, b"newer"), deletion(b"b", 4)])
    assert values(partition) == {b"a": b"newer"}
    assert seqs(partition.queue.snapshot()) == [3, 4]


def test_a_snapshot_is_complete_where_it_ends() -> None:
    partition = replica(mutation(b"a", 1), last=3)
    assert standing(partition) == (1, 0, 3)
    assert not partition.is_whole
    partition.apply([mutation(b"b", 3)])
    assert standing(partition) == (3, 3, 3)
    assert partition.is_whole


def test_a_marker_alone_changes_nothing() -> None:
    partition = replica(mutation(b"a", 1))
    partition.begin_snapshot(Seq(1), Seq(5))
    assert standing(partition) == (1, 1, 1)
    assert partition.is_whole


def test_an_extended_snapshot_is_complete_at_its_later_end() -> None:
    partition = replica(mutation(b"a", 1), last=3)
    partition.begin_snapshot(NO_SEQ, Seq(5))
    partition.apply([mutation(b"b", 3)])
    assert standing(partition) == (3, 0, 5)
    partition.apply([mutation(b"c", 5)])
    assert standing(partition) == (5, 5, 5)


def test_a_snapshot_that_broke_off_is_not_complete_before_its_own_end() -> None:
    """It elided what was written again up to 9; who only has 8 cannot make it whole."""
    partition = replica(mutation(b"a", 7), last=9)
    partition.begin_snapshot(Seq(7), Seq(8))
    partition.apply([mutation(b"b", 8)])
    assert standing(partition) == (8, 0, 9)
    partition.begin_snapshot(Seq(8), Seq(12))
    partition.apply([mutation(b"c", 12)])
    assert standing(partition) == (12, 12, 12)


def test_what_was_left_out_completes_a_snapshot_too() -> None:
    partition = replica(mutation(b"a", 1), last=3)
    partition.advance(Seq(3))
    assert standing(partition) == (3, 3, 3)
    assert partition.high == 3


def test_advancing_to_what_was_seen_does_nothing() -> None:
    partition = replica(mutation(b"a", 1), last=3)
    partition.advance(Seq(1))
    assert standing(partition) == (1, 0, 3)


@pytest.mark.parametrize(
    "applied",
    [
        pytest.param([5], id="seen_already"),
        pytest.param([7, 7], id="twice"),
        pytest.param([8, 7], id="descending"),
        pytest.param([7, 11], id="beyond_the_snapshot"),
    ],
)
def test_changes_out_of_order_are_refused_all_together(applied: list[int]) -> None:
    partition = replica(mutation(b"a", 5), last=10)
    before = partition.row()
    with pytest.raises(OutOfOrder, match="partition 7"):
        partition.apply([mutation(b"b", seq) for seq in applied])
    assert partition.row() == before
    assert values(partition) == {b"a": b"value"}


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(6, 9, id="it_leaves_a_hole"),
        pytest.param(0, 4, id="it_ends_before_what_was_seen"),
    ],
)
def test_a_snapshot_that_cannot_follow_is_refused(first: int, last: int) -> None:
    with pytest.raises(OutOfOrder, match="cannot follow 5"):
        replica(mutation(b"a", 5)).begin_snapshot(Seq(first), Seq(last))


def test_nothing_is_applied_that_was_not_announced() -> None:
    partition = replica()
    with pytest.raises(OutOfOrder, match="beyond the snapshot"):
        partition.apply([mutation(b"a", 1)])


def test_whoever_watches_is_told_of_each_batch() -> None:
    partition, told = replica(mutation(b"a", 1), last=3), list[Standing]()
    partition.on_change.append(lambda: told.append(standing(partition)))
    partition.apply([mutation(b"b", 2), mutation(b"c", 3)])
    assert told == [(3, 3, 3)]


# -- Promotion --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("complete", "entry"),
    [pytest.param(True, 8, id="whole"), pytest.param(False, 5, id="in_a_snapshot")],
)
def test_the_entry_is_at_the_last_complete_snapshot(complete: bool, entry: int) -> None:
    """Server B of the seed's cluster: it has 6 to 8, but not all of what goes on to 9."""
    partition = replica(mutation(b"a", 5))
    partition.begin_snapshot(Seq(5), Seq(8 if complete else 9))
    partition.apply([mutation(b"b", 6), mutation(b"c", 8)])
    partition.promote(2, DEAD, is_takeover=False)
    assert partition.log == log((DEAD, entry), (CAFE, 0))
    assert partition.store(b"d", b"", 0, 0, NOW_US).seq == 9
    assert standing(partition) == (9, 9, 9)


def test_a_promoted_replica_keeps_what_was_not_complete() -> None:
    partition = replica(mutation(b"a", 6), last=8)
    partition.promote(2, DEAD, is_takeover=False)
    assert values(partition) == {b"a": b"value"}
    assert partition.state is PartitionState.ACTIVE and partition.term == 2


def test_a_clean_takeover_makes_no_entry() -> None:
    partition = replica(mutation(b"a", 5))
    partition.promote(2, CAFE, is_takeover=True)
    assert partition.log == log((CAFE, 0))


def test_a_takeover_under_a_new_id_makes_one() -> None:
    partition = replica(mutation(b"a", 5))
    partition.promote(2, DEAD, is_takeover=True)
    assert partition.log == log((DEAD, 5), (CAFE, 0))


def test_what_is_not_whole_cannot_be_taken_over() -> None:
    partition = replica(mutation(b"a", 5), last=6)
    with pytest.raises(NotWhole, match="only 0 is whole of what goes on to 5"):
        partition.promote(2, CAFE, is_takeover=True)
    assert partition.state is PartitionState.REPLICA


def test_another_history_needs_another_id() -> None:
    partition = replica(mutation(b"a", 5))
    with pytest.raises(UsedId, match="000000000000cafe"):
        partition.promote(2, CAFE, is_takeover=False)


def test_a_master_that_comes_back_begins_where_its_disk_ends() -> None:
    partition = master(b"a", b"b")
    on_disk = flush(partition)
    partition.store(b"c", b"lost", 0, 0, NOW_US)
    back = Partition(partition.number, on_disk.row)
    back.load(list(on_disk.snapshot), on_disk.row)
    back.promote(2, DEAD, is_takeover=False)
    assert back.log == log((DEAD, 2), (CAFE, 0))
    assert back.store(b"d", b"", 0, 0, NOW_US).seq == 3


def test_a_replica_that_comes_back_stands_where_its_disk_says() -> None:
    partition = replica(mutation(b"a", 5), last=9)
    back = Partition(partition.number, flush(partition).row)
    assert standing(back) == (5, 0, 9)
    assert back.place == partition.place
    assert back.persisted == 5


def test_a_handover_that_is_given_up_leaves_the_master_as_it_was() -> None:
    partition = master(b"a")
    partition.set_state(PartitionState.DEAD, 2)
    partition.set_state(PartitionState.ACTIVE, 3)
    assert partition.log == log((CAFE, 0))
    assert partition.store(b"b", b"", 0, 0, NOW_US).seq == 2


@pytest.mark.parametrize(
    "lead",
    [
        pytest.param(lambda partition: partition.promote(2, DEAD, False), id="promoted"),
        pytest.param(lambda partition: partition.set_state(PartitionState.ACTIVE, 2), id="set"),
    ],
)
def test_a_pending_undo_keeps_it_from_becoming_the_master(
    lead: Callable[[Partition], None],
) -> None:
    partition = replica(mutation(b"a", 5))
    partition.begin_undo(Seq(3))
    with pytest.raises(UndoPending, match="undo to 3"):
        lead(partition)


def test_whoever_watches_is_told_of_a_state() -> None:
    partition, told = replica(), list[PartitionState]()
    partition.on_change.append(lambda: told.append(partition.state))
    partition.promote(2, DEAD, is_takeover=False)
    partition.set_state(PartitionState.DEAD, 3)
    assert told == [PartitionState.ACTIVE, PartitionState.DEAD]


def test_a_log_is_taken_without_an_undo_where_none_is_needed() -> None:
    partition = replica(mutation(b"a", 5))
    newer = FailoverLog(log((DEAD, 5), (CAFE, 0)).entries)
    assert not partition.undo_needed(Seq(5), newer)
    partition.finish_undo(newer)
    assert (partition.log, standing(partition)) == (newer, (5, 5, 5))
