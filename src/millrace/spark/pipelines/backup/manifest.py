"""The folder of a backup: numbered runs, each with a manifest that names the one before.

    000001/manifest.json                  what the run saved, and from where
    000001/logs/<log>/<file>.parquet      columns lsn, key, value, timestamp, headers
    000001/buckets/<bucket>/<file>.parquet   partition, key, value, seq, cas, flags, expiry, kind,
                                          datatype

I1  A run is there when its manifest is, which is put in place last.  What lies in the folder
    of a run without one was left by a run that died, and the next one removes it.
I2  A manifest names the one before by its checksum: no run can be taken away or exchanged without
    notice.
I3  Of a log, the ranges of the runs from the last full one on tile what was saved.
I4  Paths are relative: a folder may be moved.
"""

import hashlib
import shutil
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from millrace.client.changes.offsets import Offset
from millrace.core.documents.map import BucketAttributes
from millrace.errors import DamagedBackup, UsageError
from millrace.spark.pipelines.whole_files import make_folder, write_whole
from millrace.types import Gap, LogAttributes, LogId, Lsn

FORMAT: Final = 2
FORMATS_READ: Final = (1, FORMAT)  # In format 1 documents have no datatype: it was 0.
MANIFEST: Final = "manifest.json"
_RUN_DIGITS: Final = 6


class Mode(Enum):
    AUTO = "auto"  # On top of the run before, or full if there is none.
    FULL = "full"
    INCREMENTAL = "incremental"


class SavedFile(msgspec.Struct, frozen=True):
    """`first` and `last` are positions of a log; of a bucket the lowest and highest seq."""

    path: str  # In the run's folder.
    rows: int
    size_bytes: int
    sha256: str
    first: int
    last: int
    partition: int = 0


class SavedLog(msgspec.Struct, frozen=True):
    """Records of [first, end); `gaps` have none.  A log that `is_full` needs no run before."""

    name: str
    id: LogId
    attributes: LogAttributes
    is_full: bool
    first: Lsn
    end: Lsn
    rows: int
    files: tuple[SavedFile, ...] = ()  # In order of positions.
    gaps: tuple[Gap, ...] = ()
    streams: int = 0  # Of a commit log.


class SavedPartition(msgspec.Struct, frozen=True):
    """Changes up to the offset, from that of the run before on; all documents if it `is_full`."""

    partition: int
    is_full: bool
    offset: Offset


class SavedBucket(msgspec.Struct, frozen=True):
    name: str
    id: int
    attributes: BucketAttributes
    rows: int
    partitions: tuple[SavedPartition, ...]
    files: tuple[SavedFile, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    run: int
    mode: Mode
    cluster: str
    cluster_id: str
    started_ms: int
    finished_ms: int
    previous: int = 0  # The run before; 0: none.
    previous_sha256: str = ""  # Of its manifest's bytes.
    logs: tuple[SavedLog, ...] = ()
    buckets: tuple[SavedBucket, ...] = ()
    format: int = FORMAT

    @property
    def parts(self) -> tuple[SavedLog | SavedBucket, ...]:
        return (*self.logs, *self.buckets)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.parts)

    def log(self, name: str) -> SavedLog | None:
        return next((each for each in self.logs if each.name == name), None)

    def bucket(self, name: str) -> SavedBucket | None:
        return next((each for each in self.buckets if each.name == name), None)


def run_folder(folder: Path, run: int) -> Path:
    return folder / f"{run:0{_RUN_DIGITS}}"


class Chain:
    """All complete runs of a folder, the oldest first."""

    def __init__(self, folder: Path, runs: list[Manifest], sha256s: dict[int, str]) -> None:
        self.folder = folder
        self.runs = runs
        self._sha256s = sha256s

    @classmethod
    def read(cls, folder: Path) -> "Chain":
        """Raises DamagedBackup if a manifest cannot be read or does not follow the one before."""
        runs: list[Manifest] = []
        sha256s: dict[int, str] = {}
        for number in _numbers(folder):
            path = run_folder(folder, number) / MANIFEST
            if not path.exists():
                continue  # Keeps I1.
            manifest, sha256s[number] = _read(path)
            before = runs[-1].run if runs else 0
            if manifest.run != number or manifest.previous != before:
                raise DamagedBackup(
                    f"{path} follows run {manifest.previous}, and the run before it here is "
                    f"{before or 'none'}: a run was taken away or put in; bring its folder back"
                )
            if before and manifest.previous_sha256 != sha256s[before]:
                raise DamagedBackup(
                    f"{run_folder(folder, before) / MANIFEST} is not the manifest that run "
                    f"{number} was made on: it was changed since; bring the old one back"
                )
            runs.append(manifest)
        return cls(folder, runs, sha256s)

    @property
    def last(self) -> Manifest | None:
        return self.runs[-1] if self.runs else None

    def sha256(self, run: int) -> str:
        """Of the manifest of a run."""
        return self._sha256s[run]

    def until(self, run: int) -> "Chain":
        """Without the runs above this one; raises UsageError if there is no such run."""
        if run not in self._sha256s:
            known = ", ".join(str(each.run) for each in self.runs) or "none"
            raise UsageError(f"run={run}: {self.folder} has the runs {known}")
        kept = [each for each in self.runs if each.run <= run]
        return Chain(self.folder, kept, self._sha256s)

    def log_parts(self, name: str) -> list[tuple[Manifest, SavedLog]]:
        """The runs that hold a log as it is at the last of them, the oldest first."""
        found: list[tuple[Manifest, SavedLog]] = []
        for manifest in reversed(self.runs):
            saved = manifest.log(name)
            if saved is not None:
                found.append((manifest, saved))
                if saved.is_full:
                    break
        return found[::-1]

    def bucket_parts(self, name: str, partition: int) -> list[tuple[Manifest, SavedBucket]]:
        """The same for a partition of a bucket."""
        found: list[tuple[Manifest, SavedBucket]] = []
        for manifest in reversed(self.runs):
            saved = manifest.bucket(name)
            if saved is not None:
                found.append((manifest, saved))
                if saved.partitions[partition].is_full:
                    break
        return found[::-1]

    def files(self) -> Iterator[tuple[Path, SavedFile]]:
        """Every file of every run."""
        for manifest in self.runs:
            for each in manifest.parts:
                for file in each.files:
                    yield self.path(manifest, file), file

    def path(self, manifest: Manifest, file: SavedFile) -> Path:
        return run_folder(self.folder, manifest.run) / file.path


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    names = (each.name for each in folder.iterdir() if each.is_dir())
    return sorted(int(name) for name in names if name.isdigit())


def _read(path: Path) -> tuple[Manifest, str]:
    data = path.read_bytes()
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise DamagedBackup(f"{path} is no manifest of a backup: {error}") from None
    if manifest.format not in FORMATS_READ:
        known = " and ".join(map(str, FORMATS_READ))
        raise UsageError(f"{path} has format {manifest.format}; this version reads {known}")
    return manifest, hashlib.sha256(data).hexdigest()


def write(folder: Path, manifest: Manifest) -> None:
    """Keeps I1."""
    path = run_folder(folder, manifest.run) / MANIFEST
    write_whole(path, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def begin_run(folder: Path, run: int) -> Path:
    """An empty folder for the run, without what one that died has left there."""
    path = run_folder(folder, run)
    if path.exists():
        shutil.rmtree(path)
    make_folder(path)
    return path
