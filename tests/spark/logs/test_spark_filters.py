"""Filters that storage nodes can apply."""

import datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from millrace.limits import SELECTION_KEYS_BYTES_MAX, SELECTION_KEYS_MAX
from millrace.spark.filters import Narrowing, narrow

NOON = datetime.datetime(2026, 8, 21, 12, tzinfo=datetime.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("filters", "narrowing"),
    [
        ([], Narrowing()),
        ([IsNotNull(("key",)), Not(EqualTo(("lsn",), 5))], Narrowing()),
        ([GreaterThan(("lsn",), 5), LessThanOrEqual(("lsn",), 9)], Narrowing(first=6, end=10)),
        ([EqualTo(("lsn",), 5)], Narrowing(first=5, end=6)),
        ([In(("lsn",), (5, 9, 7))], Narrowing(first=5, end=10)),
        ([EqualTo(("log",), "a")], Narrowing(logs=frozenset({"a"}))),
        ([In(("log",), ("a", "b")), EqualTo(("log",), "b")], Narrowing(logs=frozenset({"b"}))),
        ([EqualTo(("key",), bytearray(b"k"))], Narrowing(keys=frozenset({b"k"}))),
        ([In(("key",), (b"k", b"l", None))], Narrowing(keys=frozenset({b"k", b"l"}))),
        ([EqualTo(("key",), "text")], Narrowing()),
        (
            [GreaterThanOrEqual(("timestamp",), NOON), LessThan(("timestamp",), NOON)],
            Narrowing(time_first_us=NOON_US, time_end_us=NOON_US),
        ),
        (
            [EqualTo(("timestamp",), NOON.replace(tzinfo=None))],
            Narrowing(time_first_us=NOON_US, time_end_us=NOON_US + 1),
        ),
        ([EqualTo(("gap", "first"), 5)], Narrowing()),
        ([EqualTo(("value",), b"v")], Narrowing()),
        ([GreaterThan(("lsn",), 5.5)], Narrowing()),
    ],
)
def test_what_is_understood(filters: list[Filter], narrowing: Narrowing) -> None:
    assert narrow(filters) == narrowing


def test_contradictions_leave_nothing() -> None:
    assert narrow([EqualTo(("key",), b"a"), EqualTo(("key",), b"b")]).is_empty
    assert narrow([GreaterThan(("lsn",), 9), LessThan(("lsn",), 3)]).is_empty
    assert not narrow([]).is_empty


def test_a_long_list_of_keys_is_left_to_spark() -> None:
    many = tuple(str(number).encode() for number in range(SELECTION_KEYS_MAX + 1))
    assert narrow([In(("key",), many)]).keys is None
    assert narrow([EqualTo(("key",), bytes(SELECTION_KEYS_BYTES_MAX + 1))]).keys is None
