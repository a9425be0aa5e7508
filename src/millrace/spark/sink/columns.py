"""The columns that are written: what a frame may have, and its rows by log.

The schema is checked on the driver, before a task runs; nulls are found where the rows are.  All of
it is done with Arrow's kernels: no row becomes a Python object, and rows of a single log are not
moved.

I1  Rows of one log keep the order that they had.
I2  Every row given in comes out once, or is counted as skipped, or the task fails and names it.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampType,
)

from millrace.errors import UsageError
from millrace.spark.sink.options import OnNull, SinkOptions

WRITTEN: Final = ("value", "key", "timestamp", "headers")
LOG_NAMES: Final = ("log", "topic")  # The second is what Spark's Kafka sink calls it.
KEY_CHARS_SHOWN: Final = 40
_NAMES: Final = (*WRITTEN, *LOG_NAMES)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": "binary or string",
    "key": "binary or string",
    "timestamp": "timestamp",
    "headers": _HEADERS,
    "log": "string",
    "topic": "string",
}


# -- The schema ---------------------------------------------------------------------------------


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises UsageError."""
    if unknown := [name for name in schema.names if name not in _NAMES]:
        listed = ", ".join(repr(name) for name in unknown)
        raise UsageError(
            f"a log has no column {', '.join(unknown)}: there are {', '.join(_NAMES)}. Leave out "
            f"what is not written, .drop({listed}), or make it part of the value, "
            '.selectExpr("to_json(struct(*)) AS value")'
        )
    if len(set(schema.names)) < len(schema.names):
        raise UsageError(f"the frame has a column twice: {', '.join(schema.names)}")
    if "value" not in schema.names:
        raise UsageError(
            "the frame has no column value, which is what a log stores: "
            '.selectExpr("to_json(struct(*)) AS value") makes one of all columns'
        )
    for field in schema.fields:
        if not _fits(field.name, field.dataType):
            raise UsageError(_misfit(field.name, field.dataType))
    _check_target(schema, options)


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "value" | "key":
            return isinstance(kind, BinaryType | StringType)
        case "timestamp":
            return isinstance(kind, TimestampType)
        case "headers":
            return isinstance(kind, ArrayType) and kind.simpleString() == _HEADERS
    return isinstance(kind, StringType)


def _misfit(name: str, kind: DataType) -> str:
    found = kind.simpleString()
    if name == "headers":
        fix = "transform(headers, h -> struct(string(h.key) AS key, binary(h.value) AS value))"
    elif name == "timestamp":
        fix = "CAST(timestamp AS timestamp)"
    elif isinstance(kind, StructType | ArrayType) or found.startswith("map<"):
        fix = f"to_json({name})"
    else:
        fix = f"CAST({name} AS string)"
    return (
        f"the column {name} is {found}, and a log takes {_TYPES[name]}: "
        f'.withColumn("{name}", expr("{fix}"))'
    )


def _check_target(schema: StructType, options: SinkOptions) -> None:
    named = [name for name in LOG_NAMES if name in schema.names]
    if options.log is not None:
        return
    if not named:
        raise UsageError(
            "nothing says which log to write: give the option log, save(name), or a column log"
        )
    if len(named) > 1:
        raise UsageError(f"the columns {' and '.join(named)} both name the log: drop one of them")


# -- Rows ---------------------------------------------------------------------------------------


class Routing:
    """Takes the batches of one task apart by log."""

    def __init__(self, schema: StructType, options: SinkOptions, partition: int) -> None:
        self.skipped = 0
        self._options = options
        self._partition = partition
        self._stored = [name for name in WRITTEN if name in schema.names]
        named = [name for name in LOG_NAMES if name in schema.names]
        self._by = None if options.log is not None else named[0]
        self._rows = 0

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Keeps I1 and I2."""
        checked = self._without_nulls(batch)
        self._rows += batch.num_rows
        if not checked.num_rows:
            return
        rows = checked.select(self._stored)
        if self._options.log is not None:
            yield self._options.log, rows
            return
        assert self._by is not None
        names: Any = checked.column(self._by)
        yield from _by_name(names, rows)

    def _without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in ("value", self._by):
            column: Any = None if name is None else batch.column(name)
            if column is None or not column.null_count:
                continue
            if self._options.on_null is OnNull.FAIL:
                raise UsageError(self._null(batch, str(name), column))
            kept = batch.filter(pc.is_valid(column))
            self.skipped += batch.num_rows - kept.num_rows
            batch = kept
        return batch

    def _null(self, batch: pa.RecordBatch, name: str, column: Any) -> str:
        index = pc.index(pc.is_null(column), True).as_py()
        about = ""
        if "key" in batch.schema.names:
            key: Any = batch.column("key")
            about = f", with the key {str(key[index].as_py())[:KEY_CHARS_SHOWN]},"
        return (
            f"row {self._rows + index + 1} of partition {self._partition}{about} has no {name}: "
            f'leave such rows out, .where("{name} IS NOT NULL"), or give the option onNull=skip'
        )


def _by_name(names: Any, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Sorting is stable, which keeps I1, and costs one copy however many logs there are."""
    counts = pc.value_counts(names).to_pylist()
    if len(counts) == 1:
        yield counts[0]["values"], rows
        return
    ordered = rows.take(pc.sort_indices(names))
    first = 0
    for each in sorted(counts, key=lambda each: each["values"].encode()):
        yield each["values"], ordered.slice(first, each["counts"])
        first += each["counts"]
