"""What a query of changes plans, and where it stands afterwards."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.change_query import (
    MasterState,
    PartitionRange,
    Planned,
    QueryPlace,
    Settled,
    begun_of,
    cut_to,
    droppable,
    keep_at_most,
    plan_partition,
    receipt_of,
    settle,
    shared_out,
    version,
)
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.rollback import Refuse, RefuseReason

P = PartitionId(0)


def log(*entries: tuple[int, int]) -> FailoverLog:
    """Newest first."""
    return FailoverLog(tuple(FailoverEntry(FailoverId(id), Seq(seq)) for id, seq in entries))


A = log((0xA, 0))
B_AT_5 = log((0xB, 5), (0xA, 0))


def place(seq: int, of: FailoverLog = A, *, first: int | None = None, era: int = 0) -> QueryPlace:
    begun = seq if first is None else first
    last = seq if first is None else SEQ_MAX
    return QueryPlace(of, Seq(seq), Seq(begun), Seq(last), era)


@pytest.mark.parametrize(
    ("stands", "master", "end"),
    [
        (QueryPlace(), MasterState(A, Seq(0)), None),
        (QueryPlace(), MasterState(A, Seq(7)), (7, 0)),
        (place(7), MasterState(A, Seq(7)), None),
        (place(7), MasterState(A, Seq(9)), (9, 0)),
        (place(5), MasterState(B_AT_5, Seq(5)), (5, 0)),
        (place(7), MasterState(B_AT_5, Seq(6)), (6, 1)),
        (place(7, first=4), MasterState(B_AT_5, Seq(9)), (9, 1)),
        (place(7), MasterState(log((0xC, 0)), Seq(3)), (3, 1)),
        (place(7), MasterState(A, Seq(9), Seq(8)), (9, 1)),
        (place(7), MasterState(A, Seq(7), Seq(18)), None),
    ],
    ids=[
        "nothing was ever written",
        "the first batch",
        "nothing is new",
        "more of the same history",
        "another master that lost nothing: its log is taken over",
        "another master that lost some",
        "in the middle of a snapshot",
        "a master that nobody knows",
        "deletions above the place are forgotten",
        "deletions of an older history are forgotten, and nothing is new",
    ],
)
def test_a_plan(stands: QueryPlace, master: MasterState, end: tuple[int, int] | None) -> None:
    planned = plan_partition(P, Settled(stands, False), master)
    assert not isinstance(planned, Refuse)
    if end is None:
        # Another master is news even if nothing else is.
        assert planned is None or stands.log != master.log
        return
    assert planned is not None
    assert (planned.end.seq, planned.end.era, planned.end.log) == (*end, master.log)
    assert planned.range == PartitionRange(P, stands, master.high)


def test_a_stale_master_is_waited_out() -> None:
    found = plan_partition(P, Settled(place(7, B_AT_5), False), MasterState(A, Seq(9)))
    assert isinstance(found, Refuse)
    assert found.reason is RefuseReason.STALE_MASTER


def test_what_the_last_offset_did_not_tell_is_news() -> None:
    settled = Settled(place(7), False, is_told=False)
    planned = plan_partition(P, settled, MasterState(A, Seq(7)))
    assert isinstance(planned, Planned)
    assert (planned.range.end, planned.end.log) == (7, A)


def test_doubt_is_news() -> None:
    planned = plan_partition(P, Settled(place(7), True), MasterState(A, Seq(7)))
    assert isinstance(planned, Planned)
    assert planned.range.is_doubtful


def planned_of(waiting: dict[int, int], *, back: int | None = None) -> dict[PartitionId, Planned]:
    found: dict[PartitionId, Planned] = {}
    for number, count in waiting.items():
        wanted = PartitionRange(PartitionId(number), place(10), Seq(10 + count))
        end = place(10 + count, era=int(number == back))
        found[wanted.partition] = Planned(wanted, end)
    return found


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 1_000), min_size=1), st.integers(1, 2_000))
def test_a_limit_cuts_and_never_stops_a_query(waiting: dict[int, int], limit: int) -> None:
    cut = cut_to(planned_of(waiting), limit)
    taken = {number: each.range.end - 10 for number, each in cut.items()}
    assert all(1 <= taken[PartitionId(number)] <= count for number, count in waiting.items())
    assert sum(taken.values()) <= max(limit, sum(waiting.values()) if False else limit) + len(
        waiting
    )
    for number, each in cut.items():
        assert each.range.is_cut == (taken[number] < waiting[number])
        assert each.end.seq == each.range.end


def test_what_goes_back_is_not_cut() -> None:
    cut = cut_to(planned_of({0: 100, 1: 100}, back=1), 10)
    assert [each.range.is_cut for each in cut.values()] == [True, False]


def test_of_a_large_batch_only_the_newest_keys_are_kept() -> None:
    ranges = [each.range for each in planned_of({0: 300, 1: 100}).values()]
    assert [each.kept_above for each in keep_at_most(ranges, 400)] == [0, 0]
    assert [each.kept_above for each in keep_at_most(ranges, 40)] == [280, 100]
    assert [each.kept_above for each in keep_at_most(ranges, 0)] == [310, 110]


BEFORE, END = place(10), place(20)
WANTED = PartitionRange(P, BEFORE, Seq(20))


@pytest.mark.parametrize(
    ("reached", "found"),
    [
        ([], Settled(END, True)),
        ([place(23)], Settled(place(23), False)),
        ([place(23), place(21)], Settled(place(21), True)),
        ([place(23), place(9, B_AT_5, era=1)], Settled(place(23), True)),
        ([place(9, B_AT_5, era=1)], Settled(place(9, B_AT_5, era=1), False, is_told=False)),
    ],
    ids=[
        "nobody came to the end: it is not known what was read",
        "further than planned",
        "of two the one that came least far",
        "of two histories the one that everybody saw",
        "another history than planned: the next offset must tell",
    ],
)
def test_receipts_say_where_a_query_stands(reached: list[QueryPlace], found: Settled) -> None:
    receipts = [receipt_of(WANTED, each, 0) for each in reached]
    assert settle(BEFORE, END, receipts) == found


def test_what_other_attempts_may_have_handed_out_leaves_the_place_in_doubt() -> None:
    ended = receipt_of(WANTED, place(23), 0)
    assert settle(BEFORE, END, [ended]) == Settled(place(23), False)
    assert settle(BEFORE, END, [ended, begun_of(WANTED)]) == Settled(place(23), True)
    second = receipt_of(WANTED, place(23), 0, is_again=True)
    assert settle(BEFORE, END, [begun_of(WANTED), second]) == Settled(place(23), False)
    further = receipt_of(WANTED, place(23), 0, seen=Seq(24))
    assert settle(BEFORE, END, [further]) == Settled(place(23), True)
    passed = receipt_of(WANTED, place(24), 0, seen=Seq(24))
    assert settle(BEFORE, END, [passed]) == Settled(place(24), False)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(WANTED, end=Seq(19)),
        msgspec.structs.replace(WANTED, place=place(9)),
        msgspec.structs.replace(WANTED, place=place(10, B_AT_5)),
        msgspec.structs.replace(WANTED, place=place(10, era=1)),
    ],
    ids=["another end", "another begin", "another history", "another era"],
)
def test_receipts_of_other_ranges_say_nothing(other: PartitionRange) -> None:
    assert settle(BEFORE, END, [receipt_of(other, place(30), 0)]) == Settled(END, True)


@pytest.mark.parametrize(
    ("keys", "keys_max", "count"),
    [
        ([], 10, 0),
        ([5, 5], 10, 0),
        ([5, 5, 5], 10, 1),
        ([5, 20], 10, 1),
        ([0, 0, 0], 2, 1),
        ([5, 5], 0, 2),
    ],
)
def test_what_a_ring_can_do_without(keys: list[int], keys_max: int, count: int) -> None:
    assert droppable(keys, keys_max) == count


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 8))
def test_ranges_are_shared_out_whole_and_in_order(sizes: list[int], tasks: int) -> None:
    ranges = [
        PartitionRange(PartitionId(at), QueryPlace(), Seq(size)) for at, size in enumerate(sizes)
    ]
    shared = shared_out(ranges, tasks)
    assert [each for some in shared for each in some] == ranges
    assert len(shared) <= tasks
    assert all(shared)


def test_a_version_rises_with_the_era_first() -> None:
    assert version(1, NO_SEQ) > version(0, Seq(2**47)) > version(0, Seq(1))
