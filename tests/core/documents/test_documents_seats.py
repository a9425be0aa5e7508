"""How seats change, and what they say to nodes."""

from collections.abc import Callable

import msgspec
import pytest

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.map import BucketAttributes, Seat
from millrace.core.documents.placement import Copies
from millrace.core.documents.seats import (
    copies_counted,
    fenced,
    handing_over,
    is_doubtful,
    is_settled,
    majority,
    moved,
    new_bucket,
    promoted,
    raised,
    undone,
    voters,
    wanted_state,
    with_pending,
)
from millrace.core.messages.documents import NO_FAILOVER_ID, HostedPartition
from millrace.types import NO_NODE, NodeId

A, B, C, D = (NodeId(number) for number in range(1, 5))
ID, NEXT = FailoverId(1), FailoverId(2)
SEAT = Seat(3, ID, A, (B,))
PENDING_SEAT = Seat(3, ID, A, (B,), C)
HANDOVER = Seat(3, ID, A, (B,), C, True)
FENCED = Seat(3, ID, NO_NODE, (A, B), C)
LOG = FailoverLog((FailoverEntry(ID, Seq(0)),))
STATES = PartitionState


def fenced_and_led() -> Seat:
    """Through all that happens to a seat between two masters."""
    seat = undone(handing_over(with_pending(msgspec.structs.replace(SEAT, founded=2), C)))
    led = promoted(fenced(seat), B, NEXT)
    return msgspec.structs.replace(led, term=5)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        pytest.param(lambda: fenced(SEAT), Seat(4, ID, NO_NODE, (A, B)), id="fenced"),
        pytest.param(lambda: fenced(HANDOVER), Seat(4, ID, NO_NODE, (A, B), C), id="in a handover"),
        pytest.param(lambda: fenced(FENCED), Seat(4, ID, NO_NODE, (A, B), C), id="fenced again"),
        pytest.param(
            lambda: fenced(SEAT, is_unused=True),
            Seat(4, NO_FAILOVER_ID, NO_NODE, (A, B)),
            id="the id was never used",
        ),
        pytest.param(lambda: promoted(FENCED, B, NEXT), Seat(4, NEXT, B, (A,)), id="promoted"),
        pytest.param(
            lambda: promoted(msgspec.structs.replace(FENCED, id=NO_FAILOVER_ID), B, NEXT),
            Seat(4, NEXT, B, (A,), founded=4),
            id="the first",
        ),
        pytest.param(
            lambda: promoted(msgspec.structs.replace(FENCED, founded=2), B, NEXT, True),
            Seat(4, NEXT, B, (A,), founded=4),
            id="founded anew",
        ),
        pytest.param(
            lambda: promoted(FENCED, C, NEXT),
            Seat(4, NEXT, C, (A, B)),
            id="one that was pending",
        ),
        pytest.param(
            lambda: promoted(msgspec.structs.replace(FENCED, founded=2), B, NEXT),
            Seat(4, NEXT, B, (A,), founded=2),
            id="not the first",
        ),
        pytest.param(
            lambda: moved(fenced_and_led(), B, (C,)),
            Seat(6, NEXT, B, (C,), founded=2),
            id="what is founded stays so",
        ),
        pytest.param(
            lambda: fenced(msgspec.structs.replace(SEAT, founded=2), is_unused=True),
            Seat(4, NO_FAILOVER_ID, NO_NODE, (A, B)),
            id="a seat whose first id was never used is not founded",
        ),
        pytest.param(lambda: with_pending(SEAT, C), Seat(4, ID, A, (B,), C), id="pending"),
        pytest.param(
            lambda: handing_over(PENDING_SEAT), Seat(4, ID, A, (B,), C, True), id="handing over"
        ),
        pytest.param(lambda: moved(HANDOVER, C, (A,)), Seat(4, ID, C, (A,)), id="moved"),
        pytest.param(lambda: moved(PENDING_SEAT, A, (B, C)), Seat(4, ID, A, (B, C)), id="grown"),
        pytest.param(lambda: undone(HANDOVER), Seat(4, ID, A, (B,)), id="undone"),
        pytest.param(
            lambda: undone(Seat(3, ID, A, (B, C)), (B,)), Seat(4, ID, A, (B,)), id="no longer grown"
        ),
        pytest.param(lambda: raised(SEAT, 9), Seat(10, ID, A, (B,)), id="raised"),
    ],
)
def test_changes(change: Callable[[], Seat], after: Seat) -> None:
    assert change() == after


def test_another_master_needs_a_handover_or_a_fence() -> None:
    with pytest.raises(AssertionError):
        moved(PENDING_SEAT, C, (B,))
    with pytest.raises(AssertionError):
        promoted(SEAT, B, NEXT)
    with pytest.raises(AssertionError):
        promoted(FENCED, B, ID)  # Two masters would have one id.


@pytest.mark.parametrize(
    ("seat", "states"),
    [
        pytest.param(SEAT, {A: STATES.ACTIVE, B: STATES.REPLICA, D: None}, id="as usual"),
        pytest.param(
            PENDING_SEAT, {A: STATES.ACTIVE, C: STATES.PENDING, D: None}, id="somebody is pending"
        ),
        pytest.param(
            Seat(3, ID, A, (B,), B),
            {A: STATES.ACTIVE, B: STATES.PENDING},
            id="a replica is pending",
        ),
        pytest.param(HANDOVER, {A: STATES.DEAD, C: STATES.PENDING}, id="handover"),
        pytest.param(
            FENCED, {A: STATES.REPLICA, C: STATES.PENDING, D: STATES.REPLICA}, id="fenced"
        ),
    ],
)
def test_what_nodes_are_by_a_seat(seat: Seat, states: dict[NodeId, PartitionState | None]) -> None:
    assert {node: wanted_state(seat, node) for node in states} == states


