"""What Spark asks of a stream reader, asked here without Spark: offsets, limits, what was lost."""

import re
import secrets
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from millrace import sync
from millrace.errors import RecordsLost, UsageError
from millrace.local import LocalCluster
from millrace.spark import options
from millrace.spark.columns import default_schema
from millrace.spark.stream import StreamReader
from tests.spark.filled_logs import fill

Document = dict[str, Any]


@pytest.fixture
def stem() -> str:
    return f"stream-{secrets.token_hex(4)}"


def reader_of(cluster: LocalCluster, **given: object) -> StreamReader:
    parsed = options.parse(
        {
            "cluster": ",".join(cluster.addresses),
            "startingOffsets": "earliest",
            "maxWaitMs": "50",
            **{name: str(value) for name, value in given.items()},
        }
    )
    schema: StructType = default_schema(parsed)
    return StreamReader(parsed, schema)


def places(document: Document) -> dict[str, int]:
    return {name: place["next"] for name, place in document["logs"].items()}


def ranges(reader: StreamReader, start: Document, end: Document) -> list[tuple[str, int, int]]:
    tasks = [partition.value for partition in reader.partitions(start, end)]
    return [(task.info.name, task.first, task.end) for task in tasks]


def test_an_offset_beyond_the_end_is_a_loss(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    log = client.create_log(stem, write_path="chain")
    fill(log, 100)
    reader = reader_of(calm_cluster, log=stem)
    start = reader.initialOffset()
    start["logs"][stem]["next"] = 501
    with pytest.raises(RecordsLost, match="was read up to 500 and ends at 100 now"):
        reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    tolerant = reader_of(calm_cluster, log=stem, failOnDataLoss=False)
    again = tolerant.latestOffset(start, ReadAllAvailable())
    assert places(again) == {stem: 101}
    assert ranges(tolerant, start, again) == []
    fill(log, 10, first=100)
    later = tolerant.latestOffset(again, ReadAllAvailable())
    assert ranges(tolerant, again, later) == [(stem, 101, 111)]
    tolerant.stop()


def test_a_batch_with_a_new_log_is_the_same_when_planned_again(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    fill(client.create_log(f"{stem}-a", write_path="chain"), 5)
    reader = reader_of(calm_cluster, logPattern=f"{stem}-.*", startingOffsets="latest")
    start = reader.initialOffset()
    late = client.create_log(f"{stem}-b", write_path="chain")
    fill(late, 20)
    late.trim(6)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["logs"][f"{stem}-b"]["first"] == 6
    assert ranges(reader, start, end) == [(f"{stem}-b", 6, 21)]
    late.trim(11)
    with pytest.raises(RecordsLost, match="positions 6 to 10 were trimmed"):
        reader.partitions(start, end)
    following = reader.latestOffset(end, ReadAllAvailable())
    assert "first" not in following["logs"][f"{stem}-b"]
    reader.stop()


def test_a_log_that_was_made_again_is_refused_or_read_from_its_start(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    fill(client.create_log(f"{stem}-a", write_path="chain"), 5)
    fill(client.create_log(f"{stem}-b", write_path="chain"), 5)
    first = reader_of(calm_cluster, logPattern=f"{stem}-.*")
    start = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    first.stop()
    client.delete_log(f"{stem}-b")
    tolerant = reader_of(calm_cluster, logPattern=f"{stem}-.*", failOnDataLoss=False)
    without = tolerant.latestOffset(start, ReadAllAvailable())
    assert set(without["logs"]) == {f"{stem}-a"}
    fill(client.create_log(f"{stem}-b", write_path="chain"), 3)
    strict = reader_of(calm_cluster, logPattern=f"{stem}-.*")
    with pytest.raises(UsageError, match="deleted and made again"):
        strict.latestOffset(start, ReadAllAvailable())
    strict.stop()
    end = tolerant.latestOffset(start, ReadAllAvailable())
    assert ranges(tolerant, start, end) == [(f"{stem}-b", 1, 4)]
    tolerant.stop()


def test_what_was_trimmed_takes_no_part_of_a_limit(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    log = client.create_log(stem, write_path="chain")
    fill(log, 500)
    reader = reader_of(calm_cluster, log=stem, failOnDataLoss=False, maxRecordsPerTrigger=100)
    start = reader.initialOffset()
    log.trim(401)
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert places(end) == {stem: 501}
    assert ranges(reader, start, end) == [(stem, 401, 501)]
    reader.stop()


def test_available_now_ends_at_what_was_there(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    log = client.create_log(stem, write_path="chain")
    fill(log, 10)
    reader = reader_of(calm_cluster, log=stem)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(log, 10, first=10)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert places(end) == {stem: 11}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert places(reader.reportLatestOffset() or {}) == {stem: 11}
    reader.stop()


def test_too_many_logs_are_refused(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.spark.bounds.LOGS_MAX", 1)
    for end in "ab":
        client.create_log(f"{stem}-{end}", write_path="chain")
    reader = reader_of(calm_cluster, logPattern=re.escape(stem) + ".*")
    with pytest.raises(UsageError, match="at most 1: make several queries"):
        reader.initialOffset()


def test_a_log_made_again_is_found_at_the_first_call(
    calm_cluster: LocalCluster, client: sync.SyncClient, stem: str
) -> None:
    fill(client.create_log(stem, write_path="chain"), 5)
    assert places(reader_of(calm_cluster, log=stem).initialOffset()) == {stem: 1}
    client.delete_log(stem)
    fill(client.create_log(stem, write_path="chain"), 7)
    again = reader_of(calm_cluster, log=stem, startingOffsets="latest")
    assert places(again.initialOffset()) == {stem: 8}
