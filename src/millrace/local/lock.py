"""One process at a time may change a local cluster: two would start its nodes twice, and write over
each other's account of what runs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.errors import DirectoryInUse


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises DirectoryInUse at once if another process has the folder, which must exist.  The
    folder itself is locked: whoever dies lets go, and no file is left behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUse(
            f"another `millrace dev` command is at work in {folder}: try again when it is done"
        ) from None
