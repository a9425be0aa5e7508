"""From where a client may stream: the seed's nine tables, and what they leave open (U1)."""

from typing import NamedTuple

import pytest

from millrace.core.documents.document import SEQ_MAX, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.rollback import (
    Place,
    Refuse,
    RefuseReason,
    Start,
    StartReason,
    find_start,
)
from tests.core.documents.partition_samples import BA5E, CAFE, DEAD, log


class Table(NamedTuple):
    """One of the seed's examples, and its answer."""

    master: FailoverLog
    client: FailoverLog
    snapshot: int
    seen: int
    answer: int
    why: StartReason

    def place(self, running: int = SEQ_MAX) -> Place:
        return Place(self.client, Seq(self.snapshot), Seq(self.seen), Seq(running))


ONE = log((CAFE, 0))
FAILED_OVER_AT_5 = log((DEAD, 5), (CAFE, 0))
FAILED_OVER_AT_8 = log((DEAD, 8), (CAFE, 0))
OTHERWISE_AT_7 = log((BA5E, 7), (CAFE, 0))

TABLES = {
    "T1_first_connection": Table(ONE, NO_LOG, 0, 0, 0, StartReason.FIRST),
    "T2_no_snapshot_was_complete_yet": Table(ONE, ONE, 0, 5, 5, StartReason.EQUAL_LOGS),
    "T3_in_the_middle_of_a_snapshot": Table(ONE, ONE, 6, 7, 7, StartReason.EQUAL_LOGS),
    "T4_the_new_master_had_less": Table(FAILED_OVER_AT_5, ONE, 6, 7, 5, StartReason.BRANCHED),
    "T5_the_new_master_had_more": Table(FAILED_OVER_AT_8, ONE, 6, 7, 6, StartReason.BRANCHED),
    "T6_another_master_was_followed": Table(
        FAILED_OVER_AT_8, OTHERWISE_AT_7, 7, 9, 7, StartReason.BRANCHED
    ),
    "T7_and_none_of_its_snapshots_was_complete": Table(
        FAILED_OVER_AT_8, OTHERWISE_AT_7, 6, 9, 6, StartReason.BRANCHED
    ),
    "T8_nothing_in_common": Table(
        log((DEAD, 0)), OTHERWISE_AT_7, 7, 9, 0, StartReason.NO_COMMON_ID
    ),
    "cluster_C_meets_B": Table(FAILED_OVER_AT_5, ONE, 8, 8, 5, StartReason.BRANCHED),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_the_tables_of_the_seed_hold(table: Table) -> None:
    found = find_start(table.master, table.place())
    assert isinstance(found, Start)
    assert (found.seq, found.reason) == (table.answer, table.why)


def written_rule(master: FailoverLog, client: Place) -> int:
    """As the seed's text has it: always the smaller of the two next newer entries."""
    mine = [
        (None, client.snapshot),
        *((e.id, e.seq) for e in client.log.up_to(client.snapshot).entries),
    ]
    theirs = [(None, client.seen), *((e.id, e.seq) for e in master.entries)]
    for at, (id, _) in enumerate(mine[1:]):
        for at_master, (master_id, _) in enumerate(theirs[1:]):
            if id == master_id:
                return min(mine[at][1], theirs[at_master][1])
    return 0


def test_the_rule_as_written_fails_two_of_its_own_tables() -> None:
    wrong = {
        name: written_rule(table.master, table.place())
        for name, table in TABLES.items()
        if written_rule(table.master, table.place()) != table.answer
    }
    assert wrong == {"T2_no_snapshot_was_complete_yet": 0, "T3_in_the_middle_of_a_snapshot": 6}


@pytest.mark.parametrize(
    "snapshot",
    [pytest.param(7, id="T9_that_the_seed_calls_impossible"), pytest.param(6, id="T9_with_6")],
)
def test_a_master_from_before_the_one_i_know_is_refused(snapshot: int) -> None:
    """With snapshot 6 the rule would drop the newer entry, and say 9: of a dead branch."""
    found = find_start(ONE, Place(OTHERWISE_AT_7, Seq(snapshot), Seq(9)))
    assert isinstance(found, Refuse)
    assert found.reason is RefuseReason.STALE_MASTER


@pytest.mark.parametrize(
    ("running", "answer", "why"),
    [
        pytest.param(8, 7, StartReason.SNAPSHOT_CONTAINED, id="it_ends_where_the_master_went_on"),
        pytest.param(7, 7, StartReason.SNAPSHOT_CONTAINED, id="it_ends_below"),
        pytest.param(9, 6, StartReason.BRANCHED, id="it_ends_above_so_something_may_be_elided"),
        pytest.param(SEQ_MAX, 6, StartReason.BRANCHED, id="its_end_is_not_known"),
    ],
)
def test_the_end_of_the_running_snapshot_may_save_the_rollback(
    running: int, answer: int, why: StartReason
) -> None:
    table = TABLES["T5_the_new_master_had_more"]
    found = find_start(table.master, table.place(running))
    assert isinstance(found, Start)
    assert (found.seq, found.reason) == (answer, why)


def test_a_snapshot_of_a_dropped_branch_saves_nothing() -> None:
    """What runs is of ba5e, whose seqs say nothing of what the master has."""
    table = TABLES["T7_and_none_of_its_snapshots_was_complete"]
    found = find_start(table.master, table.place(running=8))
    assert isinstance(found, Start) and found.seq == 6


def test_a_log_that_lost_old_entries_is_of_the_same_branch() -> None:
    found = find_start(log((DEAD, 5)), Place(FAILED_OVER_AT_5, Seq(6), Seq(7)))
    assert isinstance(found, Start)
    assert (found.seq, found.reason) == (7, StartReason.SAME_BRANCH)


def test_who_has_less_of_the_same_history_is_refused() -> None:
    found = find_start(ONE, Place(ONE, Seq(6), Seq(7)), high=Seq(6))
    assert isinstance(found, Refuse) and found.reason is RefuseReason.LAGGING


def test_who_has_just_as_much_is_not() -> None:
    found = find_start(ONE, Place(ONE, Seq(6), Seq(7)), high=Seq(7))
    assert isinstance(found, Start) and found.seq == 7


def test_who_has_no_failover_log_is_refused() -> None:
    """A node that is just getting the partition: nobody throws all away because of it."""
    found = find_start(NO_LOG, Place(ONE, Seq(6), Seq(7)))
    assert isinstance(found, Refuse) and found.reason is RefuseReason.NO_MASTER


@pytest.mark.parametrize(
    ("purged", "answer", "why"),
    [
        pytest.param(6, 7, StartReason.EQUAL_LOGS, id="below_the_start"),
        pytest.param(7, 7, StartReason.EQUAL_LOGS, id="at_the_start"),
        pytest.param(8, 0, StartReason.PURGED, id="above_the_start"),
    ],
)
def test_below_the_purge_seq_one_starts_from_0(purged: int, answer: int, why: StartReason) -> None:
    found = find_start(ONE, Place(ONE, Seq(6), Seq(7)), high=Seq(9), purged=Seq(purged))
    assert isinstance(found, Start)
    assert (found.seq, found.reason) == (answer, why)


def test_a_client_that_starts_from_0_does_not_mind_the_purge_seq() -> None:
    found = find_start(ONE, Place(), high=Seq(9), purged=Seq(8))
    assert isinstance(found, Start) and found.reason is StartReason.FIRST
