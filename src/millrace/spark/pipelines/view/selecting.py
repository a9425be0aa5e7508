"""A map that is a SQL select over the documents' columns.

    SELECT country AS key, total AS value FROM documents WHERE total > 10

Spark runs it over the changed documents of a batch.  To know which document each row is of, the
select is given one column more; a select that mixes documents (GROUP BY, a join) is none of one
document, and Spark says that the column is missing there.
"""

import re
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from millrace.errors import UsageError

DOCUMENTS: Final = "documents"
_OF: Final = "_document"
_SELECT: Final = re.compile(r"\s*SELECT(\s+DISTINCT)?\s", re.IGNORECASE)


def with_document(select: str) -> str:
    """Raises UsageError."""
    found = _SELECT.match(select)
    if found is None:
        raise UsageError(
            f"map = {select!r} is no select: write SELECT ... AS key, ... AS value FROM {DOCUMENTS}"
        )
    return f"{select[: found.end()]} {_OF}, {select[found.end() :]}"


def selected(changed: DataFrame, select: str, columns: str, shard: Column) -> DataFrame:
    """A line for each changed document, and one for each row that the select gives."""
    spark = changed.sparkSession
    live = changed.where(f.col("value").isNotNull())
    parsed = live.select(
        f.col("key").alias(_OF), f.from_json(f.col("value").cast("string"), columns).alias("_json")
    )
    parsed.select(_OF, "_json.*").createOrReplaceTempView(DOCUMENTS)
    rows = spark.sql(with_document(select))
    for name in ("key", "value"):
        if name not in rows.columns:
            raise UsageError(f"map: the select gives no column {name}: write ... AS {name}")
    given = f.to_json(f.struct("key", "value")).cast("binary")
    emitted = rows.select(
        f.col(_OF).alias("key"),
        f.lit(None).cast("binary").alias("value"),
        f.lit(0).cast("bigint").alias("version"),
        given.alias("row"),
    )
    lines = changed.select("key", "value", "version", f.lit(None).cast("binary").alias("row"))
    return lines.unionByName(emitted).select(shard.alias("shard"), "*")
