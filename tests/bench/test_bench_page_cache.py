"""The page cache that a full run fills before it measures."""

import asyncio
import ctypes
import mmap
import os
import tempfile
from pathlib import Path

import pytest

from bench import page_cache
from bench.page_cache import PageCache, filled_page_cache, free_bytes
from bench.workloads import FULL, QUICK
from millrace.limits import MIB

SOME_BYTES = 4 * MIB  # There may be little: another benchmark may have filled it.

LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_it_fills_is_in_memory_and_not_on_the_disk() -> None:
    with tempfile.TemporaryFile() as file:
        PageCache(file.fileno(), SOME_BYTES).top_up()
        assert os.fstat(file.fileno()).st_size == SOME_BYTES
        assert os.fstat(file.fileno()).st_blocks == 0
        assert resident_pages(file.fileno()) == SOME_BYTES // mmap.PAGESIZE


def resident_pages(descriptor: int) -> int:
    """Of the file: the system is asked, and nothing is touched."""
    with mmap.mmap(descriptor, 0) as mapped:
        pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = LIBC.mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages)
        finally:
            del first
        assert not failed, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in pages)


def test_it_fills_the_same_between_other_work() -> None:
    with tempfile.TemporaryFile() as file:
        cache = PageCache(file.fileno(), SOME_BYTES)
        asyncio.run(cache.top_up_in_turns())
        assert cache.filled_bytes == SOME_BYTES


def test_it_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "SECONDS_MAX", 0.0)
    with tempfile.TemporaryFile() as file:
        cache = PageCache(file.fileno(), SOME_BYTES)
        cache.top_up()
        assert cache.filled_bytes == 0


def test_it_fills_nothing_where_the_system_does_not_tell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "MEMORY", folder / "missing")
    assert free_bytes() == 0


def test_a_limit_of_the_group_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = folder / "of" / "tests"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("3000\n")
    (folder / "cgroup").write_text("0::/of/tests\n")
    monkeypatch.setattr(page_cache, "GROUP", folder / "cgroup")
    monkeypatch.setattr(page_cache, "GROUPS", folder)
    assert free_bytes() == 2_000
    (group / "memory.max").write_text("max\n")
    assert free_bytes() > 2_000


def test_no_file_is_seen_or_left_behind(folder: Path) -> None:
    with filled_page_cache(False):
        assert not list(folder.iterdir())


def test_only_a_full_run_takes_the_time() -> None:
    assert FULL.is_cache_filled
    assert not QUICK.is_cache_filled
