"""The simulated disk of documents keeps the contract that LMDB keeps."""

from collections.abc import Callable
from random import Random

import pytest

from millrace.sim.documents.disk import DocumentDisk, SimDocuments
from millrace.sim.schedule import Schedule
from millrace.store.contract import StoreFailed
from tests.conformance.document_store_rig import (
    BUCKET,
    PARTITION,
    ROOM_BYTES,
    OpenDocumentRig,
    batch,
    doc,
    names,
    scanned,
    write,
)
from tests.conformance.document_store_suite import DocumentStoreSuite

WRITES_MAX = 30  # Under way when a process dies.


class SimDocumentRig:
    def __init__(self, room_bytes: int, seed: int) -> None:
        self.schedule = Schedule()
        self.disk = DocumentDisk(room_bytes)
        self._choices = Random(seed)
        self.store = self._open()

    def _open(self) -> SimDocuments:
        return SimDocuments(self.schedule.after, self.disk)

    def run_until(self, is_enough: Callable[[], bool]) -> None:
        if not is_enough():
            self.schedule.run(2**60, lambda: not is_enough())
        assert is_enough(), "nothing more happens"

    def crash(self, kept: int | None = None) -> None:
        self.store.crash(self._choices.randint(0, WRITES_MAX) if kept is None else kept)
        self.store = self._open()

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def damage(self, key: bytes) -> None:
        self.disk.rot(BUCKET, PARTITION, key)


class TestSimDocuments(DocumentStoreSuite):
    @pytest.fixture(params=range(3))
    def open_rig(self, request: pytest.FixtureRequest) -> OpenDocumentRig:
        seed: int = request.param
        return lambda room_bytes: SimDocumentRig(room_bytes, seed)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_crash_keeps_as_many_writes_as_it_is_told(kept: int) -> None:
    rig = SimDocumentRig(ROOM_BYTES, 0)
    told: list[StoreFailed | None] = []
    for seq in (1, 2, 3):
        rig.store.write([batch(doc(f"k{seq}", seq))], told.append)
    rig.crash(kept)
    assert names(scanned(rig)) == [(f"k{seq}", seq) for seq in range(1, kept + 1)]
    rig.schedule.run(2**60, lambda: True)
    assert told == []


def test_a_write_takes_the_disks_time() -> None:
    rig = SimDocumentRig(ROOM_BYTES, 0)
    rig.store.write_us = 700
    assert write(rig, batch(doc("a", 1))) is None
    assert rig.schedule.now_us == 700
