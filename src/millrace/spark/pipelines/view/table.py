"""Results as a folder of Parquet files that is always whole.

    folder/current -> versions/000000042      the newest
    folder/versions/000000042/part-003.parquet

Each batch that changes results makes a version: its tasks write the parts that changed, the driver
links the others from the version before and then puts the pointer in place, in one step.  Who
reads asks for the newest version once, `newest_version(folder)`, and reads that to the end.

  I1  A version that `current` points to, or pointed to lately, is whole and does not change: a
      batch that runs again writes the same.
  I2  VERSIONS_KEPT versions stay, so that who began to read one can end.
"""

import os
import shutil
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import BatchOvertaken, UsageError
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.whole_files import make_folder, sync, whole

VERSIONS_KEPT: Final = 4
CURRENT: Final = "current"
_VERSIONS: Final = "versions"
_SCHEMA: Final = pa.schema({"key": pa.string(), "value": pa.string()})


class ResultTable:
    """The driver's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._current = folder / CURRENT
        self._versions = folder / _VERSIONS

    def check(self) -> None:
        """Raises UsageError for a folder that is not ours to fill."""
        if self.folder.exists() and any(self.folder.iterdir()) and not self._versions.is_dir():
            raise UsageError(f"target = {self.folder} is not empty: choose a new folder")

    def version(self, batch: int) -> Path:
        return self._versions / f"{batch:09d}"

    def begin(self, batch: int) -> Path:
        """Where the tasks of the batch write their parts."""
        version = self.version(batch)
        make_folder(version)
        return version

    def publish(self, batch: int, shards: int) -> None:
        """All parts that changed are there."""
        version = self.version(batch)
        before = self._current.resolve() if self._current.exists() else None
        if before is not None and not any(version.iterdir()):
            version.rmdir()  # Nothing changed.
            return
        for number in range(shards):
            _link_or_empty(version / part_name(number), before)
        sync(version)
        pointer = self.folder / f".{CURRENT}.new"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(version.relative_to(self.folder))
        pointer.replace(self._current)
        sync(self.folder)
        self._drop_old(batch)

    def _drop_old(self, batch: int) -> None:
        older = sorted(each for each in self._versions.iterdir() if each.name < f"{batch:09d}")
        for version in older[: -VERSIONS_KEPT + 1]:
            shutil.rmtree(version, ignore_errors=True)


def newest_version(folder: Path | str) -> str:
    """For `spark.read.parquet`, pandas and others.  Raises UsageError if there is none yet."""
    current = Path(folder) / CURRENT
    if not current.exists():
        raise UsageError(f"{folder} has no version yet: run the view, or wait for its first batch")
    return str(current.resolve())


def part_name(shard: int) -> str:
    return f"part-{shard:03d}.parquet"


def write_part(version: Path, number: int, shard: GroupShard, batch: int) -> None:
    """All results of a shard, as they are after the batch.  A task that was overtaken finds others,
    and writes nothing: keeps I1."""
    seen, rows = shard.results()
    if seen != batch:
        raise BatchOvertaken(f"batch {batch} came to {shard.shard.folder.name} after batch {seen}")
    keys = pa.array([key.decode() for key, _ in rows], pa.string())
    values = pa.array([value.decode() for _, value in rows], pa.string())
    with whole(version / part_name(number)) as draft:
        pq.write_table(pa.table([keys, values], schema=_SCHEMA), draft)


def _link_or_empty(part: Path, before: Path | None) -> None:
    if part.exists():
        return
    if before is not None and (before / part.name).exists():
        os.link(before / part.name, part)
    else:
        with whole(part) as draft:
            pq.write_table(_SCHEMA.empty_table(), draft)
