"""The folder of a node's documents: made whole, refused with words.

    documents/data.mdb  the LMDB file

It lies in the node's data directory, which one process has locked and whose identity was checked
(`store/directory.py`).  A damaged file must be refused before it is mapped, as there; so a new one
is built beside its place and renamed, and a folder that is not whole was damaged later.

  I1  A folder that is refused is left as it was found.
"""

import os
import shutil
from pathlib import Path
from typing import Final

import lmdb

from millrace.errors import BadConfiguration, CorruptStore, WrongDataDirectory
from millrace.limits import CONNECTIONS_MAX
from millrace.store.directory import DATA_FILE, check_file
from millrace.store.documents.layout import FORMAT_VERSION, Tables, open_tables

READERS_MAX: Final = CONNECTIONS_MAX + 64  # A view for each stream's connection, and short reads.
FORMAT_KEY: Final = b"format"


class DocumentsFolder:
    """An open environment; `close` gives it back, and ends the views that are still held."""

    def __init__(self, path: Path, environment: lmdb.Environment, tables: Tables) -> None:
        self.path = path
        self.environment = environment
        self.tables = tables

    @property
    def data_file(self) -> Path:
        return self.path / DATA_FILE

    def close(self) -> None:
        self.environment.close()


def open_folder(path: Path, map_bytes: int) -> DocumentsFolder:
    """Open the folder, making it if there is none."""
    if not path.exists():
        _make(path, map_bytes)
    check_file(path / DATA_FILE)
    environment = _open_environment(path, map_bytes)
    try:
        tables = open_tables(environment)
        _check_format(path, environment, tables)
        return DocumentsFolder(path, environment, tables)
    except BaseException:
        environment.close()
        raise


def _make(path: Path, map_bytes: int) -> None:
    """A crash leaves none or a whole one."""
    draft = path.with_name(f"{path.name}.new")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    except OSError as error:
        raise BadConfiguration(f"cannot make {draft}: {error.strerror}") from error
    environment = _open_environment(draft, map_bytes)
    tables = open_tables(environment)
    with environment.begin(write=True, db=tables.identity) as transaction:
        transaction.put(FORMAT_KEY, str(FORMAT_VERSION).encode())
    environment.close()
    draft.rename(path)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            os.fspath(path),
            map_size=map_bytes,
            max_dbs=len(Tables._fields),
            max_readers=READERS_MAX,
            max_spare_txns=16,
            meminit=False,  # Records are written whole: clearing their pages first is waste.
            readahead=True,  # Streams and warming up run forward.
        )
    except lmdb.Error as error:
        raise CorruptStore(f"{path} cannot be opened: {error}.") from error


def _check_format(path: Path, environment: lmdb.Environment, tables: Tables) -> None:
    with environment.begin(db=tables.identity) as transaction:
        version = transaction.get(FORMAT_KEY, b"").decode(errors="replace")
    if not version.isdigit():
        raise CorruptStore(f"{path} does not say what format it has; move it away to start anew.")
    if int(version) > FORMAT_VERSION:
        raise WrongDataDirectory(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}. "
            "Use the newer version of the software that wrote it."
        )
