"""Appending many records at once: cut them into blocks, and tell what became of each block.

I1  Every block is drafted, and so checked, before the first is sent: a record that cannot be
    written is the caller's mistake, and nothing of the call is appended.
I2  What is raised carries the outcome of every block (`MillraceError.outcomes`), and is definite
    only when no outcome is unknown.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TypeVar

import pyarrow as pa

from millrace.client.outcomes import UnknownAppend
from millrace.codec.arrow import draft_from_arrow
from millrace.codec.blocks import draft
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Appended
from millrace.errors import MillraceError, RecordTooLarge, UsageError
from millrace.limits import BLOCK_BYTES_TARGET, BLOCK_RECORDS_MAX, RECORD_BYTES_MAX

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes]] | Mapping[str, bytes]
_BYTES_LIKE = (bytes, bytearray, memoryview)
_HEADERS_FORM = "headers are {'trace': b'1'} or [('trace', b'1')]: names and bytes"
_TIMESTAMP_LIMIT_US = 2**63


def check_record(
    value: bytes, key: bytes | None, timestamp_us: int | None, headers: HeaderPairs
) -> None:
    """A record that shares a block must not make the block fail for the others."""
    if not isinstance(value, _BYTES_LIKE):
        raise UsageError(f"a value is bytes, not {type(value).__name__}")
    if key is not None and not isinstance(key, bytes):
        raise UsageError(f"a key is bytes, not {type(key).__name__}")
    if timestamp_us is not None:
        if not isinstance(timestamp_us, int):
            raise UsageError(f"timestamp_us is an int, not {type(timestamp_us).__name__}")
        if not -_TIMESTAMP_LIMIT_US <= timestamp_us < _TIMESTAMP_LIMIT_US:
            raise UsageError(f"timestamp_us={timestamp_us} does not fit in 64 bits")
    size = len(value) if key is None else len(value) + len(key)
    if headers:
        size += _headers_size(headers)
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {size} bytes is larger than {RECORD_BYTES_MAX}: "
            "split it, or store it elsewhere and append its address"
        )


def header_pairs(headers: Headers) -> HeaderPairs:
    """As a block has them.  A copy: the caller may change its own while the record waits."""
    try:
        return tuple(headers.items() if isinstance(headers, Mapping) else headers)
    except TypeError as refused:
        raise UsageError(f"{_HEADERS_FORM}; not {type(headers).__name__}") from refused


def _headers_size(headers: HeaderPairs) -> int:
    size = 0
    try:
        for name, content in headers:
            if not isinstance(content, bytes):
                raise UsageError(f"{_HEADERS_FORM}; the content is {type(content).__name__}")
            size += len(name.encode()) + len(content)
    except (TypeError, ValueError, AttributeError) as refused:
        raise UsageError(f"{_HEADERS_FORM}; {refused}") from refused
    return size


def draft_one(
    value: bytes, key: bytes | None, timestamp_us: int, headers: HeaderPairs, compress: bool
) -> Draft:
    """A block of its own for one record."""
    return draft(
        [value],
        timestamps_us=[timestamp_us],
        keys=None if key is None else [key],
        headers=[headers] if headers else None,
        compress=compress,
    )


def draft_values(
    many_values: Iterable[bytes],
    many_keys: Iterable[bytes | None] | None,
    timestamps_us: Sequence[int] | int | None,
    many_headers: Iterable[Headers] | None,
    compress: bool,
) -> list[Draft]:
    """Keeps I1."""
    values = _listed(many_values, "values", _BYTES_LIKE)
    keys = None if many_keys is None else _listed(many_keys, "keys", (*_BYTES_LIKE, NoneType))
    if isinstance(many_headers, Mapping):
        raise UsageError("headers has an entry for each value: [{'trace': b'1'}, ...]")
    headers = None if many_headers is None else list(many_headers)
    stamps = time.time_ns() // 1000 if timestamps_us is None else timestamps_us
    if not isinstance(stamps, int) and not hasattr(stamps, "__len__"):
        raise UsageError(f"timestamps_us is an int or many, not {type(stamps).__name__}")
    for name, column in (("keys", keys), ("timestamps", stamps), ("headers", headers)):
        if not isinstance(column, int | None) and len(column) != len(values):
            raise UsageError(f"{len(column)} {name} were given for {len(values)} values")
    pairs = None if headers is None else [header_pairs(each) for each in headers]
    return [
        draft(
            values[first:end],
            keys=None if keys is None else keys[first:end],
            timestamps_us=stamps if isinstance(stamps, int) else stamps[first:end],
            headers=None if pairs is None else pairs[first:end],
            compress=compress,
        )
        for first, end in _chunks(_sizes(values, keys, pairs))
    ]


def _listed(column: Iterable[T], name: str, kinds: tuple[type, ...]) -> Sequence[T]:
    """One `bytes` or text is many of its parts to Python, and a mistake here."""
    if isinstance(column, (str, *_BYTES_LIKE)) or not isinstance(column, Iterable):
        raise UsageError(f"{name} are many, like [b'one', b'two'], not {type(column).__name__}")
    listed = column if isinstance(column, list | tuple) else list(column)
    for kind in set(map(type, listed)):  # They are many, and of few types.
        if not issubclass(kind, kinds):
            raise UsageError(f"{name} are bytes, and one is {kind.__name__}")
    return listed


def draft_table(table: pa.Table | pa.RecordBatch, compress: bool) -> list[Draft]:
    """Keeps I1."""
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    now = time.time_ns() // 1000
    return [
        draft_from_arrow(piece, timestamp_us_default=now, compress=compress)
        for batch in whole.to_batches()
        for first, end in _even_cuts(batch.nbytes, batch.num_rows)
        for piece in _pieces(batch.slice(first, end - first))
    ]


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut again where records are much larger than their mean, as `_chunks` does."""
    if batch.num_rows > 1 and batch.nbytes > 4 * BLOCK_BYTES_TARGET:
        middle = batch.num_rows // 2
        yield from _pieces(batch.slice(0, middle))
        yield from _pieces(batch.slice(middle))
    else:
        yield batch


