"""`millrace.spark.expect_rows()`: Spark is told how large rows are, and need not measure them.

Spark hands rows to Python in batches, of so many rows and so many bytes at most.  To know the bytes
it asks all columns anew after every row, which is half of what its Java does to a row of 100 bytes.
Whoever knows how large rows are can bound a batch by their number alone.
"""

from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from millrace.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNMEASURED: Final = 2**31 - 1  # With this and nothing else Spark does not ask.
BATCH_BYTES_MAX: Final = 64 * MIB  # What Spark allows a batch if nobody says anything.
BATCH_ROWS_MAX: Final = 10_000  # So does Spark; more were no faster.


def expect_rows(spark: "SparkSession", bytes_max: int | None) -> None:
    """From now on rows that go to Python are taken to have at most `bytes_max` bytes, all columns
    together: writes of logs and buckets with small rows get faster, as do Python functions.

    A batch has as many rows as then fit into 64 MiB, 10,000 at most.  Rows that are larger all the
    same are taken as well, but a batch of them needs as much more memory, in Java and in Python,
    and Spark fails the task beyond 2 GiB.  With None Spark measures them again."""
    if bytes_max is None:
        spark.conf.unset(BYTES_SETTING)
        spark.conf.unset(ROWS_SETTING)
        return
    if bytes_max < 1:
        raise UsageError(f"rows have at least one byte, not {bytes_max}; None lets Spark measure")
    spark.conf.set(ROWS_SETTING, max(1, min(BATCH_ROWS_MAX, BATCH_BYTES_MAX // bytes_max)))
    spark.conf.set(BYTES_SETTING, UNMEASURED)
