"""A page cache that is full while peers are measured, as on a server that has been up for a day.

A virtual machine may get its memory from the host page by page, when each is touched first, and
give back what is free a moment later.  There a write into a new page of the cache costs several
times what it costs afterwards, whoever writes most pays most, and what is measured is the host.
Where the cache is full, the system takes the pages of what was used longest ago: they are there.

1. The pages are clean ones of a file without data.  Nothing is written for them, nothing is pushed
   out for long, and they are gone when the file is closed, whatever ends the process.
2. Time and memory are bounded: what is free is filled, or as much as there is time for; of a
   process group with a limit of its own, no more than that leaves.
3. Files that a peer deletes leave free pages behind: before the next workload they are filled, too.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.progress import progress
from millrace.limits import MIB

SECONDS_MAX: Final = 120.0
WORTH_TELLING_BYTES: Final = 2_048 * MIB  # About half of it stays free whatever is filled.
MEMORY: Final = Path("/proc/meminfo")
GROUP: Final = Path("/proc/self/cgroup")
GROUPS: Final = Path("/sys/fs/cgroup")
_STEP_BYTES: Final = 1 * MIB
_STEPS_AT_ONCE: Final = 64


class PageCache:
    def __init__(self, descriptor: int, bytes_max: int | None = None) -> None:
        self.filled_bytes = 0
        self._descriptor = descriptor
        self._bytes_max = bytes_max

    def top_up(self) -> None:
        for _ in self._steps():
            pass

    async def top_up_in_turns(self) -> None:
        """Lets the loop hear of an interruption meanwhile."""
        for number, _ in enumerate(self._steps()):
            if number % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _steps(self) -> Iterator[None]:
        """Keeps 2."""
        wanted_bytes = free_bytes()
        if self._bytes_max is not None:
            wanted_bytes = min(wanted_bytes, self._bytes_max - self.filled_bytes)
        if wanted_bytes > WORTH_TELLING_BYTES:
            progress(f"filling the page cache with {wanted_bytes / 2**30:.1f} GiB")
        end = self.filled_bytes + wanted_bytes
        os.ftruncate(self._descriptor, end)
        deadline = time.perf_counter() + SECONDS_MAX
        buffer = bytearray(_STEP_BYTES)
        while self.filled_bytes < end and time.perf_counter() < deadline:
            self.filled_bytes += os.preadv(self._descriptor, [buffer], self.filled_bytes)
            yield


@contextmanager
def page_cache() -> Iterator[PageCache]:
    """What is filled stays until the end of the block."""
    with tempfile.TemporaryFile(prefix="millrace-bench-cache-") as file:
        yield PageCache(file.fileno())


@contextmanager
def filled_page_cache(is_wanted: bool) -> Iterator[None]:
    with page_cache() as cache:
        if is_wanted:
            cache.top_up()
        yield


def free_bytes() -> int:
    """Of memory that nothing uses, not even a cache; 0 if the system does not tell."""
    try:
        lines = MEMORY.read_text().splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemFree:")]
    except OSError:
        return 0
    return min([*free, *_left_in_group()]) if free else 0


def _left_in_group() -> list[int]:
    """What the limit of this process's group leaves, if it has one."""
    try:
        path = GROUPS / GROUP.read_text().rsplit("::", 1)[-1].strip().lstrip("/")
        limit, used = ((path / f"memory.{name}").read_text() for name in ("max", "current"))
        return [max(0, int(limit) - int(used))]
    except (OSError, ValueError):  # No such groups, or the limit is "max".
        return []