async def all_settled(
    places: Sequence["asyncio.Future[Appended] | MillraceError"],
) -> list[Appended]:
    """The ranges, in order, once every outcome is known.  An error stands for a block that found
    no place in the queue."""
    futures = [place for place in places if isinstance(place, asyncio.Future)]
    if futures:
        await asyncio.wait(futures)
    outcomes = [_outcome(place) for place in places]
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures:
        raise _summary(outcomes, failures)
    return [each for each in outcomes if isinstance(each, Appended)]


def _outcome(place: "asyncio.Future[Appended] | MillraceError") -> Appended | BaseException:
    if isinstance(place, MillraceError):
        return place
    return place.exception() or place.result()


def _summary(
    outcomes: list[Appended | BaseException], failures: list[BaseException]
) -> BaseException:
    """Keeps I2.  What nobody expected goes first: it is a defect, and no outcome."""
    strange = [each for each in failures if not isinstance(each, MillraceError)]
    if strange:
        return strange[0]
    unknown = [each for each in failures if isinstance(each, UnknownAppend)]
    shown = (unknown or failures)[0]
    assert isinstance(shown, MillraceError)
    error = shown
    if len(outcomes) > 1:
        detail = (
            f"{len(failures)} of {len(outcomes)} blocks were not acknowledged, the outcome of "
            f"{len(unknown)} is unknown (`outcomes` has each); the first: {shown}"
        )
        error = shown.saying(detail) if isinstance(shown, UnknownAppend) else type(shown)(detail)
    error.outcomes = tuple(outcomes)
    return error


def _sizes(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[HeaderPairs] | None,
) -> list[int]:
    """About what each record takes in a block."""
    try:
        sizes = list(map(len, values))
        if keys is not None:
            sizes = [
                size + (0 if key is None else len(key))
                for size, key in zip(sizes, keys, strict=True)
            ]
        if headers is not None:
            sizes = [
                size + _headers_size(pairs) for size, pairs in zip(sizes, headers, strict=True)
            ]
    except (TypeError, ValueError) as refused:
        raise UsageError(f"values and keys are bytes: {refused}") from refused
    return sizes


def _even_cuts(size_bytes: int, rows: int) -> Iterator[tuple[int, int]]:
    """Into blocks of about the target size and of equal length: no crumb behind full blocks."""
    wanted = max(round(size_bytes / BLOCK_BYTES_TARGET), math.ceil(rows / BLOCK_RECORDS_MAX), 1)
    count = min(wanted, rows)
    for number in range(count):
        yield rows * number // count, rows * (number + 1) // count


def _chunks(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut records into blocks of about the target size: by their mean size first, and again where
    they are uneven."""
    for first, end in _even_cuts(sum(sizes), len(sizes)):
        yield from _halves(sizes, first, end)


def _halves(sizes: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    if end - first > 1 and sum(sizes[first:end]) > 4 * BLOCK_BYTES_TARGET:
        middle = (first + end) // 2
        yield from _halves(sizes, first, middle)
        yield from _halves(sizes, middle, end)
    else:
        yield first, end
