"""Opening: what a store knows of its logs before the first request.

Invariant:

  I1  The work does not depend on how long the logs are: a row per log, and the index entries above
      its first hole, which are as few as blocks in flight.
"""

from typing import NamedTuple

import lmdb

from millrace.store.changes import Backlog, dirtied
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
from millrace.types import Extent, LogId


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
        1 + max([row.slot for row in rows.values()] + doomed, default=0),
    )


def open_log_of(transaction: ViewTransaction, tables: Tables, row: LogRow) -> OpenLog:
    opened = OpenLog(row, _above(transaction, tables, row))
    if row.is_volatile:
        opened.fence = dirtied(row.fence)
    return opened


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
