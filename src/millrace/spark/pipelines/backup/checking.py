"""Whether a folder still holds what its manifests say.

Every file is read once: its length, its checksum, and how many rows it says to have.  Of each log
the ranges of the runs must follow one another.
"""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import DamagedBackup
from millrace.limits import MIB
from millrace.spark.pipelines.backup.manifest import Chain, SavedFile

READ_BYTES: Final = 4 * MIB
READERS: Final = 4


class Problem(msgspec.Struct, frozen=True):
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


def check_folder(folder: Path | str) -> Chain:
    """Reads all of it; raises DamagedBackup that tells everything that is wrong."""
    chain = Chain.read(Path(folder))
    if not chain.runs:
        raise DamagedBackup(f"{folder} holds no complete run of a backup")
    problems = [*_broken_ranges(chain), *check_files(chain.files())]
    if problems:
        raise DamagedBackup(f"{folder} is damaged: " + "; ".join(map(str, problems)))
    return chain


def check_files(files: Iterable[tuple[Path, SavedFile]]) -> list[Problem]:
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(lambda each: _problem_of(*each), files)
        return [problem for problem in found if problem is not None]


def _problem_of(path: Path, saved: SavedFile) -> Problem | None:
    try:
        size_bytes, sha256 = _digest(path)
    except OSError as error:
        return Problem(str(path), error.strerror or str(error))
    if size_bytes != saved.size_bytes:
        return Problem(str(path), f"has {size_bytes} bytes, the manifest says {saved.size_bytes}")
    if sha256 != saved.sha256:
        return Problem(str(path), "does not match the checksum in the manifest")
    try:
        rows = pq.ParquetFile(path).metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        return Problem(str(path), f"is no Parquet file: {error}")
    if rows != saved.rows:
        return Problem(str(path), f"has {rows} rows, the manifest says {saved.rows}")
    return None


def _digest(path: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            size_bytes += len(data)
    return size_bytes, digest.hexdigest()


def _broken_ranges(chain: Chain) -> Iterator[Problem]:
    ends: dict[int, int] = {}  # By the log's id.
    for manifest in chain.runs:
        for log in manifest.logs:
            before = ends.get(log.id)
            if not log.is_full and before != log.first:
                detail = f"log {log.name!r} goes on at {log.first}, the run before ends at {before}"
                yield Problem(f"run {manifest.run}", detail)
            ends[log.id] = log.end
            if log.rows != sum(file.rows for file in log.files):
                yield Problem(f"run {manifest.run}", f"log {log.name!r}: its files lack rows")
