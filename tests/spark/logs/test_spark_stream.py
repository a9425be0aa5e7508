"""`spark.readStream` on a real cluster."""

import json
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.filled_logs import fill, stored
from tests.spark.logs.pipeline import WAIT_S, Pipeline
from tests.support.clusters import soon


def test_available_now_reads_what_is_there_and_goes_on_where_it_stopped(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name)
    fill(log, 5_000)
    pipeline.run_once()
    assert pipeline.rows() == stored(log)
    assert pipeline.run_once() == []
    fill(log, 1_000, first=5_000)
    assert sum(each["numInputRows"] for each in pipeline.run_once()) == 1_000
    assert pipeline.rows() == stored(log)
    last = json.loads(pipeline.offsets()[-1])
    assert last["logs"] == {log.name: {"id": log.info.id, "next": 6_001}}
    assert list(last) == ["cluster", "logs"]


def test_limits_cut_micro_batches(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, tmp_path: Path
) -> None:
    stem = f"limits-{secrets.token_hex(4)}"
    big, small = (
        client.create_log(f"{stem}-big", write_path="chain"),
        client.create_log(f"{stem}-small", write_path="chain"),
    )
    fill(big, 900)
    fill(small, 100)
    pipeline = Pipeline(
        spark, calm_cluster, tmp_path, logPattern=f"{stem}-.*", maxRecordsPerTrigger=250
    )
    counts = [each["numInputRows"] for each in pipeline.run_once()]
    assert counts == [250, 250, 250, 250]
    first = json.loads(pipeline.offsets()[0])["logs"]
    assert {name: place["next"] for name, place in first.items()} == {
        big.name: 226,
        small.name: 26,
    }


def test_a_limit_in_bytes(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    for part in range(20):
        fill(log, 100, first=part * 100, size=1_000)
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxBytesPerTrigger=500_000)
    counts = [each["numInputRows"] for each in pipeline.run_once()]
    assert sum(counts) == 2_000
    assert 4 <= len(counts) <= 6
    assert max(counts) <= 700


def test_a_running_query_follows_the_log_and_reports_its_lag(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    query = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxRecordsPerTrigger=400).start()
    try:
        fill(log, 1_000)
        seen = soon(
            lambda: [json.loads(each.json) for each in query.recentProgress if each.numInputRows],
            lambda found: sum(each["numInputRows"] for each in found) == 1_000,
            what="all rows",
            timeout_s=WAIT_S,
        )
    finally:
        query.stop()
    lags = [
        json.loads(json.dumps(source["latestOffset"]))["logs"][log.name]["next"]
        - source["endOffset"]["logs"][log.name]["next"]
        for each in seen
        for source in each["sources"]
    ]
    assert lags == sorted(lags, reverse=True)
    assert lags[-1] == 0
    assert max(lags) >= 200


def test_latest_reads_only_what_comes_after_the_start(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    fill(log, 100)
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name, startingOffsets="latest")
    query = pipeline.start()
    try:
        soon(pipeline_has_begun(query), what="the first trigger", timeout_s=WAIT_S)
        fill(log, 10, first=100)
        soon(
            lambda: sum(p.numInputRows for p in query.recentProgress),
            lambda n: n == 10,
            timeout_s=WAIT_S,
        )
    finally:
        query.stop()
    assert pipeline.rows() == stored(log)[100:]


def pipeline_has_begun(query: StreamingQuery) -> Any:
    return lambda: query.lastProgress is not None or "Waiting for data" in query.status["message"]


def test_a_log_that_appears_later_is_read_from_its_start(
    spark: SparkSession, calm_cluster: LocalCluster, client: sync.SyncClient, tmp_path: Path
) -> None:
    stem = f"late-{secrets.token_hex(4)}"
    early = client.create_log(f"{stem}-a", write_path="chain")
    fill(early, 10)
    pipeline = Pipeline(
        spark, calm_cluster, tmp_path, logPattern=f"{stem}-.*", startingOffsets="latest"
    )
    query = pipeline.start()
    try:
        soon(pipeline_has_begun(query), what="the first trigger", timeout_s=WAIT_S)
        late = client.create_log(f"{stem}-b", write_path="chain")
        fill(late, 20)
        soon(
            lambda: sum(p.numInputRows for p in query.recentProgress),
            lambda n: n == 20,
            timeout_s=WAIT_S,
        )
    finally:
        query.stop()
    assert {row.log for row in pipeline.frame().select("log").distinct().collect()} == {late.name}


@pytest.mark.alone
def test_an_idle_query_costs_next_to_nothing(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    fill(log, 10)
    pipeline = Pipeline(spark, calm_cluster, tmp_path, log=log.name, maxWaitMs=1_000)
    query = pipeline.start()
    try:
        soon(
            lambda: sum(p.numInputRows for p in query.recentProgress),
            lambda n: n == 10,
            timeout_s=WAIT_S,
        )
        source = soon(source_process, what="the source's process")
        before, started = cpu_seconds(source), time.monotonic()
        threading.Event().wait(5)
        share = (cpu_seconds(source) - before) / (time.monotonic() - started)
    finally:
        query.stop()
    assert share <= 0.02


def source_process() -> int | None:
    """The process that serves the query of this session."""
    mine = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"python_streaming_source_runner" in words and mine in ancestors(int(entry.name)):
                return int(entry.name)
    return None


def ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        pid = int(fields[1])
        found.append(pid)
    return found


def cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_trimmed_under_a_checkpoint_fails_or_goes_on_as_asked(
    spark: SparkSession, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    fill(log, 100)
    options = {"log": log.name, "maxRecordsPerTrigger": 50}
    Pipeline(spark, calm_cluster, tmp_path, **options).run_once()
    fill(log, 100, first=100)
    log.trim(151)
    with pytest.raises(Exception, match="positions 101 to 150 were trimmed before they were read"):
        Pipeline(spark, calm_cluster, tmp_path, **options).run_once()
    tolerant = Pipeline(spark, calm_cluster, tmp_path, **options, failOnDataLoss=False)
    tolerant.run_once()
    assert [lsn for lsn, _, _ in tolerant.rows()] == [*range(1, 101), *range(151, 201)]
