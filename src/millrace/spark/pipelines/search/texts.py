"""What of a document is searched: its strings and numbers, or those under chosen names."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millrace.errors import UsageError

ALL_TEXT = "text"  # The one column of an index without chosen fields.


def columns_of(fields: Sequence[str]) -> list[str]:
    """The index's column for each field: `address.city` is `address_city`.  Raises UsageError."""
    columns = [field.replace(".", "_") for field in fields]
    for field, column in zip(fields, columns, strict=True):
        if not column.isidentifier() or columns.count(column) > 1 or column in ("rowid", "rank"):
            raise UsageError(
                f"fields: {field!r} cannot be searched: names of letters, digits and _ can, with "
                "dots to go deeper, each once"
            )
    return columns or [ALL_TEXT]


def texts_of(value: bytes, fields: Sequence[str]) -> list[str] | None:
    """For each column; None: it is no JSON document."""
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not fields:
        return ["\n".join(_strings(document))]
    return ["\n".join(_strings(_under(document, field))) for field in fields]


def _under(document: Any, field: str) -> Any:
    for name in field.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
