"""The page cache that a full run fills before it measures."""

import os
import tempfile
from pathlib import Path

import pytest

from bench.page_cache import fill, filled_page_cache, free_bytes
from bench.workloads import FULL, QUICK
from millrace.limits import KIB, MIB

SOME_BYTES = 64 * MIB


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_it_fills_is_in_memory_and_not_on_the_disk() -> None:
    with tempfile.TemporaryFile() as file:
        assert fill(file.fileno(), SOME_BYTES) == SOME_BYTES
        assert os.fstat(file.fileno()).st_blocks == 0
        last = SOME_BYTES - KIB
        # Fails if it had to be fetched.
        assert os.preadv(file.fileno(), [bytearray(KIB)], last, os.RWF_NOWAIT) == KIB


def test_a_process_that_is_killed_would_leave_no_file_behind(folder: Path) -> None:
    with filled_page_cache(True, SOME_BYTES) as filled_bytes:
        assert filled_bytes == SOME_BYTES
        assert not list(folder.iterdir())


def test_it_fills_nothing_when_nobody_wants_it() -> None:
    with filled_page_cache(False) as filled_bytes:
        assert filled_bytes == 0


def test_the_system_tells_how_much_is_free() -> None:
    assert free_bytes() > 0


def test_only_a_full_run_takes_the_time() -> None:
    assert FULL.is_cache_filled
    assert not QUICK.is_cache_filled
