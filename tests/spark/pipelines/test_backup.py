"""Backup, destroy, restore: real clusters, real Spark, and a restore that is killed."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace.cli.main import DONE, FAILED
from millrace.cli.main import run as command
from millrace.client import Client, Log
from millrace.client.bucket_revisions import overwrite
from millrace.core.documents.document import NO_CAS
from millrace.core.documents.map import BucketAttributes, partition_of
from millrace.core.documents.revisions import Revision
from millrace.errors import BucketExists, DamagedBackup, LogExists, UsageError, WrongBackup
from millrace.local import LocalCluster
from millrace.spark.pipelines.backup import BackupSettings, Chain, check_folder, run_backup
from millrace.spark.pipelines.backup.manifest import MANIFEST, Mode, SavedBucket
from millrace.spark.pipelines.context import Context, Progress
from millrace.spark.pipelines.restore import RestoreSettings, run_restore
from millrace.spark.pipelines.restore.buckets import newest
from millrace.spark.pipelines.restore.choosing import BucketSource
from millrace.types import Record
from tests.support.clusters import QUICK_KEEPER, connected, run, soon
from tests.support.epochs import next_epoch
from tests.support.spark import ROOT, driver_env

KINDS = ("chain", "commit", "sequenced")
BUCKET = "users"
FIRST_MS = 1_700_000_000_000  # The time of the first record; a second for each further one.
EARLY = 200  # Records of each log before the first run.
LATE = 100  # And behind the load, before the second.
CUT = 150
PARTITIONS = 4
TRIMMED = 10  # Records of a log that has lost its first ones.
PATIENCE_S = 500.0  # With other work on the machine Spark can take long to start.
EXPIRY_S = 4_000_000_000  # In the year 2096.

Documents = dict[bytes, Revision]  # Value, flags, expiry, CAS, datatype.


class Truth(msgspec.Struct):
    """What the source held when it was destroyed."""

    records: dict[str, list[Record]] = {}
    documents: Documents = {}
    acknowledged: dict[str, int] = {}  # Records of each log before the first run began.


async def fill(log: Log, first: int, count: int) -> None:
    """Each record has a key, a header and a time of its own."""
    numbers = range(first, first + count)
    await log.append_many(
        [b"value %d" % each for each in numbers],
        keys=[b"key %d" % (each % 7) for each in numbers],
        timestamps_us=[(FIRST_MS + 1000 * each) * 1000 for each in numbers],
        headers=[{"number": b"%d" % each} for each in numbers],
    )


async def records_of(log: Log) -> list[Record]:
    async with await log.read() as reader:
        return [each async for each in reader if isinstance(each, Record)]


async def documents_of(client: Client, keys: list[bytes]) -> Documents:
    """Without those that were deleted."""
    found = await (await client.bucket(BUCKET)).read_revisions(keys)
    return {key: each for key, each in found.items() if each.value is not None}


ALL_KEYS = [b"user %d" % each for each in range(60)]


class Source:
    """A cluster with a log of each kind and a bucket, saved twice and then destroyed."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.truth = Truth()
        self.folder = folder / "saved"
        self.other_folder = folder / "other"
        self._spark = spark
        self._homes = folder / "homes"
        self.cluster = LocalCluster.create(
            folder / "source", 3, keeper=QUICK_KEEPER, lease_ttl_ms=20_000
        )

    def save(self, **more: object) -> None:
        given = {"cluster": ",".join(self.cluster.addresses), "folder": str(self.folder), **more}
        settings = msgspec.convert(given, BackupSettings, strict=False)
        run_backup(settings, Context.at(self._homes / "backup", self._spark))

    async def first_run(self) -> None:
        async with connected(self.cluster) as client:
            logs = [await client.create_log(kind, write_path=kind) for kind in KINDS]
            for log in logs:
                await fill(log, 0, EARLY // 2)
                if log.is_sequenced:
                    await next_epoch(client, log)  # Positions go on elsewhere, behind a gap.
                await fill(log, EARLY // 2, EARLY // 2)
                self.truth.acknowledged[log.name] = EARLY
            trimmed = await client.create_log("trimmed", write_path="chain")
            await fill(trimmed, 0, 2 * TRIMMED)
            await trimmed.trim(TRIMMED + 1)
            bucket = await client.create_bucket(BUCKET, partitions=PARTITIONS, replicas=0)
            for number, key in enumerate(ALL_KEYS[:50]):
                early = Revision(key, b"early", NO_CAS, number, datatype=number % 4)
                await overwrite(bucket, early, None, timeout_ms=20_000)
            loads = [asyncio.create_task(self._load(log)) for log in logs]
            await asyncio.to_thread(self.save)
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)

    async def _load(self, log: Log) -> None:
        number = EARLY
        while True:
            await fill(log, number, 1)
            number += 1

    async def second_run(self) -> None:
        async with connected(self.cluster) as client:
            logs = [await client.log(kind) for kind in KINDS]
            for log in logs:
                await log.flush()
                if log.is_sequenced:
                    await next_epoch(client, log)
                await fill(log, 100_000, LATE)
            bucket = await client.bucket(BUCKET)
            for key in ALL_KEYS[40:60]:
                await bucket.set(key, b"late", flags=9, expiry_s=EXPIRY_S)
            for key in ALL_KEYS[:10]:
                await bucket.delete(key)
            await asyncio.to_thread(self.save)
            logs.append(await client.log("trimmed"))
            self.truth.records = {log.name: await records_of(log) for log in logs}
            self.truth.documents = await documents_of(client, ALL_KEYS)

    def save_other_history(self) -> None:
        """Once more, on top of a run that saw changes of partition 0 which were taken back since:
        its master has never heard of the history that they belong to."""
        shutil.copytree(self.folder, self.other_folder)
        path = self.other_folder / "000002" / MANIFEST
        manifest = json.loads(path.read_text())
        manifest["buckets"][0]["partitions"][0]["offset"]["log"] = [["00000000deadbeef", 0]]
        path.write_text(json.dumps(manifest))
        self.save(folder=str(self.other_folder), logs=())

    async def refusals(self) -> None:
        """A log that was made anew has other positions than the saved one."""
        async with connected(self.cluster) as client:
            await client.delete_log("chain")
            await client.create_log("chain", write_path="chain")
            with pytest.raises(WrongBackup, match="made anew since run 2"):
                await asyncio.to_thread(self.save)


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Source:
    made = Source(spark, tmp_path_factory.mktemp("backup"))
    with made.cluster:
        made.cluster.start()
        run(made.first_run(), PATIENCE_S)
        run(made.second_run(), PATIENCE_S)
        made.save_other_history()
        run(made.refusals(), PATIENCE_S)
    made.cluster.destroy()
    return made


@pytest.fixture(scope="module")
def target(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("target") / "cluster"
    with LocalCluster.create(folder, 3, keeper=QUICK_KEEPER, lease_ttl_ms=20_000) as made:
        made.start()
        yield made


def restore(
    spark: SparkSession, source: Source, target: LocalCluster, home: Path, **more: object
) -> Context:
    given = {"cluster": ",".join(target.addresses), "folder": str(source.folder), **more}
    context = Context.at(home, spark)
    run_restore(msgspec.convert(given, RestoreSettings, strict=False), context)
    return context


# -- What is saved ---------------------------------------------------------------------------------


def test_a_run_under_load_has_all_that_was_acknowledged_before(source: Source) -> None:
    first = Chain.read(source.folder).runs[0]
    for log in first.logs:
        assert log.rows >= source.truth.acknowledged.get(log.name, TRIMMED)
        assert log.is_full
    assert {log.name for log in first.logs} == {*KINDS, "trimmed"}
    assert sum(bucket.rows for bucket in first.buckets) == 50


def test_the_second_run_goes_on_where_the_first_ended(source: Source) -> None:
    chain = check_folder(source.folder)
    first, second = chain.runs
    for log in second.logs:
        before = first.log(log.name)
        assert before is not None
        assert (log.first, log.is_full) == (before.end, False)
        assert before.rows + log.rows == len(source.truth.records[log.name])
    (bucket,) = second.buckets
    assert bucket.rows == 30
    assert not any(each.is_full for each in bucket.partitions)


def test_a_partition_whose_changes_were_taken_back_is_saved_as_a_whole(source: Source) -> None:
    (bucket,) = Chain.read(source.other_folder).runs[-1].buckets
    assert [each.is_full for each in bucket.partitions] == [True] + [False] * (PARTITIONS - 1)
    live = [key for key in source.truth.documents if partition_of(key, PARTITIONS) == 0]
    (file,) = bucket.files
    assert file.rows >= len(live) > 0


# -- Restoring -------------------------------------------------------------------------------------


def killed_restore(source: Source, target: LocalCluster, home: Path) -> int:
    """Rows that were reported when it was killed."""
    home.mkdir()
    with (home / "output").open("wb") as output:
        driver = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.spark.pipelines.restore_driver",
                ",".join(target.addresses),
                str(source.folder),
                str(home),
            ],
            cwd=ROOT,
            env=driver_env(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def rows() -> int:
        assert driver.poll() is None, (home / "output").read_text()[-3_000:]
        lines = home / "progress.jsonl"
        text = lines.read_bytes().splitlines() if lines.exists() else []
        return msgspec.json.decode(text[-1], type=Progress).rows if text else 0

    try:
        return soon(rows, what="rows that were restored", timeout_s=PATIENCE_S)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.fixture(scope="module")
def restored(
    spark: SparkSession,
    source: Source,
    target: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """What the restore that came to its end says, after one that was killed."""
    home = tmp_path_factory.mktemp("restore") / "home"
    assert killed_restore(source, target, home) > 0
    context = restore(spark, source, target, home)
    assert context.conclusion is not None
    return context.conclusion.summary


@pytest.mark.parametrize("kind", [*KINDS, "trimmed"])
def test_a_restored_log_has_the_same_records_in_order(
    source: Source, target: LocalCluster, restored: str, kind: str
) -> None:
    async def body() -> list[Record]:
        async with connected(target) as client:
            return await records_of(await client.log(kind))

    found = run(body())
    wanted = source.truth.records[kind]
    assert list(map(without_position, found)) == list(map(without_position, wanted))


def without_position(record: Record) -> tuple[object, ...]:
    return record.key, record.value, record.timestamp, record.headers


@pytest.mark.parametrize("kind", ["chain", "commit"])
def test_positions_are_as_promised_or_the_restore_says_why_not(
    source: Source, target: LocalCluster, restored: str, kind: str
) -> None:
    async def body() -> list[int]:
        async with connected(target) as client:
            return [int(each.lsn) for each in await records_of(await client.log(kind))]

    (line,) = [line for line in restored.splitlines() if line.startswith(f"log {kind} ")]
    are_same = run(body()) == [int(each.lsn) for each in source.truth.records[kind]]
    assert ("positions as saved" in line) == are_same
    assert are_same or "interrupted" in line


def test_of_a_trimmed_log_it_is_said_that_positions_are_new(restored: str) -> None:
    (line,) = [line for line in restored.splitlines() if line.startswith("log trimmed ")]
    assert f"{TRIMMED} records, new positions: the saved log began at {TRIMMED + 1}" in line


def test_restored_documents_have_their_cas_flags_expiry_and_datatype(
    source: Source, target: LocalCluster, restored: str
) -> None:
    async def body() -> Documents:
        async with connected(target) as client:
            return await documents_of(client, ALL_KEYS)

    assert run(body()) == source.truth.documents
    assert {each.datatype for each in source.truth.documents.values()} == {0, 1, 2, 3}


def test_documents_of_runs_without_datatypes_have_none(spark: SparkSession, tmp_path: Path) -> None:
    """Those of format 1, which were made before there was the column."""
    rows = {"key": [b"a", b"b"], "datatype": [1, 1]}
    fields = {"value": b"v", "seq": 1, "cas": 5, "flags": 0, "expiry": 0, "kind": "mutation"}
    table = pa.table({**rows, **{name: [value, value] for name, value in fields.items()}})
    pq.write_table(table.drop_columns(["datatype"]), tmp_path / "old.parquet")
    pq.write_table(table.slice(0, 1), tmp_path / "new.parquet")
    saved = SavedBucket(BUCKET, 1, BucketAttributes(), 3, ())
    files = {1: (str(tmp_path / "old.parquet"),), 2: (str(tmp_path / "new.parquet"),)}
    found = newest(spark, BucketSource(saved, 2, files))
    assert found is not None
    assert {row["key"]: row["datatype"] for row in found.collect()} == {b"a": 1, b"b": 0}


def test_what_is_there_is_not_written_over(
    spark: SparkSession, source: Source, target: LocalCluster, restored: str, tmp_path: Path
) -> None:
    with pytest.raises(LogExists, match="has records already"):
        restore(spark, source, target, tmp_path / "logs")
    with pytest.raises(BucketExists, match="conflict=newer"):
        restore(spark, source, target, tmp_path / "bucket", logs=())


def test_newer_documents_stay_and_others_are_written_over(
    spark: SparkSession, source: Source, target: LocalCluster, restored: str, tmp_path: Path
) -> None:
    async def change() -> None:
        async with connected(target) as client:
            await (await client.bucket(BUCKET)).set(ALL_KEYS[45], b"newer")

    async def value() -> bytes | None:
        async with connected(target) as client:
            return (await documents_of(client, [ALL_KEYS[45]]))[ALL_KEYS[45]].value

    run(change())
    restore(spark, source, target, tmp_path / "newer", logs=(), conflict="newer")
    assert run(value()) == b"newer"
    restore(spark, source, target, tmp_path / "over", logs=(), conflict="overwrite")
    assert run(value()) == b"late"


@pytest.mark.parametrize(
    ("until", "count"),
    [
        pytest.param(json.dumps({"chain": CUT + 1}), CUT, id="position"),
        pytest.param(str(FIRST_MS + 1000 * CUT), CUT, id="time"),
    ],
)
def test_a_log_can_be_had_as_of_a_point_in_time(
    spark: SparkSession,
    source: Source,
    target: LocalCluster,
    restored: str,
    tmp_path: Path,
    until: str,
    count: int,
) -> None:
    async def delete() -> None:
        async with connected(target) as client:
            await client.delete_log("chain")

    async def body() -> list[Record]:
        async with connected(target) as client:
            return await records_of(await client.log("chain"))

    run(delete())
    restore(spark, source, target, tmp_path, logs=("chain",), buckets=(), until=until)
    assert run(body()) == source.truth.records["chain"][:count]


# -- What is refused -------------------------------------------------------------------------------


def test_the_folder_of_another_cluster_is_refused(
    spark: SparkSession, source: Source, target: LocalCluster, tmp_path: Path
) -> None:
    settings = BackupSettings(cluster=",".join(target.addresses), folder=str(source.folder))
    with pytest.raises(WrongBackup, match="is a backup of the cluster"):
        run_backup(settings, Context.at(tmp_path, spark))


def test_nothing_to_go_on_from_is_refused(
    spark: SparkSession, target: LocalCluster, tmp_path: Path
) -> None:
    settings = BackupSettings(
        cluster=",".join(target.addresses), folder=str(tmp_path / "new"), mode=Mode.INCREMENTAL
    )
    with pytest.raises(UsageError, match="mode=full or auto"):
        run_backup(settings, Context.at(tmp_path, spark))


def a_file(folder: Path) -> Path:
    return next(folder.glob("000001/logs/chain/*.parquet"))


def flip_a_byte(folder: Path) -> Path:
    path = a_file(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def cut_a_file(folder: Path) -> Path:
    path = a_file(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return path


def lose_a_file(folder: Path) -> Path:
    path = a_file(folder)
    path.unlink()
    return path


def lose_a_run(folder: Path) -> Path:
    shutil.rmtree(folder / "000001")
    return folder / "000002" / MANIFEST


def change_a_manifest(folder: Path) -> Path:
    path = folder / "000001" / MANIFEST
    path.write_text(path.read_text().replace('"rows"', '"rows" '))
    return path


@pytest.mark.parametrize(
    "harm", [flip_a_byte, cut_a_file, lose_a_file, lose_a_run, change_a_manifest]
)
def test_damage_is_told_with_the_file_and_nothing_is_restored(
    spark: SparkSession, source: Source, target: LocalCluster, tmp_path: Path, harm: object
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(source.folder, folder)
    assert callable(harm)
    path = harm(folder)
    with pytest.raises(DamagedBackup) as checked:
        check_folder(folder)
    assert str(path) in str(checked.value)
    assert command(["verify-backup", str(folder)]) == FAILED
    settings = RestoreSettings(cluster=",".join(target.addresses), folder=str(folder))
    with pytest.raises(DamagedBackup) as refused:
        run_restore(settings, Context.at(tmp_path / "home", spark))
    assert str(path) in str(refused.value)


def test_a_whole_backup_is_told_so(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["verify-backup", str(source.folder)]) == DONE
    assert [line.split(" of ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "ok: run 1",
        "ok: run 2",
    ]
    assert command(["verify-backup", str(source.folder), "--format", "json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["folder"], [run["run"] for run in told["runs"]]) == (str(source.folder), [1, 2])


def test_a_run_that_died_leaves_nothing_that_counts(source: Source, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(source.folder, folder)
    (folder / "000002" / MANIFEST).unlink()
    assert [each.run for each in Chain.read(folder).runs] == [1]
