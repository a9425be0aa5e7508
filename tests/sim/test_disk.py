"""The simulated disk keeps the contract that LMDB keeps: the simulator's findings carry over."""

from collections.abc import Callable
from random import Random

import pytest

from millrace.sim.disk import Disk
from millrace.sim.schedule import Schedule
from millrace.sim.store import SimulatedStore
from millrace.store.contract import StoreFailed
from millrace.types import Ack, Block, Placement
from tests.conformance.store_suite import OpenRig, StoreSuite


class SimulatedRig:
    def __init__(self, room_bytes: int, seed: int) -> None:
        self._schedule = Schedule()
        self._disk = Disk(room_bytes)
        self._rng = Random(seed)
        self._open()

    def _open(self) -> None:
        self.store = SimulatedStore(self._disk, self._schedule.after, self._rng, 500)

    def settle(self, ack: Ack = Ack.DISK) -> StoreFailed | None:
        answers: list[StoreFailed | None] = []
        self.store.barrier(ack, answers.append)
        self._schedule.run(2**60, lambda: not answers)
        assert answers, "the barrier was never answered"
        return answers[0]

    def crash(self) -> None:
        self.store.crash(self._rng)
        self._open()

    def reopen(self) -> None:
        self.store.close()
        self._open()

    def damage(self, block: Block) -> None:
        self._disk.rot(block.log, block.first)


class TestSimulatedStore(StoreSuite):
    @pytest.fixture(params=range(3))
    def open_rig(self, request: pytest.FixtureRequest) -> OpenRig:
        seed: int = request.param
        return lambda room_bytes: SimulatedRig(room_bytes, seed)


def test_a_crash_may_keep_what_was_not_acknowledged(
    make_block: Callable[[int], Block],
) -> None:
    kept = set()
    for seed in range(40):
        disk = Disk(1_000_000)
        store = SimulatedStore(disk, Schedule().after, Random(seed), 500)
        for first in (1, 2, 3):
            store.put(make_block(first), Placement(()), Ack.DISK)
        kept.add(store.crash(Random(seed)))
    assert kept == {0, 1, 2, 3}