@pytest.mark.parametrize(
    ("replicas", "seat", "copies"),
    [
        pytest.param(0, Seat(1, ID, A), 1, id="alone"),
        pytest.param(1, Seat(1, ID, A), 2, id="a copy is missing"),
        pytest.param(1, Seat(1, ID, A, (B,)), 2, id="all are there"),
        pytest.param(1, Seat(1, ID, A, (B,), C), 2, id="one that is pending does not count"),
        pytest.param(1, Seat(1, ID, A, (B, C)), 4, id="one more of two: all three must have it"),
        pytest.param(2, Seat(1, ID, A, (B, C, D)), 5, id="one more of three: three of four"),
        pytest.param(1, Seat(1, ID, NO_NODE, (A, B)), 2, id="fenced"),
    ],
)
def test_of_how_many_copies_a_majority_is_wanted(replicas: int, seat: Seat, copies: int) -> None:
    assert copies_counted(seat, BucketAttributes(replicas=replicas)) == copies


@pytest.mark.parametrize("replicas", range(4))
def test_one_more_makes_majorities_that_survive_whoever_leaves(replicas: int) -> None:
    usual = 1 + replicas
    grown = Seat(1, ID, A, tuple(NodeId(n) for n in range(2, usual + 2)))
    attributes = BucketAttributes(replicas=replicas)
    acknowledged = majority(copies_counted(grown, attributes))
    assert acknowledged - 1 >= majority(usual)
    assert acknowledged <= len(voters(grown))


def hosted(
    state: PartitionState,
    *,
    term: int = 3,
    log: FailoverLog = LOG,
    is_clean: bool = False,
    is_ordered: bool = True,
) -> HostedPartition:
    return HostedPartition(
        PartitionId(0), state, term, log, is_clean=is_clean, is_ordered=is_ordered
    )


@pytest.mark.parametrize(
    ("node", "copy", "expected"),
    [
        pytest.param(A, hosted(STATES.ACTIVE), True, id="the master"),
        pytest.param(A, hosted(STATES.REPLICA), False, id="it is something else"),
        pytest.param(A, hosted(STATES.ACTIVE, term=2), False, id="of a term before"),
        pytest.param(A, hosted(STATES.ACTIVE, is_ordered=False), False, id="not told since"),
        pytest.param(B, None, False, id="it has no copy"),
        pytest.param(D, None, True, id="nor should it"),
        pytest.param(D, hosted(STATES.REPLICA), False, id="it should have none"),
    ],
)
def test_who_is_what_it_should_be(
    node: NodeId, copy: HostedPartition | None, expected: bool
) -> None:
    assert is_settled(SEAT, node, copy) is expected


OTHER_LOG = FailoverLog((FailoverEntry(NEXT, Seq(0)),))


@pytest.mark.parametrize(
    ("node", "copy", "expected"),
    [
        pytest.param(A, hosted(STATES.ACTIVE), False, id="it never stopped"),
        pytest.param(A, None, True, id="it lost its disk"),
        pytest.param(A, hosted(STATES.ACTIVE, is_ordered=False), True, id="unclean"),
        pytest.param(A, hosted(STATES.DEAD, is_ordered=False), True, id="unclean, while dead"),
        pytest.param(A, hosted(STATES.ACTIVE, is_clean=True, is_ordered=False), False, id="clean"),
        pytest.param(
            A,
            hosted(STATES.PENDING, is_ordered=False),
            False,
            id="before it took over: all on disk",
        ),
        pytest.param(
            A,
            hosted(STATES.REPLICA, log=OTHER_LOG, is_ordered=False),
            True,
            id="before it was promoted: it may have less than it was chosen for",
        ),
        pytest.param(B, None, False, id="no master"),
    ],
)
def test_which_masters_are_doubtful(
    node: NodeId, copy: HostedPartition | None, expected: bool
) -> None:
    assert is_doubtful(SEAT, node, copy) is expected


@pytest.mark.parametrize(
    ("term", "log", "expected"),
    [
        pytest.param(2, FailoverLog(), False, id="it was chosen in the term before"),
        pytest.param(1, FailoverLog(), True, id="a late order made it where a disk was lost"),
        pytest.param(1, LOG, False, id="it takes over, and has not heard of the handover"),
    ],
)
def test_who_is_ordered_may_be_another_copy_than_the_one_that_was_chosen(
    term: int, log: FailoverLog, expected: bool
) -> None:
    copy = HostedPartition(PartitionId(0), STATES.REPLICA, term, log, is_ordered=True)
    assert is_doubtful(SEAT, A, copy) is expected


def test_a_new_bucket_waits_for_the_keeper() -> None:
    record = new_bucket(7, "orders", BucketAttributes(), [Copies(B, (A,))], 5)
    assert record.seats == (Seat(1, NO_FAILOVER_ID, NO_NODE, (B, A)),)
    assert (record.id, record.name, record.created_ms, record.revision) == (7, "orders", 5, 1)
