"""The LMDB file behind the embedded repository: loads it whole, commits batches of changes.

A registry is small (thousands of keys), so memory holds all of it and the file is only read when
it is opened.  Layout, format 1:

  about    "format", "revision", "next_lease" -> decimal text
  entries  key in UTF-8 -> MessagePack [version, lease, crc32c of value, value]
  leases   lease, 8 bytes big-endian -> time to live in ms, decimal text

  I1  One batch is one transaction, and `commit` returns after fsync.
  I2  Only one process has the file open: memory would not see what another one changed.
  I3  A file that is damaged or newer is refused with a reason; it is never repaired by wiping.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import google_crc32c
import lmdb
import msgspec

from millrace import errors, limits
from millrace.meta.contract import Entry

FORMAT: Final = 1
MAP_BYTES: Final = 1024 * limits.MIB  # Address space; the file grows as needed.


class StoredEntry(msgspec.Struct, frozen=True, array_like=True):
    version: int
    lease: int
    checksum: int
    value: bytes


class Batch(msgspec.Struct, frozen=True):
    """What one commit changes; None removes."""

    entries: Mapping[str, Entry | None]
    leases: Mapping[int, int | None]
    revision: int
    next_lease: int


class Stored(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    ttls_ms: dict[int, int]
    revision: int
    next_lease: int


class RegistryFile:
    def __init__(self, path: Path, map_bytes: int = MAP_BYTES) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._owner = _lock(path)
        try:
            self._open(map_bytes)
        except BaseException:
            os.close(self._owner)
            raise

    def _open(self, map_bytes: int) -> None:
        try:
            self._env = lmdb.open(str(self._path), map_size=map_bytes, max_dbs=3)
        except lmdb.Error as error:
            raise self._corrupt(str(error)) from error
        try:
            self._check_length()
            self._about = self._env.open_db(b"about")
            self._entries = self._env.open_db(b"entries")
            self._leases = self._env.open_db(b"leases")
            self._check_format()
        except lmdb.Error as error:
            self._env.close()
            raise self._corrupt(str(error)) from error
        except errors.MillraceError:
            self._env.close()
            raise

    def load(self) -> Stored:
        try:
            with self._env.begin() as transaction:
                about = {bytes(k): bytes(v) for k, v in transaction.cursor(self._about)}
                leases = transaction.cursor(self._leases)
                ttls_ms = {int.from_bytes(k, "big"): int(v) for k, v in leases}
                entries = tuple(
                    self._decode(bytes(k), v) for k, v in transaction.cursor(self._entries)
                )
            for entry in entries:
                if entry.lease and entry.lease not in ttls_ms:
                    raise self._corrupt(f"key {entry.key} names a lease that is not there")
            return Stored(
                entries, ttls_ms, int(about.get(b"revision", 0)), int(about.get(b"next_lease", 1))
            )
        except (lmdb.Error, ValueError) as error:
            raise self._corrupt(str(error)) from error

    def commit(self, batch: Batch) -> None:
        """Raises lmdb.Error; then nothing of the batch was stored."""
        with self._env.begin(write=True) as transaction:
            for key, entry in batch.entries.items():
                name = key.encode()
                if entry is None:
                    transaction.delete(name, db=self._entries)
                else:
                    transaction.put(name, _encode(entry), db=self._entries)
            for lease, ttl_ms in batch.leases.items():
                name = lease.to_bytes(8, "big")
                if ttl_ms is None:
                    transaction.delete(name, db=self._leases)
                else:
                    transaction.put(name, b"%d" % ttl_ms, db=self._leases)
            transaction.put(b"revision", b"%d" % batch.revision, db=self._about)
            transaction.put(b"next_lease", b"%d" % batch.next_lease, db=self._about)

    def close(self) -> None:
        self._env.close()
        os.close(self._owner)

    def _check_length(self) -> None:
        # LMDB maps the file; reading a page that a truncation took would kill the process.
        pages = self._env.info()["last_pgno"] + 1
        needed = pages * self._env.stat()["psize"]
        length = (self._path / "data.mdb").stat().st_size
        if length < needed:
            raise self._corrupt(f"data.mdb has {length} of {needed} bytes")

    def _check_format(self) -> None:
        with self._env.begin(write=True) as transaction:
            found = transaction.get(b"format", db=self._about)
            if found is None:
                transaction.put(b"format", b"%d" % FORMAT, db=self._about)
            elif bytes(found) != b"%d" % FORMAT:
                raise errors.WrongDataDirectory(
                    f"{self._path} has metadata of format {bytes(found).decode(errors='replace')},"
                    f" this version reads format {FORMAT}: use the version that wrote it"
                )

    def _decode(self, name: bytes, data: bytes) -> Entry:
        stored = msgspec.msgpack.decode(data, type=StoredEntry)
        key = name.decode()
        if google_crc32c.value(stored.value) != stored.checksum:
            raise self._corrupt(f"the value of {key} does not match its checksum")
        return Entry(key, stored.value, stored.version, stored.lease)

    def _corrupt(self, detail: str) -> errors.CorruptStore:
        return errors.CorruptStore(
            f"the metadata in {self._path} cannot be read ({detail}): restore the directory from a"
            " backup; moving it away starts a new, empty cluster"
        )


def _encode(entry: Entry) -> bytes:
    checksum = google_crc32c.value(entry.value)
    return msgspec.msgpack.encode(StoredEntry(entry.version, entry.lease, checksum, entry.value))


def _lock(path: Path) -> int:
    owner = os.open(path / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(owner)
        raise errors.DirectoryInUse(
            f"the metadata in {path} is open in another process: stop that one first"
        ) from error
    return owner
