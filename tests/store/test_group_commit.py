"""Many barriers, few fsyncs; who waits for whom."""

from collections.abc import Callable

import pytest

from millrace.core.messages import Refusal, Standing
from millrace.limits import COMMIT_BYTES_MAX, COMMIT_WAIT_BYTES, MIB, RECLAIM_BLOCKS_MAX
from millrace.store.changes import Writing
from millrace.store.contract import StoreFailed
from millrace.types import Ack, LogId, Lsn
from tests.conformance.store_suite import LOG, MEMBER, OTHER, PLACEMENT, held, known, make_block
from tests.store.rig import WAIT_S, LmdbRig

OpenRig = Callable[..., LmdbRig]


def test_many_barriers_share_few_commits(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    answers: list[StoreFailed | None] = []
    before = rig.store.commits
    for first in range(1, 1001):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
    rig.run_until(lambda: len(answers) == 1000)
    assert answers == [None] * 1000
    assert rig.store.commits - before <= 250
    assert rig.store.unsynced_bytes == 0


def test_outcomes_come_in_one_call_per_commit(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    for first in range(1, 301):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        rig.store.barrier(Ack.DISK, lambda failure: None)
    rig.store.close()
    assert rig.calls.qsize() <= rig.store.commits


def test_a_memory_barrier_does_not_wait_for_the_disk(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    rig.settle(Ack.MEMORY)  # The first one marks the log, on disk.
    commits = rig.store.commits
    assert commits > 0
    for first in range(2, 40):
        rig.store.put(make_block(first), PLACEMENT, Ack.MEMORY)
        rig.settle(Ack.MEMORY)
    assert rig.store.commits <= commits + 2
    rig.run_until(lambda: rig.store.unsynced_bytes == 0)  # They become durable by themselves.
    rig.crash()
    assert held(rig.store) == list(range(1, 40))


def test_blocks_become_durable_behind_a_memory_barrier_that_had_nothing_to_tell(
    open_rig: OpenRig,
) -> None:
    """Also when the thread was asleep at the barrier: it may be after any of a few rounds."""
    rig = open_rig(256 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    for first in range(2, 7):
        assert rig.settle() is None
        assert rig.settle(Ack.MEMORY) is None
        rig.store.put(make_block(first), PLACEMENT, Ack.MEMORY)
        rig.run_until(lambda: rig.store.unsynced_bytes == 0)
    rig.crash()
    assert held(rig.store) == list(range(1, 7))


def test_a_failure_behind_an_answered_barrier_is_told_to_no_later_one(open_rig: OpenRig) -> None:
    """The barrier comes when the commit of its block has failed already."""
    rig = open_rig(16 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    rig.settle()
    rig.store.put(make_block(2, size=15 * MIB), PLACEMENT, Ack.MEMORY)
    rig.run_until(lambda: rig.store.unsynced_bytes == 0)
    assert rig.settle(Ack.MEMORY) is None
    rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
    assert rig.settle() is None


def test_a_memory_barrier_waits_for_what_was_put_for_the_disk(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    for first in (1, 2):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
        rig.settle(Ack.MEMORY)
        assert rig.store.unsynced_bytes == 0


def test_a_disk_barrier_cuts_the_wait_short(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    rig.settle()
    rig.store.put(make_block(2), PLACEMENT, Ack.MEMORY)
    rig.store.put(make_block(1, log=OTHER), PLACEMENT, Ack.DISK)
    assert rig.settle() is None
    assert rig.store.unsynced_bytes == 0


def test_enough_bytes_cut_the_wait_short(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    rig.store.put(make_block(1, size=COMMIT_WAIT_BYTES), PLACEMENT, Ack.MEMORY)
    rig.run_until(lambda: rig.store.unsynced_bytes == 0)
    assert rig.store.commits > 0


def test_unsynced_bytes_make_the_store_busy(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB, unsynced_bytes_max=1000)
    seen = [rig.store.is_busy]
    rig.store.put(make_block(1, size=1000), PLACEMENT, Ack.DISK)
    seen.append(rig.store.is_busy)
    rig.settle()
    seen.append(rig.store.is_busy)
    assert seen == [False, True, False]


def test_close_makes_everything_durable_and_answers(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    answers: list[StoreFailed | None] = []
    for first in range(1, 100):
        rig.store.put(make_block(first), PLACEMENT, Ack.MEMORY)
    rig.store.barrier(Ack.DISK, answers.append)
    rig.store.barrier(Ack.MEMORY, answers.append)
    rig.reopen()
    assert answers == [None, None]
    assert held(rig.store) == list(range(1, 100))


def test_a_closed_loop_does_not_lose_answers(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    rig.is_loop_closed.set()
    answers: list[StoreFailed | None] = []
    rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
    rig.store.barrier(Ack.DISK, answers.append)
    assert rig.is_call_refused.wait(WAIT_S)
    rig.store.close()
    assert answers == [None]


def test_a_commit_takes_a_bounded_part_of_the_queue(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB)
    answers: list[StoreFailed | None] = []
    for first in range(1, 13):
        rig.store.put(make_block(first, size=8 * MIB), PLACEMENT, Ack.DISK)
        rig.store.barrier(Ack.DISK, answers.append)
    rig.run_until(lambda: len(answers) == 12)
    assert rig.store.commits >= 12 * 8 * MIB // (COMMIT_BYTES_MAX + 8 * MIB)
    assert rig.store.unsynced_bytes == 0
    assert held(rig.store) == list(range(1, 13))


def test_a_store_that_cannot_be_read_either_shows_nothing(open_rig: OpenRig) -> None:
    """A meta page that cannot be written leaves LMDB unusable until it is opened again."""
    rig = open_rig(64 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
    rig.settle()
    with rig.failing_writes("/dev/null", only_meta=True):
        rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
        failure = rig.settle()
    assert failure is not None
    assert failure.reason is Refusal.UNAVAILABLE
    assert rig.store.logs() == []
    assert rig.store.unsynced_bytes == 0
    rig.reopen()
    assert held(rig.store) == [1]


def test_a_failed_disk_ends_all_writing(open_rig: OpenRig) -> None:
    """After an error that is not a full disk the store shows what the disk holds, for ever."""
    rig = open_rig(64 * MIB)
    rig.store.set_fence(LOG, MEMBER)
    for first in range(1, 6):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
    rig.settle()
    with rig.failing_writes("/dev/null"):  # Opened for reading: writing to it is an error.
        rig.store.put(make_block(6), PLACEMENT, Ack.DISK)
        rig.store.trim(LOG, make_block(3).first)
        failure = rig.settle()
    assert failure is not None
    assert failure.reason is Refusal.UNAVAILABLE
    assert "restart the node" in failure.detail
    assert rig.store.unsynced_bytes == 0
    assert (known(rig.store).trim_end, held(rig.store)) == (1, [1, 2, 3, 4, 5])
    rig.store.put(make_block(6), PLACEMENT, Ack.DISK)
    rig.store.set_fence(LogId(99), MEMBER)
    assert rig.settle() == failure
    assert rig.settle(Ack.MEMORY) == failure
    assert held(rig.store) == [1, 2, 3, 4, 5]
    rig.reopen()
    assert held(rig.store) == [1, 2, 3, 4, 5]
    rig.store.put(make_block(6), PLACEMENT, Ack.DISK)
    assert rig.settle() is None


@pytest.mark.parametrize("is_readable", [True, False], ids=["readable", "unreadable"])
def test_a_failed_disk_is_told_of_logs_whose_acknowledged_blocks_it_lost(
    open_rig: OpenRig, is_readable: bool
) -> None:
    rig = open_rig(64 * MIB)
    rig.store.set_fence(LOG, MEMBER)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    rig.settle()
    with rig.failing_writes("/dev/null", only_meta=not is_readable):
        rig.store.put(make_block(2), PLACEMENT, Ack.MEMORY)
        assert rig.settle(Ack.MEMORY) is None
        rig.run_until(lambda: rig.store.failure is not None and rig.store.unsynced_bytes == 0)
    assert rig.dirty == [LOG]
    if is_readable:
        assert known(rig.store).fence.standing is Standing.DIRTY
        assert held(rig.store) == [1]
    else:
        assert rig.store.state(LOG) is None


def test_a_failed_disk_is_told_before_any_barrier(open_rig: OpenRig) -> None:
    rig = open_rig(64 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
    rig.store.put(make_block(1, log=OTHER), PLACEMENT, Ack.DISK)
    rig.settle()
    told: list[list[LogId]] = []
    with rig.failing_writes("/dev/null"):
        rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
        rig.store.barrier(Ack.DISK, lambda failure: told.append(list(rig.dirty)))
        rig.run_until(lambda: bool(told))
    assert told == [sorted([LOG, OTHER])]
    rig.settle()
    assert rig.dirty == told[0]  # Once.


def test_any_error_of_the_commit_thread_ends_all_writing(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that neither LMDB nor the disk made: whoever waits must hear of it."""
    rig = open_rig(64 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
    rig.settle()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(Writing, "apply", broken)
    rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
    failure = rig.settle()
    assert failure is not None
    assert failure.reason is Refusal.UNAVAILABLE
    assert "RuntimeError: injected" in failure.detail
    assert rig.store.failure == failure
    monkeypatch.undo()
    rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
    assert rig.settle() == failure
    assert held(rig.store) == [1]
    rig.reopen()
    assert held(rig.store) == [1]


def test_an_error_while_space_is_reclaimed_ends_all_writing_too(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig(64 * MIB)
    blocks = RECLAIM_BLOCKS_MAX + 10
    for first in range(1, blocks + 1):
        rig.store.put(make_block(first), PLACEMENT, Ack.DISK)
    rig.settle()
    reclaim = Writing.reclaim
    calls: list[int] = []

    def broken_later(writing: Writing, blocks_max: int) -> None:
        calls.append(blocks_max)
        if len(calls) > 1:
            raise RuntimeError("injected")
        reclaim(writing, blocks_max)

    monkeypatch.setattr(Writing, "reclaim", broken_later)
    rig.store.trim(LOG, Lsn(blocks + 1))
    rig.settle()
    rig.run_until(lambda: rig.store.failure is not None)
    assert rig.settle() == rig.store.failure
