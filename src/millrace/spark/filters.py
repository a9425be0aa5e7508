"""Spark's filters, as far as storage nodes can apply them.

What is understood narrows the read: which logs, which positions, a range of time, some keys.  Spark
applies every filter again to what it gets, so a filter that is understood only in part costs
nothing but bytes.
"""

import datetime
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from millrace.limits import SELECTION_KEYS_BYTES_MAX, SELECTION_KEYS_MAX
from millrace.types import LSN_MAX

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class Narrowing(msgspec.Struct, frozen=True):
    """Everything, until filters take something away.  Ranges are half-open."""

    logs: frozenset[str] | None = None
    first: int = 1
    end: int = LSN_MAX
    time_first_us: int | None = None
    time_end_us: int | None = None
    keys: frozenset[bytes] | None = None

    @property
    def is_empty(self) -> bool:
        return self.first >= self.end or self.logs == frozenset() or self.keys == frozenset()


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """All filters hold at once."""
    narrowing = Narrowing()
    for each in filters:
        narrowing = _with(narrowing, each)
    return narrowing


def _with(narrowing: Narrowing, each: Filter) -> Narrowing:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1:
        return narrowing
    match attribute[0]:
        case "log":
            found = _members(each, str)
            return _replace(narrowing, logs=_both(narrowing.logs, found))
        case "key":
            keys = _members(each, bytes | bytearray)
            return _replace(narrowing, keys=_both(narrowing.keys, _sendable(keys)))
        case "lsn":
            first, end = _range(each, int)
            return _replace(
                narrowing,
                first=max(narrowing.first, 1 if first is None else first),
                end=min(narrowing.end, LSN_MAX if end is None else end),
            )
        case "timestamp":
            return _in_time(narrowing, *_range(each, datetime.datetime))
    return narrowing


def _replace(narrowing: Narrowing, **changes: Any) -> Narrowing:
    return msgspec.structs.replace(narrowing, **changes)


def _both(known: frozenset[Any] | None, found: frozenset[Any] | None) -> frozenset[Any] | None:
    if known is None or found is None:
        return known if found is None else found
    return known & found


def _members(each: Filter, kind: Any) -> frozenset[Any] | None:
    """The values that a filter allows; None: no such list."""
    values: tuple[Any, ...]
    match each:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            values = (value,)
        case In(_, many):
            values = tuple(value for value in many if value is not None)
        case _:
            return None
    if not all(isinstance(value, kind) for value in values):
        return None
    return frozenset(bytes(value) if isinstance(value, bytearray) else value for value in values)


def _sendable(keys: frozenset[bytes] | None) -> frozenset[bytes] | None:
    """Unless they are too many: Spark will look for those itself."""
    if keys is None or len(keys) > SELECTION_KEYS_MAX:
        return None
    return keys if sum(map(len, keys)) <= SELECTION_KEYS_BYTES_MAX else None


def _range(each: Filter, kind: type) -> tuple[Any, Any]:
    """The values allowed, from the first up to and not including the end; None: no bound."""
    match each:
        case In(_, many):
            members = [_whole(value) for value in many if isinstance(value, kind)]
            if not members or len(members) != len(many):
                return None, None
            return min(members), max(members) + 1
        case EqualTo(_, value) | EqualNullSafe(_, value) if isinstance(value, kind):
            return _whole(value), _whole(value) + 1
        case GreaterThan(_, value) if isinstance(value, kind):
            return _whole(value) + 1, None
        case GreaterThanOrEqual(_, value) if isinstance(value, kind):
            return _whole(value), None
        case LessThan(_, value) if isinstance(value, kind):
            return None, _whole(value)
        case LessThanOrEqual(_, value) if isinstance(value, kind):
            return None, _whole(value) + 1
    return None, None


def _whole(value: Any) -> int:
    """Positions as they are, times in microseconds; a time without a zone is one in UTC."""
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MICROSECOND
    return int(value)


def _in_time(narrowing: Narrowing, first: int | None, end: int | None) -> Narrowing:
    if first is not None and narrowing.time_first_us is not None:
        first = max(first, narrowing.time_first_us)
    if end is not None and narrowing.time_end_us is not None:
        end = min(end, narrowing.time_end_us)
    return _replace(
        narrowing,
        time_first_us=narrowing.time_first_us if first is None else first,
        time_end_us=narrowing.time_end_us if end is None else end,
    )
