"""The rows that the Spark benchmark reads: random values, short keys, rising times.

A process makes its columns once and hands them out as they are, so that rows from memory cost
their reader nothing but the memory they lie in.

1. Rows are numbered from 0; row `n` has position `n + 1`, as it would in a log that was empty.
2. The values of a process are distinct over `DISTINCT_BYTES`, more than a processor's cache holds.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.limits import MIB

KEY_BYTES: Final = 8
DISTINCT_BYTES: Final = 64 * MIB
ROWS_PER_SECOND: Final = 1_000  # Of the times that rows bear.
TIME_FIRST_US: Final = 1_760_000_000_000_000
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final[list[tuple[str, Any]]] = [
    ("log", pa.string()),
    ("lsn", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("timestamp", TIMESTAMP_TYPE),
]
SCHEMA: Final = pa.schema(_FIELDS)
_LOG: Final = "memory"
_SEED: Final = 30
_KEPT_MAX: Final = 2  # A worker outlives the sizes it was used for.


def batches(value_bytes: int, batch_rows: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows [first, end).  Batches begin at multiples of `batch_rows`."""
    parts = _parts(value_bytes, batch_rows)
    while first < end:
        start = first % batch_rows
        count = min(batch_rows - start, end - first)
        log, keys, values, times = parts[first // batch_rows % len(parts)]
        arrays = [log, _numbers(first + 1, count), keys, values, times]
        if count < batch_rows:
            arrays = [each if len(each) == count else each.slice(start, count) for each in arrays]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        first += count


@lru_cache(_KEPT_MAX)
def _parts(value_bytes: int, batch_rows: int) -> list[tuple[Any, Any, Any, Any]]:
    """Log, key, value and time of as many whole batches as keep invariant 2."""
    count = max(1, DISTINCT_BYTES // (batch_rows * value_bytes))
    generator = random.Random(_SEED)
    log = pa.repeat(pa.scalar(_LOG, pa.string()), batch_rows)
    return [
        (
            log,
            _binary(generator.randbytes(batch_rows * KEY_BYTES), batch_rows),
            _binary(generator.randbytes(batch_rows * value_bytes), batch_rows),
            _times(number * batch_rows, batch_rows),
        )
        for number in range(count)
    ]


def _binary(content: bytes, count: int) -> Any:
    """`content` as `count` values of equal size."""
    size = len(content) // count
    ends = pa.array(range(0, len(content) + 1, size), pa.int32())
    return pa.Array.from_buffers(
        pa.binary(), count, [None, ends.buffers()[1], pa.py_buffer(content)]
    )


def _times(first: int, count: int) -> Any:
    step_us = 1_000_000 // ROWS_PER_SECOND
    steps = pc.multiply(_numbers(first, count), pa.scalar(step_us, pa.int64()))
    return pc.add(steps, pa.scalar(TIME_FIRST_US, pa.int64())).cast(TIMESTAMP_TYPE)


def _numbers(first: int, count: int) -> Any:
    return pc.add(_natural_numbers(count), pa.scalar(first, pa.int64()))


@lru_cache(2 * _KEPT_MAX)
def _natural_numbers(count: int) -> Any:
    return pa.array(range(count), pa.int64())
