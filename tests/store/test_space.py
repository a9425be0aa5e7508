"""Trimmed and dropped blocks give their room back, in small portions, even after a restart."""

import time
from collections.abc import Callable

import pytest

from millrace.limits import KIB, MIB, RECLAIM_BLOCKS_MAX
from millrace.types import Ack, LogId, Lsn
from tests.conformance.store_suite import LOG, PLACEMENT, held, known, make_block
from tests.store.rig import LmdbRig

OpenRig = Callable[..., LmdbRig]


def put_many(rig: LmdbRig, count: int, log: LogId = LOG) -> None:
    for first in range(1, count + 1):
        rig.store.put(make_block(first, log=log, size=10), PLACEMENT, Ack.DISK)
    assert rig.settle() is None


def test_a_sliding_window_does_not_grow_the_file(open_rig: OpenRig) -> None:
    rig = open_rig(512 * MIB)
    pages: list[int] = []
    for first in range(1, 401):
        size = (64 + first * 37 % 200) * KIB
        rig.store.put(make_block(first, size=size), PLACEMENT, Ack.DISK)
        if first > 40:
            rig.store.trim(LOG, Lsn(first - 40))
        rig.settle()
        pages.append(rig.store.directory.environment.info()["last_pgno"])
    assert known(rig.store).blocks == 41
    assert pages[-1] < 2 * pages[100]
    assert pages[-1] <= pages[250] * 1.1


@pytest.mark.parametrize("is_crashed", [False, True], ids=["running", "crashed"])
@pytest.mark.parametrize("is_dropped", [False, True], ids=["trim", "drop"])
def test_a_long_prefix_is_deleted_in_portions(
    open_rig: OpenRig, is_dropped: bool, is_crashed: bool
) -> None:
    rig = open_rig(256 * MIB)
    count = 12 * RECLAIM_BLOCKS_MAX
    put_many(rig, count)
    used = rig.store.usage().bytes_used
    commits = rig.store.commits
    if is_dropped:
        rig.store.drop(LOG)
    else:
        rig.store.trim(LOG, Lsn(count + 1))
    assert held(rig.store) == []
    assert rig.settle() is None
    assert rig.store.commits < commits + 6
    if is_crashed:
        rig.crash()
        assert held(rig.store) == []
        commits = 0
    rig.run_until(lambda: rig.store.usage().bytes_used < used / 4)
    if is_dropped:
        assert rig.store.logs() == []
    else:
        rig.run_until(lambda: known(rig.store).blocks == 0)
        assert known(rig.store).bytes == 0
    assert rig.store.commits >= commits + 2


@pytest.mark.alone
def test_opening_does_not_depend_on_the_length_of_the_log(open_rig: OpenRig) -> None:
    def opening_s(rig: LmdbRig) -> float:
        times = []
        for _ in range(5):
            rig.store.close()
            begin = time.perf_counter()
            rig.store = rig.open()
            times.append(time.perf_counter() - begin)
        return min(times)

    small, large = open_rig(256 * MIB), open_rig(256 * MIB)
    put_many(small, 10)
    put_many(large, 20_000)
    assert opening_s(large) < 3 * opening_s(small) + 0.005
    assert known(large.store).end == 20_001
