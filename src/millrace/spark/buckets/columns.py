"""The columns that are written: what a frame may have, and its rows as changes of documents.

A frame of `millrace-changes`, or of any change feed with Spark's names, can be written as it is:
`_change_type` says which rows delete, and columns that a bucket gives by itself are left out.

I1  Every row given in comes out once, or says nothing that could be written (`_says_nothing`), or
    is counted as bad; with onError=fail the first bad one ends the task, and the message says
    which it is.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from millrace.client.bucket_arguments import EXPIRY_S_MAX, FLAGS_MAX
from millrace.client.bucket_revisions import CAS_MAX, DATATYPE_MAX
from millrace.core.documents.document import NO_CAS
from millrace.errors import UsageError
from millrace.limits import DOCUMENT_KEY_BYTES_MAX
from millrace.spark.buckets.options import BucketOptions, Conflict, OnError

NUMBERS: Final = ("flags", "expiry", "cas", "_commit_version", "datatype")
_CAS: Final = NUMBERS.index("cas")
WRITTEN: Final = ("key", "value", "_change_type", *NUMBERS)
# A bucket gives these by itself.
IGNORED: Final = ("_commit_timestamp", "partition", "seq", "cause")
KEYS_SHOWN: Final = 10  # Of bad rows.
KEY_BYTES_SHOWN: Final = 40


class ChangeType(Enum):
    """The words of Spark's change feeds."""

    INSERT = "insert"
    UPDATE_POSTIMAGE = "update_postimage"
    UPDATE_PREIMAGE = "update_preimage"  # What was there before: nothing to write.
    DELETE = "delete"


