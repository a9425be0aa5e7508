"""A node's data directory: made once, opened by one process, never taken for another's.

    LOCK            held with flock while a process uses the directory
    store/data.mdb  the LMDB file

A damaged file must be refused with words: LMDB maps the file, and touching a page that is not
there kills the process.  So the length is compared with what the meta pages claim before the file
is mapped.  A new store is built beside its place and renamed, hence a `store` folder that is not
whole was damaged later.

Invariants:

  I1  Two processes never have the same directory open.
  I2  The cluster, node and instance of a directory never change after it was made.
  I3  A directory that is refused is left as it was found.
"""

import fcntl
import os
import shutil
import uuid
from pathlib import Path
from struct import Struct
from typing import Final

import lmdb
import msgspec

from millrace.errors import BadConfiguration, CorruptStore, DirectoryInUse, WrongDataDirectory
from millrace.limits import SCANS_OUTSTANDING_MAX, STORE_MAP_BYTES
from millrace.store.layout import FORMAT_VERSION, TABLES_MAX, Tables, open_tables
from millrace.types import NodeId

STORE_FOLDER: Final = "store"
LOCK_FILE: Final = "LOCK"
DATA_FILE: Final = "data.mdb"

# LMDB's meta page: header, then magic, version, address, map size, two trees, last page, number.
_META: Final = Struct("=16xIIQQI44x48xQQ")
_META_MAGIC: Final = 0xBEEFC0DE
_META_VERSION: Final = 1
_PAGE_BYTES_MIN: Final = 512
_PAGE_BYTES_MAX: Final = 65_536

_REBUILD: Final = (
    "Move the directory away and start the node with an empty one: "
    "it fetches its blocks from the other replicas."
)


class Identity(msgspec.Struct, frozen=True):
    cluster: str
    node: NodeId
    instance: str  # Drawn when the directory is made: a wiped node is another one.


class DataDirectory:
    """An open, locked directory; `close` gives it back."""

    def __init__(
        self, path: Path, identity: Identity, environment: lmdb.Environment, lock: int
    ) -> None:
        self.path = path
        self.identity = identity
        self.environment = environment
        self.tables: Tables = open_tables(environment)
        self._lock = lock

    @property
    def data_file(self) -> Path:
        return self.path / STORE_FOLDER / DATA_FILE

    def close(self) -> None:
        self.environment.close()
        os.close(self._lock)


def open_directory(
    path: Path, cluster: str, node: NodeId, map_bytes: int = STORE_MAP_BYTES
) -> DataDirectory:
    """Open the directory of this node, making it if there is none."""
    lock = _lock(path)
    try:
        folder = path / STORE_FOLDER
        if not folder.exists():
            _make(path, Identity(cluster, node, uuid.uuid4().hex), map_bytes)
        check_file(folder / DATA_FILE)
        environment = _open_environment(folder, map_bytes)
        try:
            identity = _read_identity(path, environment)
            _check_identity(path, identity, cluster, node)
            return DataDirectory(path, identity, environment, lock)
        except BaseException:
            environment.close()
            raise
    except BaseException:
        os.close(lock)
        raise


def check_file(path: Path) -> None:
    """Raise CorruptStore if mapping this file could kill the process."""
    try:
        with path.open("rb") as file:
            head = file.read(2 * _PAGE_BYTES_MAX)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise CorruptStore(f"{path} is missing. {_REBUILD}") from error
    first = _meta(head, 0)
    page_bytes = first[0] if first else 4096
    second = _meta(head, page_bytes)
    metas = [meta for meta in (first, second) if meta]
    if not metas:
        raise CorruptStore(f"{path} is not a store file: its head is garbage. {_REBUILD}")
    page_bytes, last_page, _ = max(metas, key=lambda meta: meta[2])
    if size < (last_page + 1) * page_bytes:
        raise CorruptStore(
            f"{path} is cut short: {size} bytes of {(last_page + 1) * page_bytes}. {_REBUILD}"
        )


def _meta(head: bytes, offset: int) -> tuple[int, int, int] | None:
    """Page size, last page and transaction number of a meta page, if it is one."""
    if len(head) < offset + _META.size:
        return None
    magic, version, _, _, page_bytes, last_page, number = _META.unpack_from(head, offset)
    is_page_size = (
        _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX and page_bytes & (page_bytes - 1) == 0
    )
    if magic != _META_MAGIC or version != _META_VERSION or not is_page_size:
        return None
    return page_bytes, last_page, number


def _lock(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadConfiguration(f"cannot use data directory {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise DirectoryInUse(
            f"data directory {path} is in use by process {owner}. "
            "Stop that process or give this node another directory."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _make(path: Path, identity: Identity, map_bytes: int) -> None:
    """Build the store beside its place, so that a crash leaves none or a whole one."""
    draft = path / f"{STORE_FOLDER}.new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    environment = _open_environment(draft, map_bytes)
    tables = open_tables(environment)
    with environment.begin(write=True, db=tables.identity) as transaction:
        transaction.put(b"format", str(FORMAT_VERSION).encode())
        transaction.put(b"cluster", identity.cluster.encode())
        transaction.put(b"node", str(identity.node).encode())
        transaction.put(b"instance", identity.instance.encode())
    environment.close()
    draft.rename(path / STORE_FOLDER)
    _sync_folder(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_environment(folder: Path, map_bytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            os.fspath(folder),
            map_size=map_bytes,
            max_dbs=TABLES_MAX,
            max_readers=2 * SCANS_OUTSTANDING_MAX + 32,
            max_spare_txns=8,
            meminit=False,  # Blocks are written whole: clearing their pages first is waste.
            readahead=True,  # Scans run forward through neighbouring pages.
        )
    except lmdb.Error as error:
        raise CorruptStore(f"{folder} cannot be opened: {error}. {_REBUILD}") from error


def _read_identity(path: Path, environment: lmdb.Environment) -> Identity:
    tables = open_tables(environment)
    with environment.begin(db=tables.identity) as transaction:
        version, cluster, node, instance = (
            transaction.get(name, b"").decode(errors="replace")
            for name in (b"format", b"cluster", b"node", b"instance")
        )
    if version.isdigit() and int(version) > FORMAT_VERSION:
        raise WrongDataDirectory(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}. "
            "Use the newer version of the software that wrote it."
        )
    if not (version and node.isdigit() and instance):
        raise CorruptStore(f"{path} does not say whose data it holds. {_REBUILD}")
    return Identity(cluster, NodeId(int(node)), instance)


def _check_identity(path: Path, found: Identity, cluster: str, node: NodeId) -> None:
    if found.cluster != cluster:
        raise WrongDataDirectory(
            f"{path} belongs to cluster {found.cluster!r}, not to {cluster!r}. "
            "Give this node its own directory."
        )
    if found.node != node:
        raise WrongDataDirectory(
            f"{path} belongs to node {found.node}, not to node {node}. "
            "Give this node its own directory."
        )
