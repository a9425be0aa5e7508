"""Spark reads sequenced logs as it reads chain logs: over epochs, and over deaths."""

import json
import secrets
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace import sync
from millrace.errors import RecordsLost, UsageError
from millrace.local import LocalCluster
from millrace.lsn import epoch_of, lsn_of, show
from millrace.spark import options
from millrace.spark.columns import default_schema
from millrace.spark.progress import snapshot
from millrace.spark.stream import StreamReader
from millrace.types import Epoch, Lsn
from tests.spark.filled_logs import fill, rows, stored, time_of
from tests.spark.logs.pipeline import WAIT_S, Pipeline
from tests.support.clusters import MakeCluster, soon
from tests.support.epochs import next_epoch, record_of

EPOCHS = (700, 200, 500)  # Records of each that has any; there are empty ones between.
RECORDS = sum(EPOCHS)


@pytest.fixture
def log(client: sync.SyncClient) -> sync.SyncLog:
    """Empty, and this test's own."""
    return make_log(client, f"sequenced-{secrets.token_hex(4)}")


def make_log(client: sync.SyncClient, name: str) -> sync.SyncLog:
    return client.create_log(name, write_path="sequenced", compression=False)


def change_epoch(client: sync.SyncClient, log: sync.SyncLog) -> Epoch:
    return sync.run(next_epoch(client._client, log._log))


def fill_epochs(
    client: sync.SyncClient, log: sync.SyncLog, *counts: int, size: int = 100
) -> list[Epoch]:
    """So many records in each; the epochs that they went to."""
    epochs = [Epoch(1)]
    for number, count in enumerate(counts):
        if number:
            epochs.append(change_epoch(client, log))
        fill(log, count, first=sum(counts[:number]), size=size)
    return epochs


def read(
    spark: SparkSession, cluster: LocalCluster, log: sync.SyncLog, **given: object
) -> DataFrame:
    return (
        spark.read.format("millrace")
        .option("cluster", ",".join(cluster.addresses))
        .options(**{name: str(value) for name, value in given.items()})
        .load(log.name)
    )


# -- Batches --------------------------------------------------------------------------------------


def test_rows_equal_what_was_appended_in_all_epochs(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, *EPOCHS)
    found = rows(read(spark, calm_cluster, log))
    assert len(found) == RECORDS
    assert found == stored(log)


def test_an_empty_log_has_no_rows(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog
) -> None:
    assert read(spark, calm_cluster, log).count() == 0


