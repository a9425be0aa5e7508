"""Rows whose size Spark is told: batches by their number, as Spark's Java makes them."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millrace.errors import UsageError
from millrace.limits import KIB, MIB
from millrace.spark import expect_rows

ROWS = 1_000


@pytest.fixture
def told(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    expect_rows(spark, None)


def batch_rows(spark: SparkSession, value_bytes: int) -> list[int]:
    """How many rows each batch has that goes from Java to Python."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    rows = spark.range(0, ROWS, 1, 1).selectExpr(f"repeat('x', {value_bytes}) as value")
    return [row.rows for row in rows.mapInArrow(count, "rows long").collect()]


def test_spark_measures_rows_until_it_is_told(told: SparkSession) -> None:
    assert len(batch_rows(told, 100 * KIB)) == 2, "64 MiB a batch"
    expect_rows(told, 1 * KIB)
    assert batch_rows(told, 100 * KIB) == [ROWS], "no longer measured"
    expect_rows(told, None)
    assert len(batch_rows(told, 100 * KIB)) == 2


def test_a_batch_of_larger_rows_has_fewer(told: SparkSession) -> None:
    expect_rows(told, 1 * MIB)
    assert batch_rows(told, 10) == [64] * 15 + [40]
    expect_rows(told, 100 * MIB)
    assert batch_rows(told, 10) == [1] * ROWS
    expect_rows(told, 100)
    assert batch_rows(told, 10) == [ROWS], "a smaller size takes back the larger one's"


def test_no_batch_has_more_rows_than_spark_would_give_it(told: SparkSession) -> None:
    expect_rows(told, 1)
    assert told.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "10000"


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_no_row_has_is_refused(told: SparkSession, size: int) -> None:
    with pytest.raises(UsageError, match="at least one byte"):
        expect_rows(told, size)
    assert len(batch_rows(told, 100 * KIB)) == 2
