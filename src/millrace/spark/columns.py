"""Columns: Spark's schema, Arrow's, and what is asked of the storage nodes.

Spark takes an Arrow batch only if its schema is exactly the one it expects, so each batch is made
to that measure; nothing is converted that lies right already.  A schema given by the user may name
any of the columns, in any order, and `key` and `value` as strings.
"""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.errors import UsageError
from millrace.spark.options import Options
from millrace.types import Gap

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_GAP: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("first", LongType()),
        StructField("last", LongType()),
    ]
)
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "log": (StringType(),),
    "lsn": (LongType(),),
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "timestamp": (TimestampType(),),
    "headers": (_HEADERS,),
    "gap": (_GAP,),
}
STORED: Final = ("key", "value", "timestamp", "headers")  # What nodes can leave out.
_PLAIN: Final = ("log", "lsn", "key", "value", "timestamp")


def default_schema(options: Options) -> StructType:
    names = [*_PLAIN]
    if options.include_headers:
        names.append("headers")
    if options.include_gaps:
        names.append("gap")
    return StructType([StructField(name, _TYPES[name][0]) for name in names])


def check_schema(schema: StructType, options: Options) -> None:
    """A schema given by the user; raises UsageError."""
    for field in schema.fields:
        kinds = _TYPES.get(field.name)
        if kinds is None:
            raise UsageError(
                f"the schema asks for a column {field.name!r}; there are {', '.join(_TYPES)}"
            )
        wanted = field.dataType.simpleString()
        known = [kind.simpleString() for kind in kinds]
        if wanted not in known:
            raise UsageError(f"the column {field.name} is {' or '.join(known)}, not {wanted}")
        if field.name == "gap" and not options.include_gaps:
            raise UsageError("the column gap needs the option includeGaps=true")
    if options.include_gaps and "gap" not in schema.names:
        raise UsageError(
            "includeGaps=true needs the column gap in the schema: rows of gaps would "
            "look like records without it"
        )
    if len(set(schema.names)) < len(schema.names):
        raise UsageError(f"the schema names a column twice: {', '.join(schema.names)}")


def stored_columns(schema: StructType) -> tuple[str, ...]:
    """What must come from the nodes; positions come always."""
    return tuple(name for name in STORED if name in schema.names)


class Shape:
    """Makes batches of one log to the measure of one schema."""

    def __init__(self, schema: StructType, log: str) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._log = log

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` has `lsn` and the stored columns that the schema names."""
        arrays = [self._column(field, batch) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def gap(self, gap: Gap) -> pa.RecordBatch:
        row: dict[str, Any] = dict.fromkeys(self.schema.names)
        about = {
            "log": self._log,
            "lsn": gap.first,
            "gap": {"kind": gap.kind.value, "first": gap.first, "last": gap.last},
        }
        row.update({name: value for name, value in about.items() if name in row})
        return pa.RecordBatch.from_pylist([row], schema=self.schema)

    def _column(self, field: "pa.Field[Any]", batch: pa.RecordBatch) -> Any:
        match field.name:
            case "log":
                return pa.repeat(pa.scalar(self._log, field.type), batch.num_rows)
            case "gap":
                return pa.nulls(batch.num_rows, field.type)
        column: Any = batch.column(field.name)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as problem:
            lsns: Any = batch.column("lsn")
            raise UsageError(
                f"log {self._log!r}, between {lsns[0]} and {lsns[-1]}: the column {field.name} "
                f"was asked for as {field.type} and is not ({problem}); ask for binary"
            ) from None
