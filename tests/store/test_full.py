"""Disks that really refuse: a file size limit, and a device that is always full."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.codec.blocks import junk
from millrace.core.messages import Refusal, Standing
from millrace.limits import KIB, MIB
from millrace.store import room
from millrace.store.room import Room
from millrace.types import Ack, EntryKind, Lsn
from tests.conformance.store_suite import LOG, MEMBER, OTHER, PLACEMENT, held, known, make_block
from tests.store.rig import REPOSITORY, LmdbRig

OpenRig = Callable[..., LmdbRig]

LIMITED_CHILD = """
import resource, sys
from pathlib import Path
from tests.store import test_full
resource.setrlimit(resource.RLIMIT_FSIZE, (24 << 20, 24 << 20))
test_full.fill_and_trim(Path(sys.argv[1]))
print("survived")
"""


def fill_and_trim(path: Path) -> None:
    """Fill the disk three times over, with a map that is far larger."""
    rig = LmdbRig(path, 64 * MIB)
    first = 1
    for _ in range(3):
        while True:
            rig.store.put(make_block(first, size=300 * KIB), PLACEMENT, Ack.DISK)
            failure = rig.settle()
            if failure is not None:
                break
            first += 1
        assert failure.reason is Refusal.DISK_FULL, failure
        assert rig.store.usage().is_full
        assert known(rig.store).end == first
        rig.store.set_fence(OTHER, MEMBER)
        assert rig.settle() is None
        rig.store.trim(LOG, Lsn(first - 3))
        assert rig.settle() is None
        rig.run_until(lambda: known(rig.store).blocks == 3)
        assert not rig.store.usage().is_full
    assert first > 120
    rig.reopen()
    assert held(rig.store) == list(range(first - 3, first))
    rig.store.close()


def test_a_file_size_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED_CHILD, os.fspath(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY
    )
    assert result.stdout == "survived\n", result.stderr


def test_the_owner_hears_of_a_log_that_became_dirty(open_rig: OpenRig) -> None:
    rig = open_rig(16 * MIB)
    rig.store.set_fence(LOG, MEMBER)
    rig.store.put(make_block(1), PLACEMENT, Ack.MEMORY)
    rig.settle(Ack.MEMORY)
    rig.store.put(make_block(2, size=15 * MIB), PLACEMENT, Ack.MEMORY)
    rig.run_until(lambda: rig.dirty == [LOG])
    assert known(rig.store).fence.standing is Standing.DIRTY


def test_a_commit_that_meets_a_full_disk_loses_blocks_only(open_rig: OpenRig) -> None:
    """The room was there when looked at and is gone when written to; it comes back."""
    rig = open_rig(64 * MIB)
    rig.store.put(make_block(1), PLACEMENT, Ack.DISK)
    rig.settle()
    with rig.failing_writes("/dev/full"):
        rig.store.put(make_block(2, size=100 * KIB), PLACEMENT, Ack.DISK)
        rig.store.put(make_block(4), PLACEMENT, Ack.DISK)
        failure = rig.settle()
    assert failure is not None
    assert failure.reason is Refusal.DISK_FULL
    assert "No space left" in failure.detail
    assert rig.store.failure is None
    rig.store.set_fence(LOG, MEMBER)
    assert rig.settle() is None
    assert (known(rig.store).end, known(rig.store).sparse) == (2, [])
    rig.crash()
    assert known(rig.store).fence == MEMBER
    rig.store.put(make_block(2), PLACEMENT, Ack.DISK)
    assert rig.settle() is None


def test_a_full_store_still_takes_junk(open_rig: OpenRig) -> None:
    """So that readers get past the positions of writers that were refused."""
    rig = open_rig(8 * MIB)
    first = 1
    while True:
        rig.store.put(make_block(first, size=300 * KIB), PLACEMENT, Ack.DISK)
        if rig.settle() is not None:
            break
        first += 1
    assert rig.store.usage().is_full
    for _ in range(100):
        rig.store.put(junk(LOG, Lsn(first), 1, EntryKind.HOLE), PLACEMENT, Ack.DISK)
        assert rig.settle() is None
        first += 1
    rig.store.put(make_block(first, size=300 * KIB), PLACEMENT, Ack.DISK)
    assert rig.settle() is not None
    rig.store.trim(LOG, Lsn(first))
    assert rig.settle() is None
    rig.run_until(lambda: not rig.store.usage().is_full)


class FilledDisk:
    """A file system on which others leave so much room."""

    f_frsize = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = 0
        self._allocate = Room._allocate
        monkeypatch.setattr(room.os, "fstatvfs", lambda file: self)
        monkeypatch.setattr(Room, "_allocate", lambda asking, end: self._give(asking, end))
        monkeypatch.setattr(room, "LOOK_AGE_MAX_S", 0.0)

    @property
    def f_bavail(self) -> int:
        return self.free_bytes

    def _give(self, asking: Room, end: int) -> bool:
        taken_bytes = end - asking.allocated_bytes
        if taken_bytes > self.free_bytes:
            return False
        self.free_bytes -= taken_bytes
        return self._allocate(asking, end)


@pytest.fixture
def filled_disk(monkeypatch: pytest.MonkeyPatch) -> FilledDisk:
    return FilledDisk(monkeypatch)


def put_until_full(rig: LmdbRig) -> int:
    first = 1
    while True:
        rig.store.put(make_block(first, size=300 * KIB), PLACEMENT, Ack.DISK)
        failure = rig.settle()
        if failure is not None:
            assert failure.reason is Refusal.DISK_FULL
            return first
        first += 1


def test_room_that_others_make_on_the_disk_ends_the_refusal(
    open_rig: OpenRig, filled_disk: FilledDisk
) -> None:
    """All data is turned away while the store is full: no write would find out."""
    rig = open_rig(256 * MIB)
    filled_disk.free_bytes = 24 * MIB
    first = put_until_full(rig)
    assert rig.store.usage().is_full
    filled_disk.free_bytes += 100 * KIB  # Not enough for what was refused.
    assert rig.store.usage().is_full
    filled_disk.free_bytes += 64 * MIB
    assert not rig.store.usage().is_full
    rig.store.put(make_block(first, size=300 * KIB), PLACEMENT, Ack.DISK)
    assert rig.settle() is None
    assert not rig.store.usage().is_full


@pytest.mark.parametrize(("size", "is_full"), [(300 * KIB, False), (10, True)])
def test_as_much_as_was_refused_ends_the_refusal_when_it_is_stored(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, size: int, is_full: bool
) -> None:
    """The file system does not say why it refused, nor that it would not any more: a quota."""
    rig = open_rig(64 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(Room, "_allocate", lambda asking, end: False)
        first = put_until_full(rig)
    assert rig.store.usage().is_full
    rig.store.put(make_block(first, size=size), PLACEMENT, Ack.DISK)
    assert rig.settle() is None
    assert rig.store.usage().is_full is is_full
