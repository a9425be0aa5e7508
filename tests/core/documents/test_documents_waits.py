"""Durability waits: what each condition means, and who is told that it is over (R-H, U6)."""

import pytest

from millrace.core.documents.document import FailoverId, PartitionState, Seq
from millrace.core.documents.partition import Partition
from millrace.core.documents.waits import (
    STALE_MAX,
    WAITS_MAX,
    Durability,
    WaitOutcome,
    Waits,
)
from millrace.types import NodeId
from tests.core.documents.partition_samples import (
    CAFE,
    DEAD,
    NOW_US,
    flush,
    log,
    master,
    mutation,
    replica,
)

B, C = NodeId(2), NodeId(3)
LATER_MS = 30_000


def waiting(
    condition: Durability, seq: int, id: FailoverId = CAFE, deadline_ms: int = LATER_MS
) -> Waits[str]:
    waits = Waits[str]()
    assert waits.add("me", id, Seq(seq), condition, deadline_ms)
    return waits


def outcome(
    waits: Waits[str], partition: Partition, copies: int = 3, now_ms: int = 0
) -> WaitOutcome | None:
    """How the one who waits is answered; None: not yet."""
    ended = waits.look(partition, copies, now_ms)
    return ended[0][1] if ended else None


# -- What the conditions mean -----------------------------------------------------------------


def half_flushed() -> Partition:
    """A master with 1 to 3, of which 1 and 2 are on disk."""
    partition = master(b"a", b"b")
    flush(partition)
    partition.store(b"c", b"", 0, 0, NOW_US)
    return partition


@pytest.mark.parametrize(
    ("condition", "acks", "reached"),
    [
        pytest.param(Durability.ARRIVED, [], 3, id="arrived"),
        pytest.param(Durability.PERSISTED, [], 2, id="persisted"),
        pytest.param(Durability.MAJORITY, [], 0, id="the_master_is_no_majority"),
        pytest.param(Durability.MAJORITY, [(B, 3, 0)], 3, id="one_replica_is_enough_of_three"),
        pytest.param(Durability.MAJORITY, [(B, 1, 0), (C, 2, 0)], 2, id="the_best_replica_counts"),
        pytest.param(
            Durability.MAJORITY_AND_PERSIST_ON_MASTER, [(B, 3, 0)], 2, id="masters_disk_is_behind"
        ),
        pytest.param(
            Durability.MAJORITY_AND_PERSIST_ON_MASTER, [(B, 1, 1)], 1, id="replica_is_behind"
        ),
        pytest.param(Durability.PERSIST_TO_MAJORITY, [(B, 3, 1)], 1, id="two_disks"),
        pytest.param(
            Durability.PERSIST_TO_MAJORITY, [(B, 3, 3), (C, 3, 3)], 3, id="disks_of_replicas_alone"
        ),
        pytest.param(Durability.PERSIST_TO_MAJORITY, [], 0, id="one_disk_is_no_majority"),
    ],
)
def test_a_condition_holds_up_to_a_seq(
    condition: Durability, acks: list[tuple[NodeId, int, int]], reached: int
) -> None:
    for seq in (1, 2, 3):
        waits = waiting(condition, seq)
        for node, complete, persisted in acks:
            waits.replica_acked(node, CAFE, Seq(complete), Seq(persisted))
        is_over = outcome(waits, half_flushed()) is WaitOutcome.OK
        assert is_over is (seq <= reached)


@pytest.mark.parametrize(
    ("copies", "replicas_needed"), [(1, 0), (2, 1), (3, 1), (4, 2)], ids=lambda count: str(count)
)
def test_a_majority_is_more_than_half_of_the_copies(copies: int, replicas_needed: int) -> None:
    for acked in range(4):
        waits = waiting(Durability.MAJORITY, 1)
        for node in range(acked):
            waits.replica_acked(NodeId(10 + node), CAFE, Seq(1), Seq(0))
        is_over = outcome(waits, master(b"a"), copies) is WaitOutcome.OK
        assert is_over is (acked >= replicas_needed)


