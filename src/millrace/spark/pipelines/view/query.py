"""Asking a view: one key, or a range of keys in their order, out of the view's own folder.

I1  With `as_of_now` it has all changes that were acknowledged before the question.
"""

from enum import Enum
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from millrace.spark.pipelines.bucket_state.questions import (
    QUESTION_TIMEOUT_MS,
    of_one_batch,
    state_of,
)
from millrace.spark.pipelines.bucket_state.seen import wait_until_now
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.view.order import END, encode
from millrace.spark.pipelines.view.record import read_record
from millrace.spark.pipelines.view.reduces import Count

ROWS_MAX_DEFAULT: Final = 1_000


class All(Enum):
    """Stands for no key: null is one."""

    KEYS = "all"


class ViewRow(msgspec.Struct, frozen=True):
    key: Any
    value: Any


class ViewAnswer(msgspec.Struct, frozen=True):
    batch: int  # Of which batch it is.
    rows: list[ViewRow]


def query_view(
    home: Path | str,
    key: Any = All.KEYS,
    *,
    first: Any = All.KEYS,
    last: Any = All.KEYS,
    limit: int = ROWS_MAX_DEFAULT,
    as_of_now: bool = False,
    timeout_ms: int = QUESTION_TIMEOUT_MS,
) -> ViewAnswer:
    """The rows of one key, or from `first` to `last`, both among them, at most `limit`.  Raises
    TimedOut, Unavailable, StateMismatch."""
    state = state_of(home)
    if as_of_now and state.is_dir():  # Also for a view that has just been started.
        wait_until_now(state, timeout_ms=timeout_ms)
    record = read_record(state)
    low, end = _bounds(key, first, last)
    numbers = range(record.shards) if key is All.KEYS else [crc32(encode(key)) % record.shards]
    shards = [GroupShard.open(state, number, Count()) for number in numbers]
    batch, parts = of_one_batch(
        lambda: [shard.results(low, end, limit) for shard in shards], timeout_ms
    )
    rows = [
        ViewRow(msgspec.json.decode(row), msgspec.json.decode(value))
        for part in parts
        for row, value in part
    ]
    return ViewAnswer(batch, sorted(rows, key=lambda row: encode(row.key))[:limit])


def _bounds(key: Any, first: Any, last: Any) -> tuple[bytes, bytes]:
    if key is not All.KEYS:
        first = last = key
    low = b"" if first is All.KEYS else encode(first)
    return low, END if last is All.KEYS else encode(last) + END
