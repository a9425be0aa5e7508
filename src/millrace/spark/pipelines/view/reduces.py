"""What becomes of a view key's values: count, sum, stats, min, max, or a function of the user's.

A group is the multiset of the values that documents emitted under one view key.  What changes is
told as (value, times), times below zero for what is taken back.  Count and sum need nothing but
their totals; the others look at the group's rows, which its shard then keeps in order, each value
once with how often it is there.

  I1  What is shown depends on the group alone, not on the order in which it came to be.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from millrace.errors import FunctionFailed
from millrace.spark.pipelines.view.exact import ZERO, Exact, unpacked
from millrace.spark.pipelines.view.functions import FunctionName, place_of
from millrace.spark.pipelines.view.order import decode, encode, is_number

SORTED_BYTES_MAX: Final = 250  # Of a value whose order matters: it is part of a key of the store.
NO_VALUE: Final = b""  # Instead of values that the reduce does not look at.


class BuiltIn(Enum):
    COUNT = "count"
    SUM = "sum"
    STATS = "stats"
    MIN = "min"
    MAX = "max"


class Totals(msgspec.Struct):
    """Of one group.  `shown` is its result, as JSON."""

    count: int = 0
    sum: Exact = ZERO
    squares: Exact = ZERO
    shown: bytes = b""

    def pack(self) -> bytes:
        packed = (self.count, self.sum.packed(), self.squares.packed(), self.shown)
        return msgspec.msgpack.encode(packed)


def unpack_totals(packed: bytes) -> Totals:
    count, sum, squares, shown = msgspec.msgpack.decode(packed)
    return Totals(count, unpacked(sum), unpacked(squares), shown)


class Rows(Protocol):
    """The values of one group, encoded, in order."""

    def first(self) -> bytes: ...

    def last(self) -> bytes: ...

    def all(self) -> Iterator[tuple[bytes, int]]:
        """Each with how often it is there."""
        ...


class Reduce(Protocol):
    """`has_rows`: the shard keeps them."""

    has_rows: bool

    def encode(self, value: Any) -> bytes:
        """Raises ValueError or TypeError for a value that it cannot reduce."""
        ...

    def add(self, totals: Totals, value: bytes, times: int) -> None: ...

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        """Of a group that is not empty."""
        ...


class Count:
    has_rows = False

    def encode(self, value: Any) -> bytes:
        return NO_VALUE

    def add(self, totals: Totals, value: bytes, times: int) -> None:
        totals.count += times

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        return totals.count


class Sum:
    has_rows = False

    def encode(self, value: Any) -> bytes:
        return _number(value, "sum")

    def add(self, totals: Totals, value: bytes, times: int) -> None:
        totals.count += times
        totals.sum = totals.sum.plus(decode(value), times)

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        return totals.sum.shown()


class Stats:
    has_rows = True

    def encode(self, value: Any) -> bytes:
        return _number(value, "stats")

    def add(self, totals: Totals, value: bytes, times: int) -> None:
        number = decode(value)
        totals.count += times
        totals.sum = totals.sum.plus(number, times)
        totals.squares = totals.squares.plus_square(number, times)

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        return {
            "count": totals.count,
            "sum": totals.sum.shown(),
            "min": decode(rows.first()),
            "max": decode(rows.last()),
            "sumsqr": totals.squares.shown(),
        }


class Extreme:
    """min and max, of any values, in their order."""

    has_rows = True

    def __init__(self, is_max: bool) -> None:
        self._is_max = is_max

    def encode(self, value: Any) -> bytes:
        encoded = encode(value)
        if len(encoded) > SORTED_BYTES_MAX:
            raise ValueError(
                f"min and max compare values of up to {SORTED_BYTES_MAX} bytes, and one has "
                f"{len(encoded)}"
            )
        return encoded

    def add(self, totals: Totals, value: bytes, times: int) -> None:
        totals.count += times

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        return decode(rows.last() if self._is_max else rows.first())


class Own:
    """`reduce(key, values) -> value`; the values come in their order."""

    has_rows = True

    def __init__(self, name: FunctionName) -> None:
        self._function: Callable[..., Any] = name.load()

    def encode(self, value: Any) -> bytes:
        return encode(value)

    def add(self, totals: Totals, value: bytes, times: int) -> None:
        totals.count += times

    def show(self, key: bytes, totals: Totals, rows: Rows) -> Any:
        values = [decode(value) for value, times in rows.all() for _ in range(times)]
        try:
            result = self._function(decode(key), values)
            msgspec.json.encode(result)
        except Exception as error:  # Whatever the user's function does.
            raise FunctionFailed(
                f"the reduce function failed for view key {decode(key)!r}: "
                f"{place_of(error, self._function)}; correct it and run the view again"
            ) from error
        return result


def _number(value: Any, reduce: str) -> bytes:
    encoded = encode(value)
    if not is_number(encoded):
        raise TypeError(f"{reduce} takes numbers, and {value!r} is none")
    return encoded


def built_in(kind: BuiltIn) -> Reduce:
    match kind:
        case BuiltIn.COUNT:
            return Count()
        case BuiltIn.SUM:
            return Sum()
        case BuiltIn.STATS:
            return Stats()
        case BuiltIn.MIN | BuiltIn.MAX:
            return Extreme(is_max=kind is BuiltIn.MAX)