def test_what_was_acknowledged_under_another_id_does_not_count() -> None:
    waits = waiting(Durability.MAJORITY, 1)
    waits.replica_acked(B, DEAD, Seq(9), Seq(9))
    assert outcome(waits, master(b"a")) is None


def test_a_replica_that_was_rolled_back_no_longer_counts() -> None:
    waits = waiting(Durability.MAJORITY, 2)
    waits.replica_acked(B, CAFE, Seq(2), Seq(2))
    waits.replica_acked(B, CAFE, Seq(1), Seq(1))
    assert outcome(waits, master(b"a", b"b")) is None


def test_a_node_that_is_no_copy_any_more_does_not_count() -> None:
    waits = waiting(Durability.MAJORITY, 1)
    waits.replica_acked(B, CAFE, Seq(1), Seq(1))
    waits.keep_replicas([C])
    assert outcome(waits, master(b"a")) is None


@pytest.mark.parametrize("condition", [Durability.ARRIVED, Durability.PERSISTED])
def test_a_replica_counts_complete_snapshots(condition: Durability) -> None:
    """4 may have been elided by 6, which is not there: that 5 arrived says nothing."""
    waits, partition = waiting(condition, 4), replica(mutation(b"a", 5), last=6)
    flush(partition)
    assert outcome(waits, partition) is None
    partition.apply([mutation(b"b", 6)])
    flush(partition)
    assert outcome(waits, partition) is WaitOutcome.OK


def test_on_a_replica_persisted_means_all_of_the_snapshot() -> None:
    waits, partition = waiting(Durability.PERSISTED, 4), replica(mutation(b"a", 5), last=6)
    flush(partition)
    partition.apply([mutation(b"b", 6)])
    assert outcome(waits, partition) is None
    flush(partition)
    assert outcome(waits, partition) is WaitOutcome.OK


# -- When there is nothing to wait for --------------------------------------------------------


def test_another_failover_id_is_an_error_at_once() -> None:
    waits = waiting(Durability.PERSISTED, 1, id=DEAD)
    assert outcome(waits, master(b"a")) is WaitOutcome.WRONG_ID


def test_whoever_waits_is_told_when_the_id_changes() -> None:
    waits, partition = waiting(Durability.PERSISTED, 1), master(b"a")
    assert outcome(waits, partition) is None
    partition.promote(2, DEAD, is_takeover=False)
    assert outcome(waits, partition) is WaitOutcome.WRONG_ID


def test_a_replica_that_gets_another_masters_log_says_so() -> None:
    waits, partition = waiting(Durability.ARRIVED, 9), replica(mutation(b"a", 5))
    assert outcome(waits, partition) is None
    partition.finish_undo(log((DEAD, 5), (CAFE, 0)))
    assert outcome(waits, partition) is WaitOutcome.WRONG_ID


@pytest.mark.parametrize("state", [PartitionState.DEAD, PartitionState.REPLICA])
def test_whoever_waits_is_told_when_it_is_no_master_any_more(state: PartitionState) -> None:
    waits, partition = waiting(Durability.PERSISTED, 1), master(b"a")
    assert outcome(waits, partition) is None
    partition.set_state(state, 2)
    assert outcome(waits, partition) is WaitOutcome.NOT_MY_PARTITION


def test_who_asks_a_dead_partition_reloads_the_map() -> None:
    partition = master(b"a")
    partition.set_state(PartitionState.DEAD, 2)
    assert outcome(waiting(Durability.ARRIVED, 1), partition) is WaitOutcome.NOT_MY_PARTITION


def test_a_replica_knows_nothing_of_majorities() -> None:
    waits, partition = waiting(Durability.MAJORITY, 5), replica(mutation(b"a", 5))
    assert outcome(waits, partition) is WaitOutcome.NOT_MY_PARTITION