def test_tasks_share_the_records_and_not_the_positions(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, *EPOCHS)
    frame = read(spark, calm_cluster, log, minPartitions=7)
    by_task = frame.groupBy(f.spark_partition_id().alias("task")).agg(
        f.count("*").alias("rows"), f.min("lsn").alias("first"), f.max("lsn").alias("last")
    )
    tasks = sorted(by_task.collect(), key=lambda row: row.first)
    assert [row.rows for row in tasks] == pytest.approx([RECORDS // 7] * 7, rel=0.05)
    assert sum(row.rows for row in tasks) == RECORDS
    assert all(before.last < after.first for before, after in pairwise(tasks))


def test_positions_may_be_written_as_people_write_them(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    first, _, third = fill_epochs(client, log, *EPOCHS)
    begin, end = lsn_of(first, 601), lsn_of(third, 11)
    frame = read(
        spark,
        calm_cluster,
        log,
        startingOffsets=json.dumps({log.name: show(begin)}),
        endingOffsets=json.dumps({log.name: show(end)}),
    )
    wanted = [row for row in stored(log) if begin <= row[0] < end]
    assert rows(frame) == wanted
    assert len(wanted) == 100 + 200 + 10
    from_below = read(spark, calm_cluster, log, startingOffsets=json.dumps({log.name: 1}))
    assert from_below.count() == RECORDS
    beyond = read(spark, calm_cluster, log, startingOffsets=f'{{"{log.name}": "e99n1"}}')
    with pytest.raises(Exception, match="position e99n1 lies beyond the end"):
        beyond.count()


def test_times_are_bounds_to_the_record(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, *EPOCHS)
    frame = read(
        spark,
        calm_cluster,
        log,
        startingTimestamp=time_of(650) // 1000,
        endingTimestamp=time_of(950) // 1000,
    )
    assert rows(frame) == stored(log)[650:950]


def test_nodes_leave_out_what_is_not_asked_for(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, *EPOCHS)
    frame = read(spark, calm_cluster, log, keys='["key-1", "key-2"]')
    assert rows(frame) == [row for row in stored(log) if row[1] in (b"key-1", b"key-2")]


def test_gaps_between_epochs_are_rows_when_asked_for(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    first, second = fill_epochs(client, log, 100, 50)
    frame = read(spark, calm_cluster, log, includeGaps=True).orderBy("lsn")
    gaps = [row.gap for row in frame.where("gap is not null").collect()]
    assert {gap.kind for gap in gaps} == {"bridge"}
    assert (gaps[0].first, gaps[-1].last) == (lsn_of(first, 101), lsn_of(second, 0))
    assert all(before.last + 1 == after.first for before, after in pairwise(gaps))
    assert frame.where("gap is null").count() == 150


def test_what_was_trimmed_fails_or_is_passed_over_as_asked(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, 100, 50)
    log.trim("e1n41")
    assert read(spark, calm_cluster, log).count() == 110
    given = {"startingOffsets": json.dumps({log.name: "e1n11"})}
    with pytest.raises(Exception, match="positions e1n11 to e1n40 were trimmed"):
        read(spark, calm_cluster, log, **given).count()
    assert read(spark, calm_cluster, log, **given, failOnDataLoss=False).count() == 110


# -- Streams --------------------------------------------------------------------------------------


def test_limits_count_records_over_epochs(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    client: sync.SyncClient,
    log: sync.SyncLog,
    tmp_path: Path,
) -> None:
    epochs = fill_epochs(client, log, *EPOCHS)
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxRecordsPerTrigger=300)
    counts = [each["numInputRows"] for each in pipeline.run_once()]
    assert counts == [300, 300, 300, 300, 200]
    assert pipeline.rows() == stored(log)
    ends = [json.loads(text)["logs"][log.name]["next"] for text in pipeline.offsets()]
    assert [show(end) for end in ends[:3]] == ["e1n301", "e1n601", f"e{epochs[1]}n201"]
    assert pipeline.run_once() == []
    last = change_epoch(client, log)
    fill(log, 10, first=RECORDS)
    assert [each["numInputRows"] for each in pipeline.run_once()] == [10]
    assert epoch_of(Lsn(json.loads(pipeline.offsets()[-1])["logs"][log.name]["next"])) == last
    assert pipeline.rows() == stored(log)


def test_limits_in_bytes_pass_the_void_in_one_step(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    client: sync.SyncClient,
    log: sync.SyncLog,
    tmp_path: Path,
) -> None:
    fill_epochs(client, log, *EPOCHS, size=1_000)
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxBytesPerTrigger=300_000)
    counts = [each["numInputRows"] for each in pipeline.run_once()]
    assert sum(counts) == RECORDS
    assert 4 <= len(counts) <= 7
    assert max(counts) <= 450
    assert pipeline.rows() == stored(log)


def test_a_running_query_follows_the_log_into_new_epochs_and_counts_its_lag(
    spark: SparkSession,
    calm_cluster: LocalCluster,
    client: sync.SyncClient,
    log: sync.SyncLog,
    tmp_path: Path,
) -> None:
    fill_epochs(client, log, 500, 300)
    query = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxRecordsPerTrigger=400).start()

    def progress() -> list[dict[str, object]]:
        return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]

    try:
        seen = soon(progress, lambda found: len(found) == 2, what="all rows", timeout_s=WAIT_S)
        waiting = [each["sources"][0]["latestOffset"]["logs"][log.name] for each in seen]
        assert [(place["taken"], place["waiting"]) for place in waiting] == [(400, 400), (400, 0)]
        assert [each.lag_records for each in snapshot(query).logs] == [0]
        change_epoch(client, log)
        fill(log, 100, first=800)
        soon(progress, lambda found: len(found) == 3, what="the new epoch", timeout_s=WAIT_S)
    finally:
        query.stop()
    assert [each["numInputRows"] for each in progress()] == [400, 400, 100]
    frame = Pipeline(spark, calm_cluster, tmp_path).rows()
    assert frame == stored(log)


