"""A partition as its master changes it: seqs, CAS, tombstones, expiry, repair (R-F, U7, U9)."""

import pytest

from millrace.core.documents.document import ChangeKind, Document, PartitionState, Seq
from tests.core.documents.partition_samples import (
    NOW_US,
    deletion,
    flush,
    master,
    mutation,
    replica,
    seqs,
    values,
)

SECOND_US = 1_000_000
NOW_S = NOW_US // SECOND_US


def nowhere(_: bytes) -> Seq:
    return Seq(0)


def test_every_change_takes_the_next_seq() -> None:
    partition = master(b"a", b"b")
    tombstone = partition.delete(b"a", NOW_US)
    assert tombstone is not None and tombstone.seq == 3
    assert partition.store(b"b", b"newer", 0, 0, NOW_US).seq == 4


def test_what_refuses_a_change_takes_no_seq() -> None:
    partition = master(b"a")
    assert partition.delete(b"missing", NOW_US) is None
    assert partition.find(b"missing", NOW_US) is None
    assert partition.high == 1


def test_of_a_master_everything_is_complete_at_once() -> None:
    partition = master(b"a", b"b")
    place = (partition.seen, partition.complete, partition.running, partition.high)
    assert place == (2, 2, 2, 2)
    assert partition.is_whole


def test_an_update_leaves_one_version_in_table_and_queue() -> None:
    partition = master(b"a", b"b")
    newer = partition.store(b"a", b"newer", 5, 9, NOW_US, datatype=1)
    assert (newer.flags, newer.expiry_s, newer.datatype) == (5, 9, 1)
    assert partition.peek(b"a") is newer
    assert seqs(partition.queue.snapshot()) == [2, 3]


@pytest.mark.parametrize(
    ("clock_us", "cas"),
    [
        pytest.param(NOW_US + 50, NOW_US + 50, id="time_goes_on"),
        pytest.param(NOW_US, NOW_US + 1, id="it_stands_still"),
        pytest.param(NOW_US - 50, NOW_US + 1, id="it_goes_back"),
    ],
)
def test_cas_is_the_time_made_unique(clock_us: int, cas: int) -> None:
    partition = master(b"a")
    assert partition.store(b"a", b"", 0, 0, clock_us).cas == cas


def test_a_new_master_gives_a_cas_above_what_it_was_given() -> None:
    """Its clock may be behind the one before; a client's old CAS must not fit."""
    partition = replica(mutation(b"a", 9))
    partition.promote(2, partition.log.newest, is_takeover=True)
    assert partition.store(b"a", b"", 0, 0, now_us=5).cas == NOW_US + 10


def test_many_at_once_are_as_one_after_another() -> None:
    one, many = master(b"a"), master(b"a")
    items = [(b"a", b"1", 1, 0), (b"b", b"2", 2, 7), (b"a", b"3", 3, 0)]
    told = list[int]()
    many.on_change.append(lambda: told.append(many.high))
    stored = many.store_many(items, NOW_US)
    assert stored == [one.store(*item, NOW_US) for item in items]
    assert many.row() == one.row()
    assert list(many.queue.snapshot()) == list(one.queue.snapshot())
    assert many.memory_bytes == one.memory_bytes
    assert told == [4]


def test_nothing_at_once_is_no_change() -> None:
    partition = master(b"a")
    assert partition.store_many([], NOW_US) == []
    assert partition.high == 1


# -- Tombstones -------------------------------------------------------------------------------


def test_a_tombstone_says_when_it_was_made() -> None:
    tombstone = master(b"a").delete(b"a", NOW_US)
    assert tombstone is not None
    assert (tombstone.kind, tombstone.expiry_s) == (ChangeKind.DELETION, NOW_S)
    assert tombstone.value == b""


def test_a_tombstone_is_in_the_table_until_it_is_on_disk() -> None:
    partition = master(b"a")
    tombstone = partition.delete(b"a", NOW_US)
    assert partition.table == {b"a": tombstone}
    assert partition.peek(b"a") is None
    flush(partition)
    assert partition.table == {}
    assert partition.memory_bytes == 0


def test_a_document_stored_again_survives_the_flush_of_its_tombstone() -> None:
    partition = master(b"a")
    partition.delete(b"a", NOW_US)
    taken = partition.take_flush()
    again = partition.store(b"a", b"again", 0, 0, NOW_US)
    assert taken is not None
    partition.flushed(taken)
    assert partition.peek(b"a") is again
    assert list(partition.queue.snapshot()) == [again]


