"""A page cache that is full before anything is measured, as on a server that has been up for a day.

A virtual machine may get its memory from the host page by page, when each is touched first, and
give back what is free a moment later.  There a write into a new page of the cache costs several
times what it costs afterwards, whoever writes most pays most, and what is measured is the host.
Where the cache is full, the system takes the pages of what was used longest ago: they are there.

1. The pages are clean ones of a file without data.  Nothing is written for them, nothing is pushed
   out for long, and they are gone when the file is closed, whatever ends the process.
2. Time and memory are bounded: what was free when it began is filled, or as much as there is time
   for.
"""

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
MEMORY: Final = Path("/proc/meminfo")
_STEP_BYTES: Final = 1 * MIB
_FREE: Final = "MemFree:"


@contextmanager
def filled_page_cache(is_wanted: bool, bytes_max: int | None = None) -> Iterator[int]:
    """Gives how many bytes were filled; they stay until the end of the block."""
    with tempfile.TemporaryFile(prefix="millrace-bench-cache-") as file:
        yield fill(file.fileno(), bytes_max) if is_wanted else 0


def fill(descriptor: int, bytes_max: int | None) -> int:
    """The file's pages, as many as are free.  Keeps 2."""
    wanted_bytes = free_bytes() if bytes_max is None else min(free_bytes(), bytes_max)
    if wanted_bytes:
        progress(f"filling the page cache with {wanted_bytes / 2**30:.1f} GiB")
    os.ftruncate(descriptor, wanted_bytes)
    deadline = time.perf_counter() + SECONDS_MAX
    buffer = bytearray(_STEP_BYTES)
    filled_bytes = 0
    while filled_bytes < wanted_bytes and time.perf_counter() < deadline:
        filled_bytes += os.preadv(descriptor, [buffer], filled_bytes)
    return filled_bytes


def free_bytes() -> int:
    """Of memory that nothing uses, not even a cache; 0 if the system does not tell."""
    try:
        lines = MEMORY.read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith(_FREE)]
    return int(found[0]) * 1024 if found else 0
