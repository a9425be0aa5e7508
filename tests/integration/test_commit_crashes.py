"""kill -9 at two hundred moments of a replica's life: entries, runs and context stay in step."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import lmdb
import msgspec
import pytest

from millrace.codec.blocks import records
from millrace.core.commit.record import StreamRecord, stream_log_of
from millrace.core.commit.recovery import Quarantine, Valid, recover
from millrace.core.commit.replica import facts_of
from millrace.limits import MIB
from millrace.store.contract import Store
from millrace.store.directory import STORE_FOLDER
from millrace.types import FIRST_LSN, LSN_MAX, Lsn, StreamId
from tests.conformance.store_rig import known
from tests.store.rig import REPOSITORY, WAIT_S, LmdbRig
from tests.support import stream_process
from tests.support.played_appends import NEW_LOG
from tests.support.played_learning import LEARNER, source_context, source_run
from tests.support.played_node import (
    LOG,
    Acknowledged,
    Begun,
    Decided,
    Learned,
    Life,
    Over,
    Task,
    Told,
)

KILLS: Final = 200
TRANSACTIONS_MAX: Final = 12  # Of one life, before it ends; the first four open its streams.
JITTER_S: Final = 0.002  # About one more transaction.
LEARNING_KILLS: Final = 40
PLANTED_KILLS_MAX: Final = 60

Place = tuple[StreamId, Lsn]  # A position of a stream.
Check = Callable[[Store, "Ledger"], int]


class Ledger:
    """What is known by all that was told, whoever is dead."""

    def __init__(self) -> None:
        self.record = NEW_LOG
        self.acknowledged: dict[Place, tuple[Lsn, str]] = {}  # Where in the log, and what.
        self.decided: dict[Place, Lsn] = {}
        self.learned_end = FIRST_LSN

    def hear(self, told: Decided | Acknowledged | Learned) -> None:
        if isinstance(told, Learned):
            self.learned_end = told.local_end
            return
        if isinstance(told, Decided):
            assert told.record.high_watermark >= self.record.high_watermark
            self.record = told.record
            for stream in told.record.streams:
                self._decide(stream)
            return
        for at, value in enumerate(told.values):
            place = told.stream, Lsn(told.local + at)
            assert place not in self.acknowledged, "a position was acknowledged twice"
            self.acknowledged[place] = Lsn(told.first + at), value

    def _decide(self, stream: StreamRecord) -> None:
        for commit in stream.history:
            for at in range(commit.count):
                place = stream.stream, Lsn(commit.local + at)
                lsn = Lsn(commit.first + at)
                assert self.decided.setdefault(place, lsn) == lsn, "an entry was given two places"


class Lives:
    """Processes that live one after another, each on what the one before left."""

    def __init__(self, path: Path, forge: subprocess.Popen[bytes], seed: int) -> None:
        self.path = path
        self.ledger = Ledger()
        LmdbRig(path, stream_process.MAP_BYTES).store.close()
        self._store = path / STORE_FOLDER
        self._choices = random.Random(seed)
        self._number = 0
        assert forge.stdin is not None and forge.stdout is not None
        self._orders, self._told = forge.stdin, forge.stdout

    def live_and_die(self, task: Task) -> None:
        """It is killed so many transactions after it began, most often right after the last."""
        self._number += 1
        life = Life(self._number, os.fspath(self.path), task, self.ledger.record)
        with lmdb.open(os.fspath(self._store), readonly=True, lock=False) as environment:
            last = environment.info()["last_txnid"] + self._choices.randrange(TRANSACTIONS_MAX)
            self._orders.write(msgspec.json.encode(life) + b"\n")
            self._orders.flush()
            begun = _next(self._told)
            assert isinstance(begun, Begun)
            _spin_until(lambda: environment.info()["last_txnid"] >= last)
        end_s = time.perf_counter() + JITTER_S * self._choices.random() ** 3
        _spin_until(lambda: time.perf_counter() >= end_s)
        os.kill(begun.process_id, signal.SIGKILL)
        while not isinstance(told := _next(self._told), Over):
            assert not isinstance(told, Begun)
            self.ledger.hear(told)


def _next(pipe: IO[bytes]) -> Told:
    told: Told = msgspec.json.decode(pipe.readline(), type=Told)
    return told


def _spin_until(is_so: Callable[[], bool]) -> None:
    """Asleep, one would miss the moment."""
    deadline_s = time.perf_counter() + WAIT_S
    while not is_so():
        assert time.perf_counter() < deadline_s, "the process is stuck, or died by itself"


@contextmanager
def lives(path: Path, seed: int) -> Iterator[Lives]:
    command = [sys.executable, "-m", stream_process.__name__]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        start_new_session=True,
    ) as forge:
        try:
            yield Lives(path, forge, seed)
        finally:
            os.killpg(forge.pid, signal.SIGKILL)


# -- What must be true after each crash ------------------------------------------------------------


def check(store: Store, ledger: Ledger) -> int:
    """How many committed entries were read."""
    return sum(check_stream(store, each, ledger) for each in ledger.record.streams)


def check_stream(store: Store, stream: StreamRecord, ledger: Ledger) -> int:
    stream_log = stream_log_of(LOG, stream.stream)
    if store.state(stream_log) is None:
        assert stream.local_end == 1
        return 0
    state = known(store, stream_log)
    found = recover(facts_of(state))
    assert isinstance(found, Valid), found
    assert found.end >= stream.local_end >= found.local_end, "what was committed is here"
    values = held(store, stream.stream, state.trim_end, found.end)
    check_acknowledged(stream.stream, values, state.trim_end, ledger)
    return check_runs(store, stream.stream, values, found, ledger)


def held(store: Store, stream: StreamId, first: Lsn, end: Lsn) -> dict[Lsn, str]:
    """The name of each entry by its position in the stream: all of them, and readable."""
    scan = store.scan(stream_log_of(LOG, stream), first, end, 64 * MIB)
    found = {
        record.lsn: record.value.partition(b":")[0].decode()
        for block in scan.blocks
        for record in records(block)
    }
    scan.release()
    assert set(range(first, end)) <= found.keys()
    return found


def check_acknowledged(
    stream: StreamId, values: dict[Lsn, str], trim_end: Lsn, ledger: Ledger
) -> None:
    for place, (lsn, value) in ledger.acknowledged.items():
        if place[0] == stream and place[1] >= trim_end:
            assert values[place[1]] == value
            assert ledger.decided[place] == lsn


def check_runs(
    store: Store, stream: StreamId, values: dict[Lsn, str], valid: Valid, ledger: Ledger
) -> int:
    """Every committed entry lies in the log where it was decided to be, and is read there."""
    stream_log = stream_log_of(LOG, stream)
    shipment = store.ship_committed([stream_log], Lsn(1), LSN_MAX, 64 * MIB)
    read = {
        record.lsn: record.value.partition(b":")[0].decode()
        for block in shipment.blocks
        for record in records(block)
    }
    shipment.release()
    local = next(iter(values), valid.local_end)
    for lsn, value in read.items():
        assert ledger.decided[stream, local] == lsn
        assert values[local] == value
        local = Lsn(local + 1)
    assert local == valid.local_end
    return len(read)


def check_learner(store: Store, ledger: Ledger) -> int:
    """Whole, or known not to be; either way it has what it has taken, as the source has it."""
    stream_log = stream_log_of(LOG, LEARNER)
    state = store.state(stream_log)
    if state is None:
        return 0
    found = recover(facts_of(state))
    if isinstance(found, Valid):
        assert found.local_end == 1 or state.context == source_context(found.local_end)
    else:
        assert found.cause is Quarantine.CONTEXT_MISSING, found
    end = FIRST_LSN if state.last_run is None else state.last_run.local_end
    assert state.end >= end >= ledger.learned_end, "nothing is asked for again"
    values = held(store, LEARNER, FIRST_LSN, end)
    for local in range(1, end):
        assert values[Lsn(local)] == str(local)
        assert store.locate(stream_log, Lsn(local)) == source_run(local).first
    return len(values)


def die_again_and_again(path: Path, times: int, seed: int, task: Task, check: Check) -> Ledger:
    """Each death is looked into."""
    read = 0
    with lives(path, seed) as processes:
        for _ in range(times):
            processes.live_and_die(task)
            rig = LmdbRig(path, stream_process.MAP_BYTES)
            try:
                read += check(rig.store, processes.ledger)
            finally:
                rig.store.close()
    assert read > times, "there was something to be read"
    return processes.ledger


def test_nothing_is_out_of_step_whatever_write_is_cut_off(tmp_path: Path) -> None:
    ledger = die_again_and_again(tmp_path, KILLS, 4, Task.APPEND, check)
    assert ledger.record.trim_end > 1, "trims were cut off, too"
    assert ledger.record.streams[0].generation > KILLS / 2, "most lives came to their work"


def test_a_synchronization_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """M7."""
    ledger = die_again_and_again(tmp_path, LEARNING_KILLS, 6, Task.LEARN, check_learner)
    assert ledger.learned_end > LEARNING_KILLS, "most lives came to their work"


def test_a_context_in_a_transaction_of_its_own_is_found(tmp_path: Path) -> None:
    """The check can fail."""
    task = Task.APPEND_CONTEXT_FIRST
    with pytest.raises(AssertionError, match="SUFFIX_MISSING"):
        die_again_and_again(tmp_path, PLANTED_KILLS_MAX, 5, task, check)
