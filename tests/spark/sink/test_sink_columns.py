"""What a frame must look like to be written, and how its rows are taken apart by log."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millrace.errors import UsageError
from millrace.spark.sink.columns import Routing, check_schema
from millrace.spark.sink.options import OnNull, SinkOptions

TO_CLICKS = SinkOptions("a:1", "clicks")
BY_ROW = SinkOptions("a:1")
SKIPPING = SinkOptions("a:1", on_null=OnNull.SKIP)
TEXT, BYTES, NUMBER = StringType(), BinaryType(), LongType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))
TEXT_HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", TEXT)]))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (schema(value=BYTES), TO_CLICKS),
        (schema(value=TEXT, key=TEXT), TO_CLICKS),
        (schema(headers=HEADERS, timestamp=TimestampType(), key=BYTES, value=BYTES), TO_CLICKS),
        (schema(value=BYTES, log=TEXT), BY_ROW),
        (schema(value=BYTES, topic=TEXT), BY_ROW),
        (schema(value=BYTES, log=TEXT, topic=TEXT), TO_CLICKS),
    ],
    ids=["value", "texts", "all", "log by row", "as for Kafka", "the option decides"],
)
def test_what_can_be_written(columns: StructType, options: SinkOptions) -> None:
    check_schema(columns, options)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (schema(key=BYTES), TO_CLICKS, "has no column value"),
        (
            schema(value=BYTES, lsn=NUMBER, gap=TEXT),
            TO_CLICKS,
            "a log has no column lsn, gap: there are value, key, timestamp, headers, log, topic. "
            "Leave out what is not written, .drop('lsn', 'gap')",
        ),
        (schema(value=NUMBER), TO_CLICKS, "the column value is bigint, and a log takes binary or"),
        (schema(value=NUMBER), TO_CLICKS, 'expr("CAST(value AS string)")'),
        (schema(value=schema(a=TEXT)), TO_CLICKS, 'expr("to_json(value)")'),
        (schema(value=MapType(TEXT, TEXT)), TO_CLICKS, 'expr("to_json(value)")'),
        (schema(value=BYTES, key=NUMBER), TO_CLICKS, "the column key is bigint"),
        (
            schema(value=BYTES, timestamp=TimestampNTZType()),
            TO_CLICKS,
            'timestamp_ntz, and a log takes timestamp: .withColumn("timestamp", expr("CAST(',
        ),
        (schema(value=BYTES, headers=TEXT_HEADERS), TO_CLICKS, "binary(h.value) AS value"),
        (schema(value=BYTES, log=NUMBER), BY_ROW, "a log takes string"),
        (schema(value=BYTES), BY_ROW, "nothing says which log to write"),
        (schema(value=BYTES, log=TEXT, topic=TEXT), BY_ROW, "log and topic both name the log"),
        (
            StructType([StructField("value", BYTES), StructField("value", BYTES)]),
            TO_CLICKS,
            "has a column twice",
        ),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else "",
)
def test_what_cannot_be_written_is_refused_with_the_fix(
    columns: StructType, options: SinkOptions, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_schema(columns, options)
    assert says in str(refused.value)


# -- Rows -----------------------------------------------------------------------------------------


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def routed(options: SinkOptions, *batches: pa.RecordBatch) -> tuple[dict[str, list[Any]], int]:
    """The values of each log in order, and how many rows were skipped."""
    names = batches[0].schema.names
    routing = Routing(schema(**dict.fromkeys(names, TEXT)), options, 3)
    found: dict[str, list[Any]] = {}
    for each in batches:
        for log, rows in routing.route(each):
            assert set(rows.schema.names) <= {"value", "key", "timestamp", "headers"}
            found.setdefault(log, []).extend(rows.column("value").to_pylist())
    return found, routing.skipped


def test_rows_of_one_log_are_not_copied() -> None:
    given_in = batch(value=["a", "b"], log=["x", "x"])
    for options in (TO_CLICKS, BY_ROW):
        ((_, out),) = Routing(schema(value=TEXT, log=TEXT), options, 0).route(given_in)
        assert [each and each.address for each in out.column("value").buffers()] == [
            each and each.address for each in given_in.column("value").buffers()
        ]


def test_the_option_decides_before_the_column() -> None:
    assert routed(TO_CLICKS, batch(value=["a"], log=["orders"])) == ({"clicks": ["a"]}, 0)


@given(st.lists(st.lists(st.tuples(st.sampled_from(["", "ab", "b", "ä", "日本"]), st.integers()))))
def test_each_row_goes_to_its_log_in_order(parts: list[list[tuple[str, int]]]) -> None:
    batches = [
        pa.RecordBatch.from_pydict(
            {
                "value": pa.array([str(number) for _, number in part], pa.string()),
                "log": pa.array([log for log, _ in part], pa.string()),
            }
        )
        for part in parts
    ]
    wanted: dict[str, list[str]] = {}
    for part in parts:
        for log, number in part:
            wanted.setdefault(log, []).append(str(number))
    if batches:
        assert routed(BY_ROW, *batches) == (wanted, 0)


@pytest.mark.parametrize(
    ("column", "key", "says"),
    [
        ("value", "k2", "row 5 of partition 3, with the key k2, has no value"),
        ("log", "k2", 'row 5 of partition 3, with the key k2, has no log: leave such rows out, '
         '.where("log IS NOT NULL")'),
        ("value", "k" * 100, f"with the key {'k' * 40}, has"),
    ],
    ids=["value", "log", "long key"],
)  # fmt: skip
def test_a_null_is_named(column: str, key: str, says: str) -> None:
    before = batch(value=["v"] * 3, log=["x"] * 3, key=["k"] * 3)
    rows: dict[str, list[Any]] = {"value": ["a", "b"], "log": ["x", "y"], "key": ["k1", key]}
    rows[column][1] = None
    with pytest.raises(UsageError) as refused:
        routed(BY_ROW, before, batch(**rows))
    assert says in str(refused.value)
    assert "onNull=skip" in str(refused.value)


def test_nulls_are_skipped_and_counted_if_asked() -> None:
    rows = batch(value=["a", None, "c", "d"], log=["x", "x", None, "x"])
    assert routed(SKIPPING, rows) == ({"x": ["a", "d"]}, 2)


def test_a_batch_of_nulls_gives_nothing() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([None, None], pa.string()), "log": ["x", "x"]}
    )
    assert routed(SKIPPING, rows) == ({}, 2)
