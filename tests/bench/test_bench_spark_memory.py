"""The source that the others are held against: its rows, its plans, its stream."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from bench.spark import rows as spark_rows
from bench.spark.memory import SCHEMA, MemorySource, publish, published
from millrace.spark.source import MillraceSource

NO_SCHEMA = StructType()
VALUE_BYTES = 1024
WAIT_S = 30.0


def source(**options: object) -> MemorySource:
    given: dict[str, object] = {
        "rows": 1000,
        "valueBytes": VALUE_BYTES,
        "batchRows": 100,
        "partitions": 3,
    }
    return MemorySource({name: str(value) for name, value in {**given, **options}.items()})


def ranges(partitions: Any) -> list[tuple[int, int]]:
    return [partition.value for partition in partitions]


def test_rows_have_the_schema_that_spark_expects() -> None:
    (batch,) = spark_rows.batches(VALUE_BYTES, 100, 0, 100)
    assert batch.schema == to_arrow_schema(SCHEMA, timezone="UTC")
    batch.validate(full=True)


def test_the_columns_are_those_of_the_source_it_is_held_against() -> None:
    assert MillraceSource({"cluster": "127.0.0.1:1", "log": "any"}).schema() == SCHEMA


@pytest.mark.parametrize(
    ("first", "end", "counts"),
    [
        pytest.param(0, 300, [100, 100, 100], id="whole batches"),
        pytest.param(0, 250, [100, 100, 50], id="a rest"),
        pytest.param(150, 250, [50, 50], id="across a border"),
        pytest.param(7, 8, [1], id="one row"),
        pytest.param(7, 7, [], id="no row"),
    ],
)
def test_each_row_is_given_once(first: int, end: int, counts: list[int]) -> None:
    found = list(spark_rows.batches(VALUE_BYTES, 100, first, end))
    assert [batch.num_rows for batch in found] == counts
    rows = pa.Table.from_batches(found, spark_rows.SCHEMA)
    assert rows["lsn"].to_pylist() == list(range(first + 1, end + 1))
    assert all(len(value or b"") == VALUE_BYTES for value in rows["value"].to_pylist())
    assert None not in rows["key"].to_pylist()


def test_a_row_is_the_same_in_whatever_range() -> None:
    whole = pa.Table.from_batches(spark_rows.batches(VALUE_BYTES, 100, 0, 300))
    (one,) = spark_rows.batches(VALUE_BYTES, 100, 142, 143)
    assert one.to_pylist() == whole.slice(142, 1).to_pylist()


def test_values_are_distinct() -> None:
    rows = pa.Table.from_batches(spark_rows.batches(VALUE_BYTES, 100, 0, 1000))
    assert len(set(rows["value"].to_pylist())) == 1000


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(900, [(0, 300), (300, 600), (600, 900)], id="equal parts"),
        pytest.param(1000, [(0, 300), (300, 600), (600, 1000)], id="borders between batches"),
        pytest.param(50, [(0, 50)], id="less than a batch"),
    ],
)
def test_partitions_tile_the_rows(rows: int, expected: list[tuple[int, int]]) -> None:
    reader = source(rows=rows).reader(NO_SCHEMA)
    assert ranges(reader.partitions()) == expected


def test_a_stream_without_a_feed_has_all_its_rows() -> None:
    reader = source().streamReader(NO_SCHEMA)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"next": 1000}
    assert ranges(reader.partitions({"next": 0}, {"next": 1000}))[-1][1] == 1000


def test_a_stream_keeps_its_limit() -> None:
    reader = source(maxRecordsPerTrigger=1).streamReader(NO_SCHEMA)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(1)
    assert reader.latestOffset({"next": 41}, limit) == {"next": 42}
    assert ranges(reader.partitions({"next": 41}, {"next": 42})) == [(41, 42)]


def test_a_stream_waits_for_its_feed(tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    publish(feed, 5)
    reader = source(feed=feed, maxWaitMs=int(WAIT_S * 1000)).streamReader(NO_SCHEMA)
    found: list[dict[str, int]] = []
    waiting = threading.Thread(
        target=lambda: found.append(reader.latestOffset({"next": 5}, ReadAllAvailable()))
    )
    waiting.start()
    publish(feed, 7)
    waiting.join(WAIT_S)
    assert found == [{"next": 7}]


def test_a_stream_whose_feed_stands_still_stays_where_it_is(tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    publish(feed, 5)
    reader = source(feed=feed, maxWaitMs=1).streamReader(NO_SCHEMA)
    assert reader.latestOffset({"next": 5}, ReadAllAvailable()) == {"next": 5}


def test_a_feed_in_mid_write_says_nothing(tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    feed.write_bytes(b"")
    assert published(feed) == 0
