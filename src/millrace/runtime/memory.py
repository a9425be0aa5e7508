"""How a process of our own treats memory: what it keeps, and how often it looks for garbage.

Memory that blocks pass through is kept, instead of given back and taken anew.
A node receives a block into fresh memory, LMDB copies it into its own, both are freed a moment
later.  With the system's defaults every such round returns the pages to the kernel and gets
zeroed ones back, which costs more than everything else a node does with the block: on the machine
of `docs/design/0002-performance.md` append throughput grows by more than half with these settings.
"""

import ctypes
import gc
import sys
from typing import Final

from millrace.limits import MIB

# glibc's names for `mallopt`.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

KEPT_BYTES: Final = 512 * MIB  # Free memory above this goes back to the system.
MMAP_BYTES: Final = 32 * MIB  # The largest threshold glibc takes.


# Objects made and not freed between two looks, and looks until the next older generation's.
GARBAGE_LOOKS: Final = (20_000, 20, 100)


def look_for_garbage_seldom() -> None:
    """Once the process has started.  A node makes hardly any cycles, and the tail buffer alone
    holds hundreds of thousands of objects: looking through them all takes many milliseconds, in
    which nobody is served."""
    gc.collect()
    gc.freeze()  # Modules, classes and what they hold are never looked at again.
    gc.set_threshold(*GARBAGE_LOOKS)


def keep_freed_memory() -> bool:
    """For a process of our own; False where the allocator is not glibc's."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, MMAP_BYTES),
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_TOP_PAD, 16 * MIB),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
