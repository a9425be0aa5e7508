"""Directories of links, kept in the user's cache, that show a program another layout of its files.

I1  A shim is complete or absent: it is built beside its place and renamed into it.
I2  Its name says what it was built from, so another version gets another shim.
I3  Nobody else can write where it lies: programs are started from it.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from millrace.errors import Unavailable

OTHERS_MAY_WRITE: Final = 0o022
TRIES: Final = 3


def shim(
    environ: Mapping[str, str],
    kind: str,
    origin: str,
    proof: str,
    build: Callable[[Path], None],
) -> Path:
    """The shim of `kind` for `origin`, made if it is not there.  `proof` is a file in it: when it
    is gone (a cleaner of temporary files took it), the shim is made again."""
    digest = hashlib.sha256(origin.encode()).hexdigest()[:16]  # Keeps I2.
    target = _cache(environ) / f"{kind}-{digest}"
    for _ in range(TRIES):
        if (target / proof).exists():
            return target
        _put(target, proof, build)
    raise Unavailable(
        f"{target / proof} cannot be made: remove {target}, or set XDG_CACHE_HOME to another folder"
    )


def link(entries: Iterable[Path], folder: Path) -> None:
    """Links to the entries, under their own names."""
    for entry in entries:
        (folder / entry.name).symlink_to(entry)


def _put(target: Path, proof: str, build: Callable[[Path], None]) -> None:
    """Keeps I1, also when other processes do the same at this moment: the first one's stays."""
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(draft)
        draft.rename(target)
    except OSError as problem:
        if problem.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if not (target / proof).exists():
            with contextlib.suppress(OSError):  # Another process may have moved it away first.
                target.rename(draft / "damaged")
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # Gone already when it was renamed.


def _cache(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    folders = (
        Path(given if os.path.isabs(given) else os.path.join(home, ".cache"), "millrace"),
        Path(tempfile.gettempdir(), f"millrace-{os.getuid()}"),
    )
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(folder):
                return folder
    raise Unavailable(
        f"neither {folders[0]} nor {folders[1]} is a folder that this user alone can write to:"
        " set XDG_CACHE_HOME to one"
    )


def _is_private(folder: Path) -> bool:
    """Keeps I3."""
    status = folder.stat()
    is_mine = status.st_uid == os.getuid() and not status.st_mode & OTHERS_MAY_WRITE
    return is_mine and os.access(folder, os.W_OK | os.X_OK)