_KINDS: Final = tuple(kind.value for kind in ChangeType)
_PREIMAGE: Final = ChangeType.UPDATE_PREIMAGE.value
_DELETE: Final = ChangeType.DELETE.value


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one row asks for; `value` None deletes."""

    key: bytes
    value: bytes | None
    flags: int = 0
    expiry_s: int = 0
    cas: int = 0
    version: int | None = None
    datatype: int = 0


# -- The schema ---------------------------------------------------------------------------------


def check_schema(schema: StructType, options: BucketOptions) -> None:
    """Raises UsageError."""
    if unknown := [name for name in schema.names if name not in (*WRITTEN, *IGNORED)]:
        listed = ", ".join(repr(name) for name in unknown)
        raise UsageError(
            f"a document has no column {', '.join(unknown)}: there are {', '.join(WRITTEN)}. Leave "
            f"out what is not written, .drop({listed}), or make it part of the value, "
            '.selectExpr("key", "to_json(struct(*)) AS value")'
        )
    if len(set(schema.names)) < len(schema.names):
        raise UsageError(f"the frame has a column twice: {', '.join(schema.names)}")
    if "key" not in schema.names:
        raise UsageError(
            "the frame has no column key, by which a bucket finds its documents: "
            '.withColumnRenamed("…", "key")'
        )
    if "value" not in schema.names and "_change_type" not in schema.names:
        raise UsageError(
            "the frame has no column value: give it, or a column _change_type that says 'delete'"
        )
    if options.conflict is Conflict.REVISION and "cas" not in schema.names:
        raise UsageError(
            "the option conflict=revision needs the column cas: without one no row is newer than "
            "what is there; conflict=overwrite does without"
        )
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(name: str, kind: DataType) -> None:
    if name in NUMBERS:
        allowed: tuple[type[DataType], ...] = (IntegerType, LongType)
        words = "int or bigint"
    elif name == "_change_type":
        allowed, words = (StringType,), "string"
    elif name in ("key", "value"):
        allowed, words = (BinaryType, StringType), "binary or string"
    else:
        return
    if not isinstance(kind, allowed):
        is_text = name in ("key", "value") and "<" in kind.simpleString()
        fix = f"to_json({name})" if is_text else f"CAST({name} AS {words.rpartition(' ')[2]})"
        raise UsageError(
            f"the column {name} is {kind.simpleString()}, and a bucket takes {words}: "
            f'.withColumn("{name}", expr("{fix}"))'
        )


# -- Rows ---------------------------------------------------------------------------------------


class Rows:
    """Takes the batches of one task apart into changes."""

    def __init__(self, options: BucketOptions, value_bytes_max: int, partition: int) -> None:
        self.bad = 0
        self.bad_keys: list[str] = []  # The first of them.
        self._options = options
        self._value_bytes_max = value_bytes_max
        self._partition = partition
        self._rows = 0

    def changes(self, batch: pa.RecordBatch) -> Iterator[Change]:
        """Keeps I1."""
        columns = [_column(batch, name) for name in WRITTEN]
        for key, value, kind, *numbers in zip(*columns, strict=True):
            self._rows += 1
            if self._says_nothing(key, kind, numbers):
                continue
            body = None if kind == _DELETE else value
            complaint = self._complaint(key, body, kind, numbers)
            if complaint:
                self._refuse(key, complaint)
                continue
            flags, expiry_s, cas, version, datatype = numbers
            yield Change(key, body, flags or 0, expiry_s or 0, cas or 0, version, datatype or 0)

    def _says_nothing(self, key: bytes | None, kind: str | None, numbers: list[Any]) -> bool:
        """An image of before; or, after a rollback, that a key exists nowhere any more, and so has
        no revision which could be compared."""
        if kind == _PREIMAGE:
            return True
        is_compared = self._options.conflict is Conflict.REVISION
        return is_compared and kind == _DELETE and bool(key) and numbers[_CAS] == NO_CAS

    def _complaint(
        self, key: bytes | None, value: bytes | None, kind: str | None, numbers: list[Any]
    ) -> str:
        """Why no bucket can take it; empty: it can."""
        if key is None:
            return "has no key"
        if not 0 < len(key) <= DOCUMENT_KEY_BYTES_MAX:
            return (
                f"has a key of {len(key)} bytes, and a bucket takes 1 to {DOCUMENT_KEY_BYTES_MAX}"
            )
        if kind is not None and kind not in _KINDS:
            return f"has the _change_type {kind!r}, and there are {', '.join(_KINDS)}"
        if value is not None and len(value) > self._value_bytes_max:
            return (
                f"has a value of {len(value)} bytes, and bucket {self._options.bucket!r} takes "
                f"{self._value_bytes_max}"
            )
        return self._number_complaint(numbers)

    def _number_complaint(self, numbers: list[Any]) -> str:
        flags, expiry_s, cas, _, datatype = numbers
        for name, number, largest in (
            ("flags", flags, FLAGS_MAX),
            ("expiry", expiry_s, EXPIRY_S_MAX),
            ("datatype", datatype, DATATYPE_MAX),
        ):
            if number is not None and not 0 <= number <= largest:
                return f"has {name} {number}, and there are 0 to {largest}"
        if self._options.conflict is Conflict.REVISION and not 0 < (cas or 0) <= CAS_MAX:
            return f"has the cas {cas}, which names no revision (conflict=revision compares them)"
        return ""

    def _refuse(self, key: bytes | None, complaint: str) -> None:
        shown = "NULL" if key is None else repr(key[:KEY_BYTES_SHOWN])
        if self._options.on_error is OnError.FAIL:
            about = "" if key is None else f", with the key {shown},"
            raise UsageError(
                f"row {self._rows} of partition {self._partition}{about} {complaint}: leave such "
                "rows out, or give the option onError=skip"
            )
        self.bad += 1
        if len(self.bad_keys) < KEYS_SHOWN:
            self.bad_keys.append(shown)


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Keys and values as bytes, whichever they are."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column: Any = batch.column(name)
    return list((column.cast(pa.binary()) if name in ("key", "value") else column).to_pylist())
