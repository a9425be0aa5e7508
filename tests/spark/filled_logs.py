"""Logs whose every record says which one it is, and the rows that Spark must see of them."""

import random
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace import sync
from millrace.types import Gap

KEYS = 16
TIME_FIRST_US = 1_760_000_000_000_000


def key_of(number: int) -> bytes:
    return f"key-{number % KEYS}".encode()


def value_of(number: int, size: int = 100) -> bytes:
    front = f"{number:012d}:".encode()
    return front + random.Random(number).randbytes(max(0, size - len(front)))


def time_of(number: int) -> int:
    return TIME_FIRST_US + number * 1_000


def table_of(numbers: Iterable[int], size: int = 100) -> pa.Table:
    numbers = list(numbers)
    return pa.table(
        {
            "key": pa.array([key_of(number) for number in numbers], pa.binary()),
            "value": pa.array([value_of(number, size) for number in numbers], pa.binary()),
            "timestamp": pa.array(
                [time_of(number) for number in numbers], pa.timestamp("us", tz="UTC")
            ),
        }
    )


def fill(log: sync.SyncLog, count: int, *, first: int = 0, size: int = 100) -> None:
    """Append records first .. first + count - 1."""
    log.append_table(table_of(range(first, first + count), size))


def stored(log: sync.SyncLog) -> list[tuple[int, bytes | None, bytes]]:
    """Position, key and value of everything in the log, as its own reader sees it."""
    with log.read() as reader:
        return [
            (record.lsn, record.key, record.value)
            for record in reader
            if not isinstance(record, Gap)
        ]


def rows(frame: DataFrame) -> list[tuple[int, bytes | None, bytes]]:
    """The same of a DataFrame, by position."""
    found = frame.select("lsn", "key", "value").collect()
    return sorted(
        (row.lsn, None if row.key is None else bytes(row.key), bytes(row.value)) for row in found
    )