def test_a_replica_that_is_to_become_the_master_keeps_its_waits() -> None:
    waits, partition = waiting(Durability.ARRIVED, 9), replica(mutation(b"a", 5))
    assert outcome(waits, partition) is None
    partition.set_state(PartitionState.PENDING, 2)
    assert outcome(waits, partition) is None


# -- Time, order, bounds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now_ms", "answer"),
    [pytest.param(99, None, id="before"), pytest.param(100, WaitOutcome.TIMED_OUT, id="at")],
)
def test_a_wait_ends_at_its_deadline(now_ms: int, answer: WaitOutcome | None) -> None:
    waits = waiting(Durability.PERSISTED, 1, deadline_ms=100)
    assert waits.next_deadline_ms == 100
    assert outcome(waits, master(b"a"), now_ms=now_ms) is answer


def test_what_came_in_time_is_not_late_because_it_was_looked_at_late() -> None:
    waits = waiting(Durability.ARRIVED, 1, deadline_ms=100)
    assert outcome(waits, master(b"a"), now_ms=500) is WaitOutcome.OK


def test_those_are_answered_whose_seq_is_reached_and_each_once() -> None:
    waits, partition = Waits[int](), master(b"a", b"b", b"c")
    for seq in (3, 1, 2):
        waits.add(seq, CAFE, Seq(seq), Durability.MAJORITY, LATER_MS)
    waits.replica_acked(B, CAFE, Seq(2), Seq(0))
    assert waits.look(partition, 3, 0) == [(1, WaitOutcome.OK), (2, WaitOutcome.OK)]
    waits.replica_acked(B, CAFE, Seq(3), Seq(0))
    assert waits.look(partition, 3, 0) == [(3, WaitOutcome.OK)]
    assert waits.look(partition, 3, LATER_MS) == []
    assert len(waits) == 0


def test_too_many_waits_are_refused_and_room_comes_back() -> None:
    waits, partition = Waits[int](), master(b"a")
    for number in range(WAITS_MAX):
        assert waits.add(number, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)
    assert not waits.add(-1, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)
    flush(partition)
    assert len(waits.look(partition, 1, 0)) == WAITS_MAX
    assert waits.add(-1, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)


def test_waits_that_are_over_leave_nothing_behind() -> None:
    waits, partition = Waits[int](), master(b"a")
    for number in range(10 * STALE_MAX):
        waits.add(number, CAFE, Seq(1), Durability.ARRIVED, LATER_MS + number)
        waits.look(partition, 1, 0)
    assert waits.next_deadline_ms is not None
    assert waits.next_deadline_ms > LATER_MS + 8 * STALE_MAX


# -- Who does not want to know any more -------------------------------------------------------


@pytest.mark.parametrize("is_looked_at", [True, False], ids=["seen", "fresh"])
def test_who_is_forgotten_is_not_told(is_looked_at: bool) -> None:
    waits, partition = Waits[str](), master(b"a")
    for ticket in ("gone", "here"):
        assert waits.add(ticket, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)
    if is_looked_at:
        assert waits.look(partition, 1, 0) == []
    waits.forget("gone")
    flush(partition)
    assert waits.look(partition, 1, 0) == [("here", WaitOutcome.OK)]
    waits.forget("here")
    assert len(waits) == 0


def test_who_is_forgotten_makes_room() -> None:
    waits = Waits[int]()
    for number in range(WAITS_MAX):
        assert waits.add(number, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)
    waits.forget(7)
    assert waits.add(-1, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)
    assert not waits.add(-2, CAFE, Seq(1), Durability.PERSISTED, LATER_MS)


def test_who_is_forgotten_leaves_nothing_behind() -> None:
    waits = Waits[int]()
    for number in range(10 * STALE_MAX):
        waits.add(number, CAFE, Seq(1), Durability.PERSISTED, LATER_MS + number)
        waits.forget(number)
    assert waits.next_deadline_ms is not None
    assert waits.next_deadline_ms > LATER_MS + 8 * STALE_MAX
