"""Files and folders that are there as a whole or not at all, also after the power was cut.

A file is written beside its place, brought to disk and renamed; then the folder, which holds the
name, is brought to disk as well.

I1  Who reads sees the old content or the new one.
I2  What these functions have returned from stays.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    with whole(file) as draft:
        draft.write_bytes(content)


@contextlib.contextmanager
def whole(file: Path) -> Iterator[Path]:
    """The draft to write, which is of this process alone.  Readers of folders, Spark's too, leave
    out what begins with a dot."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        yield draft
        sync(draft)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(file.parent)


def make_folder(folder: Path) -> None:
    """With those above it that are missing."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """What a file holds, or which names a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