def test_what_is_deleted_cannot_be_deleted_again() -> None:
    partition = master(b"a")
    partition.delete(b"a", NOW_US)
    assert partition.delete(b"a", NOW_US) is None


# -- Expiry -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expiry_s", "is_found"),
    [
        pytest.param(0, True, id="never"),
        pytest.param(NOW_S + 1, True, id="later"),
        pytest.param(NOW_S, False, id="now"),
        pytest.param(1, False, id="long_ago"),
    ],
)
def test_a_document_is_found_until_it_expires(expiry_s: int, is_found: bool) -> None:
    partition = master()
    partition.store(b"a", b"value", 0, expiry_s, NOW_US)
    assert (partition.find(b"a", NOW_US) is not None) is is_found
    assert (partition.high == 1) is is_found


def test_expiry_is_a_change_of_its_own_kind() -> None:
    partition = master()
    partition.store(b"a", b"value", 0, 1, NOW_US)
    partition.find(b"a", NOW_US)
    (tombstone,) = partition.queue.snapshot()
    assert (tombstone.kind, tombstone.seq) == (ChangeKind.EXPIRATION, 2)


def test_a_client_that_deletes_what_has_expired_deletes_nothing() -> None:
    partition = master()
    partition.store(b"a", b"value", 0, 1, NOW_US)
    assert partition.delete(b"a", NOW_US) is None
    (tombstone,) = partition.queue.snapshot()
    assert tombstone.kind is ChangeKind.EXPIRATION


def test_expiry_that_is_carried_out_tells_its_tombstone() -> None:
    partition = master()
    partition.store(b"a", b"value", 0, 1, NOW_US)
    tombstone = partition.delete(b"a", NOW_US, ChangeKind.EXPIRATION)
    assert tombstone is not None and tombstone.kind is ChangeKind.EXPIRATION


def test_a_replica_finds_nothing_expired_but_changes_nothing() -> None:
    partition = master()
    partition.store(b"a", b"value", 0, 1, NOW_US)
    partition.set_state(PartitionState.REPLICA, 2)
    assert partition.find(b"a", NOW_US) is None
    assert partition.high == 1


# -- Repair -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "taken", "after"),
    [
        pytest.param(mutation(b"a", 8, b"theirs"), [b"a"], b"theirs", id="an_update"),
        pytest.param(mutation(b"new", 8, b"theirs"), [b"new"], b"theirs", id="a_creation"),
        pytest.param(deletion(b"a", 8), [b"a"], None, id="a_deletion"),
        pytest.param(mutation(b"b", 8, b"theirs"), [], b"value of b", id="it_was_changed_since"),
        pytest.param(deletion(b"b", 8), [], b"value of b", id="a_deletion_of_what_was_changed"),
        pytest.param(deletion(b"new", 8), [], None, id="a_deletion_of_what_is_not_there"),
    ],
)
def test_a_repair_is_taken_unless_the_document_is_newer_here(
    offered: Document, taken: list[bytes], after: bytes | None
) -> None:
    """The rollback goes to 1: `a` was changed there last, `b` after it."""
    partition = master(b"a", b"b")
    assert partition.repair(Seq(1), [offered], nowhere, NOW_US) == taken
    assert values(partition).get(offered.key) == after
    assert partition.high == 2 + len(taken)


@pytest.mark.parametrize(
    ("tombstone_seq", "taken"),
    [pytest.param(1, [b"gone"], id="not_newer"), pytest.param(2, [], id="newer")],
)
def test_a_tombstone_that_is_on_disk_alone_counts(tombstone_seq: int, taken: list[bytes]) -> None:
    partition = master(b"a", b"b")
    offered = [mutation(b"gone", 8)]
    assert partition.repair(Seq(1), offered, lambda _: Seq(tombstone_seq), NOW_US) == taken


# -- Purging ----------------------------------------------------------------------------------


def test_purged_tombstones_leave_the_disk_and_raise_the_purge_seq() -> None:
    partition = master(b"a", b"b")
    tombstone = partition.delete(b"a", NOW_US)
    assert tombstone is not None
    flush(partition)
    partition.purge([tombstone])
    taken = flush(partition)
    assert (taken.removed, taken.row.purged) == ((b"a",), 3)


def test_a_document_that_lives_again_is_not_purged() -> None:
    partition = master(b"a")
    tombstone = partition.delete(b"a", NOW_US)
    assert tombstone is not None
    flush(partition)
    partition.store(b"a", b"again", 0, 0, NOW_US)
    flush(partition)
    partition.purge([tombstone])
    assert partition.take_flush() is None
    assert partition.purged == 0
