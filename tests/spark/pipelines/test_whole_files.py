"""Files that pipelines rely on after a crash: whole, and on disk when it is said that they are."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from millrace.spark.pipelines.backup import manifest
from millrace.spark.pipelines.backup.manifest import Manifest, Mode
from millrace.spark.pipelines.folder import Definition, Folder
from millrace.spark.pipelines.restore.state import StateFile
from millrace.spark.pipelines.search import SearchSettings
from millrace.spark.pipelines.search import record as search_record
from millrace.spark.pipelines.view import ViewSettings
from millrace.spark.pipelines.view import record as view_record
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.view.order import encode
from millrace.spark.pipelines.view.reduces import Count
from millrace.spark.pipelines.view.table import write_part
from millrace.spark.pipelines.whole_files import make_folder, whole, write_whole


class Disk:
    """What was brought to disk, by the numbers of files and folders, which renaming keeps."""

    def __init__(self, watched: Path) -> None:
        self.synced: list[int] = []
        self.contents: list[bytes | None] = []  # Of the watched file at each of these moments.
        self._watched = watched
        self._fsync = os.fsync

    def fsync(self, handle: int) -> None:
        self._fsync(handle)
        self.synced.append(os.fstat(handle).st_ino)
        self.contents.append(self._watched.read_bytes() if self._watched.exists() else None)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path / "file")
    monkeypatch.setattr(os, "fsync", made.fsync)
    return made


def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, disk: Disk
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    write_whole(file, b"new")
    assert disk.synced == [file.stat().st_ino, tmp_path.stat().st_ino]
    assert disk.contents == [b"old", b"new"]


def test_a_file_that_could_not_be_written_is_as_before(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old")

    def fail() -> None:
        with whole(file) as draft:
            draft.write_bytes(b"ne")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def test_folders_are_on_disk_with_those_above_them(tmp_path: Path, disk: Disk) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    assert disk.synced == [tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino]
    make_folder(folder)
    assert len(disk.synced) == 2, "nothing was to be done"


def of_backup(folder: Path) -> Path:
    run = manifest.begin_run(folder, 1)
    manifest.write(folder, Manifest(1, Mode.FULL, "here", "id", 0, 0))
    return run / manifest.MANIFEST


def of_restore(folder: Path) -> Path:
    StateFile(folder, {})
    return folder / "restore.json"


def of_view(folder: Path) -> Path:
    settings = ViewSettings(cluster="-", bucket="b", map="json:loads")
    view_record.open_record(settings, folder)
    return folder / view_record.FILE_NAME


def of_search(folder: Path) -> Path:
    search_record.open_record(SearchSettings(cluster="-", bucket="b"), folder)
    return folder / search_record.FILE_NAME


def of_pipeline(folder: Path) -> Path:
    Folder(folder).define(Definition(kind="view", name="v", settings={}))
    return folder / "pipeline.json"


def of_table(folder: Path) -> Path:
    shard = GroupShard.open(folder / "state", 0, Count())
    shard.take(0, [(encode("key"), b"", 1)])
    version = folder / "version"
    version.mkdir()
    write_part(version, 0, shard, 0)
    return version / "part-000.parquet"


@pytest.mark.parametrize(
    "write",
    [of_backup, of_restore, of_view, of_search, of_pipeline, of_table],
    ids=lambda write: write.__name__,
)
def test_what_is_relied_on_is_on_disk(
    write: Callable[[Path], Path], tmp_path: Path, disk: Disk
) -> None:
    file = write(tmp_path)
    assert file.stat().st_ino in disk.synced
    assert file.parent.stat().st_ino in disk.synced[disk.synced.index(file.stat().st_ino) :]


def test_a_record_is_whole_json(tmp_path: Path) -> None:
    file = of_search(tmp_path)
    assert msgspec.json.decode(file.read_bytes())["bucket"] == "b"
