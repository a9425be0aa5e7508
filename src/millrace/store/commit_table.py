"""The runs of streams on disk: the table `commits` of `layout.py`.

A run is filed under its first position in the commit log.  Runs go up in both numbers, so that a
position of the stream is found by seeking, too, halving the positions of the commit log between
the lowest and the highest run: no second index is kept.
"""

from collections.abc import Iterable, Iterator

from millrace.core.commit.record import StreamCommit
from millrace.store.layout import (
    LogRow,
    Tables,
    Transaction,
    ViewCursor,
    ViewTransaction,
    block_key,
    decode_run,
    encode,
    split_block_key,
)
from millrace.types import LSN_MAX, Lsn


def put_runs(
    transaction: Transaction, tables: Tables, slot: int, runs: Iterable[StreamCommit]
) -> None:
    for run in runs:
        transaction.put(block_key(slot, run.first), encode(run), db=tables.commits)


def runs_within(
    transaction: ViewTransaction, tables: Tables, slot: int, first: Lsn, end: Lsn
) -> Iterator[StreamCommit]:
    """Runs that intersect [first, end) of the commit log, in order."""
    with transaction.cursor(db=tables.commits) as cursor:
        below = _last_from(cursor, slot, Lsn(first - 1))
        if below is not None and below.end > first:
            yield below
        if not cursor.set_range(block_key(slot, first)):
            return
        for key, value in cursor.iternext():
            found, at = split_block_key(key)
            if found != slot or at >= end:
                return
            yield decode_run(value)


def first_above(
    transaction: ViewTransaction, tables: Tables, slot: int, low: StreamCommit, end: Lsn, local: Lsn
) -> StreamCommit | None:
    """Of the runs from `low` up to `end` of the commit log the lowest that has anything above
    position `local` of the stream, or at it."""
    if low.local_end > local:
        return low
    found = None
    begin = low.end
    with transaction.cursor(db=tables.commits) as cursor:
        while begin < end:
            middle = Lsn((begin + end) // 2)
            run = _last_from(cursor, slot, middle)
            if run is None or run.local_end <= local:
                begin = Lsn(middle + 1)
            else:
                found, end = run, run.first
    return found


def outer_runs(
    transaction: ViewTransaction, tables: Tables, row: LogRow
) -> tuple[StreamCommit, StreamCommit] | None:
    """The lowest and the highest run of a stream that are not trimmed."""
    slot = row.runs_slot
    with transaction.cursor(db=tables.commits) as cursor:
        last = _last_from(cursor, slot, LSN_MAX)
        if last is None or last.local_end <= row.trim_end:
            return None
        cursor.set_range(block_key(slot, 0))
        low = decode_run(cursor.value())
    first = first_above(transaction, tables, slot, low, last.end, row.trim_end)
    return first or last, last


def _last_from(cursor: ViewCursor, slot: int, at: Lsn) -> StreamCommit | None:
    """The last run that begins at or below this position."""
    is_above = cursor.set_range(block_key(slot, at + 1))
    is_found = cursor.prev() if is_above else cursor.last()
    if not is_found or split_block_key(cursor.key())[0] != slot:
        return None
    return decode_run(cursor.value())
