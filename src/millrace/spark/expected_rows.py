"""`millrace.spark.expect_rows()`: Spark is told how large rows are, and need not measure them.

Spark hands rows to Python in batches, of so many rows and so many bytes at most.  To know the bytes
it asks all columns anew after every row, which is half of what its Java does to a row of 100 bytes.
Whoever knows how large rows are can bound a batch by their number alone.

What was set before is kept in the session itself, under a name of ours, until it is put back: a
session has many handles, and queries have copies of it.
"""

from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from millrace.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
BEFORE_SETTING: Final = "spark.millrace.beforeExpectRows"
# Spark 4.3 leaves out the question for this limit and no other: `underBatchSizeLimit` in
# BatchedPythonArrowInput.
UNMEASURED: Final = 2**31 - 1
BATCH_BYTES_MAX: Final = 16 * MIB  # Spark's own is 64: room for rows that are larger after all.
BATCH_ROWS_MAX: Final = 10_000  # Spark's own; more were no faster.


def expect_rows(spark: "SparkSession", *, bytes_max: int | None) -> None:
    """Rows that go to Python are taken to have at most `bytes_max` bytes, all columns together,
    in what this session begins from now on: small ones are written faster.  None: as before.

    A batch has as many rows as then fit into 16 MiB, or fewer if the session says so.  Of rows that
    are larger after all a batch needs as much more memory; what Java has no room for ends it."""
    if bytes_max is None:
        _put_back(spark)
        return
    if isinstance(bytes_max, bool) or not isinstance(bytes_max, int) or bytes_max < 1:
        raise UsageError(
            f"bytes_max is how many bytes a row has at most, 1 or more, or None, not {bytes_max!r}"
        )
    before = spark.conf.get(BEFORE_SETTING, None)
    if before is None:
        before = f"{spark.conf.get(ROWS_SETTING)} {spark.conf.get(BYTES_SETTING)}"
        spark.conf.set(BEFORE_SETTING, before)
    rows_max = int(before.split()[0])
    if not 0 < rows_max < BATCH_ROWS_MAX:  # None at all, to Spark, if it is not above zero.
        rows_max = BATCH_ROWS_MAX
    spark.conf.set(ROWS_SETTING, max(1, min(rows_max, BATCH_BYTES_MAX // bytes_max)))
    spark.conf.set(BYTES_SETTING, UNMEASURED)


def _put_back(spark: "SparkSession") -> None:
    before = spark.conf.get(BEFORE_SETTING, None)
    if before is not None:
        for name, value in zip((ROWS_SETTING, BYTES_SETTING), before.split(), strict=True):
            spark.conf.set(name, value)
        spark.conf.unset(BEFORE_SETTING)
