"""Runs and contexts in LMDB: what they take on disk, in memory and at opening, and old data."""

import time
from collections.abc import Callable

import lmdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.commit.record import StreamCommit
from millrace.limits import MIB, RECLAIM_BLOCKS_MAX, RUNS_HELD_MAX
from millrace.store.commit_runs import RunList, place_of
from millrace.store.commit_table import first_above, put_runs, runs_within
from millrace.store.layout import LogRow, number_key, open_tables
from millrace.types import LSN_MAX, Ack, LogId, Lsn, Version
from tests.conformance.commit_rig import (
    ONE,
    TWO,
    CommitLog,
    context_of,
    emptied,
    run,
    runs_of,
    shipped,
)
from tests.conformance.store_suite import LOG, PLACEMENT, held, known, make_block
from tests.store.rig import LmdbRig

OpenRig = Callable[..., LmdbRig]


def rows(rig: LmdbRig) -> int:
    """Of the table `commits`."""
    with rig.store.directory.environment.begin() as transaction:
        count: int = transaction.stat(rig.store.directory.tables.commits)["entries"]
    return count


def pages(rig: LmdbRig) -> int:
    last: int = rig.store.directory.environment.info()["last_pgno"]
    return last


def apart(count: int) -> list[StreamCommit]:
    """Runs of one entry each that cannot be joined."""
    return [run(each, each, 3 * each, 1) for each in range(1, count + 1)]


def commit_apart(rig: LmdbRig, count: int) -> None:
    runs = apart(count)
    for each in range(0, count, 100):
        portion = runs[each : each + 100]
        rig.store.commit(ONE, context_of(portion[-1]), portion)
    assert rig.settle() is None


def opening_s(rig: LmdbRig) -> float:
    times = []
    for _ in range(5):
        rig.store.close()
        begin = time.perf_counter()
        rig.store = rig.open()
        times.append(time.perf_counter() - begin)
    return min(times)


# -- What it takes -------------------------------------------------------------------------------