def test_a_sequencer_and_then_a_node_killed_in_mid_query_go_unnoticed(
    spark: SparkSession, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(5)
    with sync.connect(cluster.addresses) as client:
        log = make_log(client, "events")
        fill(log, 10_000)
        pipeline = Pipeline(spark, cluster, tmp_path, log="events", maxRecordsPerTrigger=2_000)
        query = pipeline.start()
        try:
            soon(lambda: query.recentProgress, what="the first micro-batch", timeout_s=WAIT_S)
            sequencer = sync.run(record_of(client._client, log.info.id)).sequencer
            victims = [sequencer, *(n.id for n in cluster.nodes if n.id != sequencer)]
            killed = [number for number in victims if number != 1][:2]
            for turn, number in enumerate(killed):
                cluster.kill(number)
                fill(log, 2_000, first=10_000 + 2_000 * turn)
                cluster.start([number])
            soon(
                lambda: sum(each.numInputRows for each in query.recentProgress),
                lambda count: count >= 14_000,
                what="all rows",
                timeout_s=2 * WAIT_S,
            )
            assert query.isActive
        finally:
            query.stop()
        found = stored(log)
        assert len(found) == 14_000
        assert epoch_of(Lsn(found[-1][0])) > 1
        assert pipeline.rows() == found
        assert rows(read(spark, cluster, log)) == found


# -- What Spark asks of a stream reader, asked without Spark --------------------------------------


def reader_of(cluster: LocalCluster, **given: object) -> StreamReader:
    parsed = options.parse(
        {
            "cluster": ",".join(cluster.addresses),
            "startingOffsets": "earliest",
            "maxWaitMs": "50",
            **{name: str(value) for name, value in given.items()},
        }
    )
    return StreamReader(parsed, default_schema(parsed))


def test_an_epoch_without_records_is_passed_whatever_the_limit(
    calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill(log, 10)
    reader = reader_of(calm_cluster, log=log.name, maxRecordsPerTrigger=10)
    place = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert show(place["logs"][log.name]["next"]) == "e1n11"
    epoch = change_epoch(client, log)

    def look() -> str:
        nonlocal place
        place = reader.latestOffset(place, ReadMaxRows(10))
        return show(place["logs"][log.name]["next"])

    soon(look, lambda seen: seen == f"e{epoch}n1", what="the new epoch")
    fill(log, 25, first=10)
    seen = [soon(look, lambda seen, old=old: seen != old) for old in (f"e{epoch}n1",)]
    while seen[-1] != f"e{epoch}n26":
        seen.append(look())
    assert seen == [f"e{epoch}n{offset}" for offset in (11, 21, 26)]
    reader.stop()


def test_limits_are_shared_by_logs_of_both_kinds(
    calm_cluster: LocalCluster, client: sync.SyncClient
) -> None:
    stem = f"both-{secrets.token_hex(4)}"
    chain, sequenced = (
        client.create_log(f"{stem}-a", write_path="chain"),
        make_log(client, f"{stem}-b"),
    )
    fill(chain, 300)
    _, second = fill_epochs(client, sequenced, 50, 50)
    reader = reader_of(calm_cluster, logPattern=f"{stem}-.*", maxRecordsPerTrigger=280)
    place = reader.latestOffset(reader.initialOffset(), ReadMaxRows(280))
    found = {name: show(each["next"]) for name, each in place["logs"].items()}
    assert found == {chain.name: "211", sequenced.name: f"e{second}n21"}
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert {name: each["waiting"] for name, each in reported["logs"].items()} == {
        chain.name: 90,
        sequenced.name: 30,
    }
    reader.stop()


def test_a_checkpoint_beyond_the_end_is_a_loss(
    calm_cluster: LocalCluster, client: sync.SyncClient, log: sync.SyncLog
) -> None:
    fill_epochs(client, log, 10, 5)
    reader = reader_of(calm_cluster, log=log.name)
    start = reader.initialOffset()
    start["logs"][log.name]["next"] = lsn_of(Epoch(9), 8)
    with pytest.raises(RecordsLost, match="was read up to e9n7 and ends at e3n5 now"):
        reader.latestOffset(start, ReadAllAvailable())
    reader.stop()


def test_a_log_of_the_other_kind_in_place_of_the_old_one_is_refused(
    calm_cluster: LocalCluster, client: sync.SyncClient
) -> None:
    name = f"made-again-{secrets.token_hex(4)}"
    fill(client.create_log(name), 5)
    reader = reader_of(calm_cluster, log=name)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
    client.delete_log(name)
    fill(make_log(client, name), 3)
    with pytest.raises(UsageError, match="deleted and made again"):
        reader_of(calm_cluster, log=name).latestOffset(start, ReadAllAvailable())
    tolerant = reader_of(calm_cluster, log=name, failOnDataLoss=False)
    end = tolerant.latestOffset(start, ReadAllAvailable())
    (task,) = [partition.value for partition in tolerant.partitions(start, end)]
    assert (show(task.first), show(task.end)) == ("e1n1", "e1n4")
    tolerant.stop()
