"""Rows whose size Spark is told: batches by their number, as Spark's Java makes them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millrace.errors import UsageError
from millrace.limits import KIB, MIB
from millrace.spark import expect_rows
from millrace.spark.expected_rows import BYTES_SETTING, ROWS_SETTING

ROWS = 1_000
NOT_MEASURED = "2147483647"  # As Spark's code has it: any other limit is measured.
SPARKS_ROWS, SPARKS_BYTES = "10000", str(64 * MIB)


@pytest.fixture
def fresh(spark: SparkSession) -> SparkSession:
    """A session with settings of its own."""
    session = spark.newSession()
    session.conf.set(ROWS_SETTING, SPARKS_ROWS)
    session.conf.set(BYTES_SETTING, SPARKS_BYTES)
    return session


def settings(spark: SparkSession) -> tuple[str | None, str | None]:
    return spark.conf.get(ROWS_SETTING), spark.conf.get(BYTES_SETTING)


def batch_rows(spark: SparkSession, value_bytes: int) -> list[int]:
    """How many rows each batch has that goes from Java to Python."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    rows = spark.range(0, ROWS, 1, 1).selectExpr(f"repeat('x', {value_bytes}) as value")
    return [row.rows for row in rows.mapInArrow(count, "rows long").collect()]


def test_spark_measures_rows_until_it_is_told(fresh: SparkSession) -> None:
    assert len(batch_rows(fresh, 100 * KIB)) == 2, "64 MiB a batch"
    expect_rows(fresh, bytes_max=1 * KIB)
    assert batch_rows(fresh, 100 * KIB) == [ROWS], "no longer measured"
    assert settings(fresh) == (SPARKS_ROWS, NOT_MEASURED)


def test_a_batch_of_larger_rows_has_fewer(fresh: SparkSession) -> None:
    expect_rows(fresh, bytes_max=256 * KIB)
    assert batch_rows(fresh, 10) == [64] * 15 + [40]
    expect_rows(fresh, bytes_max=100 * MIB)
    assert batch_rows(fresh, 10) == [1] * ROWS
    expect_rows(fresh, bytes_max=100)
    assert batch_rows(fresh, 10) == [ROWS], "a smaller size takes back the larger one's"


@pytest.mark.parametrize(
    ("before", "told"), [("777", "777"), ("50000", SPARKS_ROWS), ("0", SPARKS_ROWS)]
)
def test_a_batch_has_no_more_rows_than_was_said_before(
    fresh: SparkSession, before: str, told: str
) -> None:
    fresh.conf.set(ROWS_SETTING, before)
    expect_rows(fresh, bytes_max=1 * MIB)
    expect_rows(fresh, bytes_max=1)
    assert settings(fresh) == (told, NOT_MEASURED)


def test_what_was_set_before_is_put_back(fresh: SparkSession) -> None:
    fresh.conf.set(ROWS_SETTING, "777")
    fresh.conf.set(BYTES_SETTING, "1048576")
    expect_rows(fresh, bytes_max=None)
    assert settings(fresh) == ("777", "1048576"), "nothing was told yet"
    expect_rows(fresh, bytes_max=100)
    expect_rows(fresh, bytes_max=1 * MIB)
    expect_rows(fresh, bytes_max=None)
    assert settings(fresh) == ("777", "1048576")
    fresh.conf.set(ROWS_SETTING, "778")
    expect_rows(fresh, bytes_max=None)
    assert settings(fresh) == ("778", "1048576"), "put back once"


@pytest.mark.parametrize("size", [0, -1, 1.5, float("inf"), True, "1 KiB"])
def test_a_size_that_no_row_has_is_refused(fresh: SparkSession, size: Any) -> None:
    with pytest.raises(UsageError, match="how many bytes a row has at most"):
        expect_rows(fresh, bytes_max=size)
    assert settings(fresh) == (SPARKS_ROWS, SPARKS_BYTES)
