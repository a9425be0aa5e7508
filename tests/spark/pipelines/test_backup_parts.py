"""What a run of a backup saved, put together: nothing of it may be missing.  No Spark's Java."""

import os
from pathlib import Path

import pytest

from millrace.client.changes.offsets import Offset
from millrace.errors import RecordsLost, Unavailable, UsageError
from millrace.spark.pipelines.backup import buckets
from millrace.spark.pipelines.backup.buckets import Saved, saved_bucket
from millrace.spark.pipelines.backup.logs import SavedPart, saved_log
from millrace.spark.pipelines.backup.manifest import (
    Chain,
    Manifest,
    Mode,
    SavedPartition,
    begin_run,
    write,
)
from millrace.spark.pipelines.backup.planning import BucketPlan, LogRange, named
from millrace.types import NO_NODE, LogAttributes, LogId, LogInfo, Lsn
from tests.support.served_bucket import ServedBucket, with_bucket

WANTED = LogRange(LogInfo(LogId(7), "clicks", LogAttributes()), Lsn(1), Lsn(101), is_full=True)


def part(first: int, end: int) -> SavedPart:
    return SavedPart(Lsn(first), Lsn(end), None, ())


def test_who_names_logs_alone_means_no_bucket_and_the_other_way_round() -> None:
    assert named(None, None) == (None, None)
    assert named(("a",), None) == (("a",), ())
    assert named(None, ("b",)) == ((), ("b",))
    assert named((), None) == ((), None)
    assert named(("a",), ("b",)) == (("a",), ("b",))


def test_parts_come_in_any_order() -> None:
    saved = saved_log(WANTED, [part(51, 101), part(1, 51)])
    assert (saved.first, saved.end) == (1, 101)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param([part(1, 50), part(51, 101)], "ends at 50 and goes on at 51", id="a hole"),
        pytest.param([part(1, 51)], "ends at 51, and 101 was the end", id="no end"),
        pytest.param([], "ends at 1, and 101 was the end", id="nothing"),
        pytest.param([part(1, 51), part(51, 200)], "ends at 200", id="too much"),
    ],
)
def test_a_log_that_is_not_saved_to_its_end_fails_the_run(
    parts: list[SavedPart], words: str
) -> None:
    with pytest.raises(RecordsLost, match=words):
        saved_log(WANTED, parts)


@pytest.mark.parametrize("numbers", [[0, 2, 3], [0, 1, 1, 2, 3]], ids=["missing", "twice"])
def test_each_partition_is_saved_once_or_the_run_fails(numbers: list[int]) -> None:
    async def body(served: ServedBucket) -> None:
        plan = BucketPlan(served.record, {})
        rest = range(4, len(served.record.seats))
        offset = Offset(0, 0, 0)
        saved = [Saved(SavedPartition(each, True, offset), None) for each in (*numbers, *rest)]
        with pytest.raises(RecordsLost, match="of 8 partitions"):
            saved_bucket(plan, saved)

    with_bucket(body)


@pytest.mark.parametrize("format", [1, 2, 3])
def test_older_formats_are_read_and_newer_ones_refused(tmp_path: Path, format: int) -> None:
    begin_run(tmp_path, 1)
    made = Manifest(1, Mode.FULL, "here", "id", 0, 0, format=format)
    write(tmp_path, made)
    if format == 3:
        with pytest.raises(UsageError, match="reads 1 and 2"):
            Chain.read(tmp_path)
    else:
        assert Chain.read(tmp_path).runs == [made]


def open_files_below(folder: Path) -> list[str]:
    handles = Path("/proc/self/fd").iterdir()
    targets = [os.readlink(handle) for handle in handles if handle.is_symlink()]
    return [target for target in targets if target.startswith(str(folder))]


def test_a_task_that_fails_leaves_no_file_open_and_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition has no master, while others are being written."""
    monkeypatch.setattr(buckets, "STALL_S", 0.5)

    async def body(served: ServedBucket) -> None:
        for number in range(20):
            await served.bucket.set(b"key %d" % number, b"value")
        lost = served.bucket.partition_of(b"key 0")
        served.tell(lost, NO_NODE)
        await served.bucket.asker.map.reload()
        saving = buckets._Saving(served.bucket, range(len(served.record.seats)), {}, tmp_path)
        with pytest.raises(Unavailable, match="nothing came"):
            await saving.save()
        assert saving._writers, "others were being written"
        assert open_files_below(tmp_path) == []

    with_bucket(body)
    assert list(tmp_path.rglob("*.parquet")) == []
