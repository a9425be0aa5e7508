"""Opening: what a store knows of its logs before the first request.

Invariant:

  I1  The work does not depend on how long the logs are: a row per log, and the index entries above
      its first hole, which are as few as blocks in flight; of a scattered log the last one alone.
      Of the runs of a stream the lowest and the highest, however many there are.
"""

from typing import NamedTuple

import lmdb

from millrace.store.changes import Backlog, dirtied
from millrace.store.commit_table import outer_runs
from millrace.store.layout import (
    LogRow,
    Tables,
    ViewTransaction,
    block_key,
    decode_entry,
    load_doomed,
    load_rows,
    split_block_key,
)
from millrace.store.open_log import OpenLog
from millrace.store.picture import Outline, Picture
from millrace.types import Extent, LogId, Lsn


class Recovered(NamedTuple):
    rows: dict[LogId, LogRow]
    logs: dict[LogId, OpenLog]
    dirtied: list[OpenLog]  # Had memory-acknowledged blocks when the process died (I4).
    backlog: Backlog
    next_slot: int


def recover(environment: lmdb.Environment, tables: Tables) -> Recovered:
    with environment.begin() as transaction:
        rows = load_rows(transaction, tables)
        doomed = load_doomed(transaction, tables)
    with environment.begin(buffers=True) as transaction:
        logs = {log: open_log_of(transaction, tables, row) for log, row in rows.items()}
    return Recovered(
        rows,
        logs,
        [logs[log] for log, row in rows.items() if row.is_volatile],
        Backlog([log for log, row in rows.items() if row.trim_end > 1], doomed),
        1 + max([max(row.slot, row.runs_slot) for row in rows.values()] + doomed, default=0),
    )


def open_log_of(transaction: ViewTransaction, tables: Tables, row: LogRow) -> OpenLog:
    opened = OpenLog(row, _picture(transaction, tables, row))
    if row.is_volatile:
        opened.fence = dirtied(row.fence)
    outer = outer_runs(transaction, tables, row) if row.runs_slot else None
    if outer is not None:
        opened.commits.load(*outer)
    return opened


def _picture(transaction: ViewTransaction, tables: Tables, row: LogRow) -> Picture | Outline:
    if row.is_scattered:
        return Outline(row.trim_end, _end_of(transaction, tables, row.slot))
    return Picture(row.trim_end, row.contiguous_end, _above(transaction, tables, row))


def _end_of(transaction: ViewTransaction, tables: Tables, slot: int) -> Lsn:
    """Above the last block of a slot; 0 if it has none."""
    with transaction.cursor(db=tables.index) as cursor:
        is_above = cursor.set_range(block_key(slot + 1, 0))
        is_found = cursor.prev() if is_above else cursor.last()
        if is_found and split_block_key(cursor.key())[0] == slot:
            return Lsn(decode_entry(cursor.value()).extent.last + 1)
    return Lsn(0)


def _above(transaction: ViewTransaction, tables: Tables, row: LogRow) -> list[Extent]:
    """Extents above the first hole."""
    extents: list[Extent] = []
    with transaction.cursor(db=tables.index) as cursor:
        if cursor.set_range(block_key(row.slot, row.contiguous_end)):
            for key, value in cursor.iternext():
                if split_block_key(key)[0] != row.slot:
                    break
                extents.append(decode_entry(value).extent)
    return extents