def test_a_log_with_one_stream_has_one_row(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    log = CommitLog(rig)
    for number in range(500):
        log.append(ONE, 2)
        if number % 50 == 0:
            rig.settle()
    rig.reopen()
    log.append(ONE, 2)
    rig.settle()
    assert rows(rig) == 1
    assert runs_of(rig.store, ONE) == [run(501, 1, 1, 1002)]


@pytest.mark.alone
def test_a_million_empty_commits_take_what_one_does(open_rig: OpenRig) -> None:
    """Neither the file nor the time to open it grows, nor do they make transactions (M3)."""
    few, many = open_rig(64 * MIB), open_rig(64 * MIB)
    for rig, count in ((few, 1), (many, 1_000_000)):
        context = context_of(CommitLog(rig).append(ONE, 3))
        rig.settle()
        commits, commit = rig.store.commits, rig.store.commit
        contexts = [emptied(context, version, 3 + version) for version in range(2, 1_002)]
        for at in range(count):
            commit(ONE, contexts[at % len(contexts)], ())
            if at % 250_000 == 0:
                rig.store.put(make_block(1 + at // 250_000, log=TWO), PLACEMENT, Ack.DISK)
                rig.settle()
        assert rig.store.commits - commits < 10
        rig.reopen()
        assert known(rig.store, ONE).context == contexts[(count - 1) % len(contexts)]
        assert rows(rig) == 1
    assert pages(many) <= pages(few) + 8
    assert opening_s(many) < 3 * opening_s(few) + 0.005


@pytest.mark.alone
def test_opening_does_not_depend_on_the_number_of_runs(open_rig: OpenRig) -> None:
    few, many = open_rig(256 * MIB), open_rig(256 * MIB)
    commit_apart(few, 10)
    commit_apart(many, 50_000)
    assert opening_s(many) < 3 * opening_s(few) + 0.005
    state = known(many.store, ONE)
    assert (state.first_run, state.last_run) == (run(1, 1, 3, 1), run(50_000, 50_000, 150_000, 1))


def test_memory_holds_the_newest_runs_alone(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    commit_apart(rig, 5_000)
    opened = rig.store._logs[ONE]
    assert len(opened.commits.runs) == RUNS_HELD_MAX
    assert runs_of(rig.store, ONE) == apart(5_000)
    assert [rig.store.locate(ONE, Lsn(local)) for local in (1, 2_500, 5_000, 5_001)] == [
        3,
        7_500,
        15_000,
        None,
    ]


def test_readers_at_the_tail_need_no_transaction(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    log = CommitLog(rig)
    for _ in range(5):
        log.append(ONE, 2)
        log.append(TWO, 1)
    rig.settle()
    shipment = rig.store.ship_committed([ONE, TWO], Lsn(1), LSN_MAX, MIB)
    assert len(shipment.blocks) == 10
    assert not shipment.is_mapped
    rig.reopen()
    shipment = rig.store.ship_committed([ONE, TWO], Lsn(1), LSN_MAX, MIB)
    assert shipment.is_mapped
    assert rig.store.scans_outstanding == 1
    shipment.release()
    assert rig.store.scans_outstanding == 0


# -- What it gives back --------------------------------------------------------------------------


def trim_most(rig: LmdbRig, count: int) -> None:
    rig.store.trim(ONE, Lsn(count))


def uncommit(rig: LmdbRig, count: int) -> None:
    rig.store.uncommit(ONE)


def drop(rig: LmdbRig, count: int) -> None:
    rig.store.drop(ONE)


@pytest.mark.parametrize("is_crashed", [False, True], ids=["running", "crashed"])
@pytest.mark.parametrize(("forget", "left"), [(trim_most, 1), (uncommit, 0), (drop, 0)])
def test_many_runs_are_deleted_in_portions(
    open_rig: OpenRig, forget: Callable[[LmdbRig, int], None], left: int, is_crashed: bool
) -> None:
    rig = open_rig(64 * MIB)
    count = 12 * RECLAIM_BLOCKS_MAX
    commit_apart(rig, count)
    forget(rig, count)
    assert len(runs_of(rig.store, ONE)) == left
    assert rig.settle() is None
    assert rows(rig) > RECLAIM_BLOCKS_MAX, "not in one transaction"
    if is_crashed:
        rig.crash()
    assert len(runs_of(rig.store, ONE)) == left
    rig.run_until(lambda: rows(rig) == left)


@pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
@pytest.mark.parametrize("end", [2, 1_000, 2_976, 2_977, 2_999, 3_000, 3_001])
def test_trimming_finds_the_lowest_run_that_is_left(
    open_rig: OpenRig, end: int, is_reopened: bool
) -> None:
    rig = open_rig(64 * MIB, runs_held_max=24)
    commit_apart(rig, 3_000)
    if is_reopened:
        rig.reopen()
    rig.store.trim(ONE, Lsn(end))
    for _ in range(2):
        assert runs_of(rig.store, ONE) == apart(3_000)[end - 1 :]
        assert known(rig.store, ONE).first_run == next(iter(apart(3_000)[end - 1 :]), None)
        assert rig.store.locate(ONE, Lsn(end - 1)) is None
        rig.reopen()


def test_remains_of_forgotten_runs_are_never_met(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    for number in range(1, 6):
        commit_apart(rig, 1_000)
        rig.store.uncommit(ONE)
        again = run(number, 1, 2, 40)
        rig.store.commit(ONE, context_of(again), [again])
        assert rig.settle() is None
        rig.crash()
        assert runs_of(rig.store, ONE) == [again]
        rig.store.uncommit(ONE)


# -- What was there before -----------------------------------------------------------------------


def test_a_directory_of_a_version_without_commits_opens(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    for first in (1, 2, 3):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
    rig.settle()
    rig.store.close()
    fields = LogRow.__struct_fields__.index("context")
    with lmdb.open(str(rig.data_file.parent), max_dbs=8) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as transaction:
            transaction.drop(tables.commits)
            row = msgspec.msgpack.decode(transaction.get(number_key(LOG), db=tables.logs) or b"")
            old = msgspec.msgpack.encode(row[:fields])
            transaction.put(number_key(LOG), old, db=tables.logs)
    rig.store = rig.open()
    assert held(rig.store) == [1, 2, 3]
    state = known(rig.store)
    assert (state.context, state.first_run, state.last_run) == (None, None, None)
    log = CommitLog(rig)
    log.append(ONE, 2)
    rig.reopen()
    assert shipped(rig.store) == ([1], LSN_MAX)


# -- Seeking -------------------------------------------------------------------------------------


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2**40), st.integers(1, 9)), min_size=1, max_size=40
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> lmdb.Environment:
    path = tmp_path_factory.mktemp("commits")
    return lmdb.open(str(path), max_dbs=8, sync=False)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 400), st.integers(0, 2**42), st.integers(0, 2**41))
def test_seeking_on_disk_finds_what_the_list_has(
    environment: lmdb.Environment,
    gaps: list[tuple[int, int, int]],
    local: int,
    first: int,
    length: int,
) -> None:
    """Whatever lies between the runs, and under other slots."""
    runs, local_end, end = RunList(), 1, 1
    for version, (skipped, ahead, count) in enumerate(gaps):
        runs.add(
            [StreamCommit(Version(version), Lsn(local_end + skipped), Lsn(end + ahead), count)]
        )
        local_end, end = local_end + skipped + count, end + ahead + count
    expected = list(runs.within(Lsn(0), LSN_MAX))
    tables = open_tables(environment)
    with environment.begin(write=True) as transaction:
        transaction.drop(tables.commits, delete=False)
        for slot in (3, 4, 5):
            put_runs(transaction, tables, slot, expected)
    with environment.begin(buffers=True) as transaction:
        assert list(runs_within(transaction, tables, 4, Lsn(first), Lsn(first + length))) == list(
            runs.within(Lsn(first), Lsn(first + length))
        )
        found = first_above(transaction, tables, 4, expected[0], Lsn(end), Lsn(local))
        above = [each for each in expected if each.local_end > local]
        assert found == next(iter(above), None)
        assert place_of(found, Lsn(local)) == place_of(runs.holding(Lsn(local)), Lsn(local))


def test_logs_without_streams_have_no_runs(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    rig.store.put(make_block(1, log=LogId(1)), PLACEMENT, Ack.DISK)
    rig.store.trim(LogId(1), Lsn(2))
    rig.settle()
    assert rows(rig) == 0
