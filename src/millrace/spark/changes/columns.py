"""Columns: from what a change stream carries to what Spark expects, in a few kernels a batch.

A set is an `update_postimage`: whether a document is new a change does not say.  Deletions and
expiries are `delete`.  The names are those of Spark's own change interface.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.codec.memcached.columns import encode_documents, to_arrow
from millrace.core.documents.change_query import ERA_SHIFT
from millrace.core.documents.document import (
    NO_CAS,
    NO_SEQ,
    ChangeKind,
    Document,
    PartitionId,
    Seq,
)
from millrace.errors import UsageError
from millrace.spark.changes.options import Format

CAUSES: Final = ("mutation", "deletion", "expiry", "rollback")  # By kind of change.
_ROLLBACK: Final = 3
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "_change_type": StringType(),
    "_commit_version": LongType(),
    "_commit_timestamp": TimestampType(),
    "partition": IntegerType(),
    "seq": LongType(),
    "cas": LongType(),
    "cause": StringType(),
    "flags": LongType(),
    "expiry": LongType(),
    "datatype": IntegerType(),
}
_SOURCE: Final = StructType(
    [
        StructField("connector", StringType()),
        StructField("db", StringType()),
        StructField("snapshot", StringType()),
        StructField("ts_ms", LongType()),
        *(StructField(name, _TYPES[name]) for name in ("partition", "seq", "cas", "cause")),
        StructField("version", LongType()),
    ]
)
_DEBEZIUM: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "op": StringType(),
    "before": BinaryType(),
    "after": BinaryType(),
    "source": _SOURCE,
    "ts_ms": LongType(),
}
CONNECTOR: Final = "millrace"

Column = Any  # An Arrow array, of whatever type.


class Taken(msgspec.Struct, frozen=True):
    """Changes of one partition as they came; those at or below `point` are told again."""

    partition: PartitionId
    era: int
    point: Seq
    rows: pa.RecordBatch


def default_schema(format: Format) -> StructType:
    types = _TYPES if format is Format.ROWS else _DEBEZIUM
    return StructType([StructField(name, kind) for name, kind in types.items()])


def check_schema(schema: StructType, format: Format) -> None:
    """A schema given by the user may name any of the columns, in any order; raises UsageError."""
    types = _TYPES if format is Format.ROWS else _DEBEZIUM
    for field in schema.fields:
        kind = types.get(field.name)
        if kind is None:
            raise UsageError(
                f"the schema asks for a column {field.name!r}; there are {', '.join(types)}"
            )
        wanted, known = field.dataType.simpleString(), kind.simpleString()
        if wanted != known:
            raise UsageError(f"the column {field.name} is {known}, not {wanted}")
    if len(set(schema.names)) < len(schema.names):
        raise UsageError(f"the schema names a column twice: {', '.join(schema.names)}")


def documents_of(
    documents: Sequence[Document], missing: Sequence[bytes], seq: Seq
) -> pa.RecordBatch:
    """As columns; a key that is missing is deleted at `seq`."""
    gone = [Document(key, b"", seq, NO_CAS, kind=ChangeKind.DELETION) for key in missing]
    return to_arrow(encode_documents([*documents, *gone]))


class Shape:
    """Makes batches to the measure of one schema."""

    def __init__(
        self, schema: StructType, format: Format, bucket: str, *, is_snapshot: bool = False
    ) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._make = self._row_column if format is Format.ROWS else self._debezium_column
        self._bucket = bucket
        self._is_snapshot = is_snapshot

    def rows(self, taken: Sequence[Taken]) -> pa.RecordBatch:
        joined = _Joined(taken)
        arrays = [self._make(field.name, field.type, joined) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _row_column(self, name: str, type: Any, rows: "_Joined") -> Column:
        match name:
            case "key":
                return rows.column("key")
            case "value":
                return rows.value()
            case "_change_type":
                return rows.words(("update_postimage", "delete", "delete"), rows.kinds)
            case "_commit_version":
                return rows.version()
            case "_commit_timestamp":
                return rows.column("cas").view(pa.int64()).view(type)
            case "partition":
                return pa.array(rows.repeated([each.partition for each in rows.taken], np.int32))
            case "seq":
                return rows.column("seq")
            case "cas":
                return rows.column("cas").view(pa.int64())
            case "cause":
                return rows.words(CAUSES, rows.causes())
            case "flags":
                return rows.column("flags").cast(pa.int64())
            case "datatype":
                return rows.column("datatype").cast(pa.int32())
            case _:
                return rows.expiry()

    def _debezium_column(self, name: str, type: Any, rows: "_Joined") -> Column:
        match name:
            case "key":
                return rows.column("key")
            case "op":
                update = "r" if self._is_snapshot else "u"
                return rows.words((update, "d", "d"), rows.kinds)
            case "before":
                return pa.nulls(rows.count, type)
            case "after":
                return rows.value()
            case "ts_ms":
                return rows.time_ms()
            case _:
                return self._source(type, rows)

    def _source(self, type: Any, rows: "_Joined") -> Column:
        words = {
            "connector": CONNECTOR,
            "db": self._bucket,
            "snapshot": "true" if self._is_snapshot else "false",
        }
        children: list[Column] = []
        for field in type:
            if field.name in words:
                children.append(pa.repeat(pa.scalar(words[field.name]), rows.count))
            elif field.name == "ts_ms":
                children.append(rows.time_ms())
            elif field.name == "version":
                children.append(rows.version())
            else:
                children.append(self._row_column(field.name, field.type, rows))
        return pa.StructArray.from_arrays(children, fields=list(type))


class _Joined:
    """Changes of several partitions as one batch."""

    def __init__(self, taken: Sequence[Taken]) -> None:
        self.taken = taken
        batches = [each.rows for each in taken]
        self._rows: Any = batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]
        self._lengths = [batch.num_rows for batch in batches]
        self.count = self._rows.num_rows
        self.kinds = self._rows.column("kind").to_numpy()
        self._has_deletions = bool(self.kinds.any())

    def column(self, name: str) -> Column:
        return self._rows.column(name)

    def repeated(self, each: Sequence[int], type: Any) -> Any:
        """One value for the rows of each part."""
        return np.repeat(np.array(each, type), self._lengths)

    def value(self) -> Column:
        """Tombstones have none."""
        values = self.column("value")
        if not self._has_deletions:
            return values
        return pc.if_else(pa.array(self.kinds == 0), values, pa.scalar(None, pa.binary()))

    def expiry(self) -> Column:
        """Of a tombstone the stream says here when it was made."""
        expiry = self.column("expiry").cast(pa.int64())
        if not self._has_deletions:
            return expiry
        return pc.if_else(pa.array(self.kinds == 0), expiry, pa.scalar(0, pa.int64()))

    def version(self) -> Column:
        seqs = self.column("seq")
        eras = [each.era for each in self.taken]
        if not any(eras):
            return seqs
        return pa.array(self.repeated(eras, np.int64) << ERA_SHIFT | seqs.to_numpy())

    def time_ms(self) -> Column:
        return pa.array(self.column("cas").to_numpy().astype(np.int64) // 1000)

    def causes(self) -> Any:
        points = [each.point for each in self.taken]
        if not any(point > NO_SEQ for point in points):
            return self.kinds
        is_again = self.column("seq").to_numpy() <= self.repeated(points, np.int64)
        return np.where(is_again, _ROLLBACK, self.kinds)

    def words(self, words: Sequence[str], numbers: Any) -> Column:
        if not numbers.any():  # Nearly always.
            return pa.repeat(pa.scalar(words[0]), self.count)
        return pc.take(pa.array(words), pa.array(numbers))
