"""Takes a knife to what a closed LMDB store holds of a stream, as no program does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb

from millrace.store.layout import (
    LogRow,
    Tables,
    block_key,
    decode_row,
    encode,
    number_key,
    open_tables,
    split_block_key,
)
from millrace.types import LogId, Lsn
from tests.core.commit.recovery_cases import Cut, CutContext, CutEntries, CutRuns


def cut(data_file: Path, log: LogId, cuts: Iterable[Cut]) -> None:
    with lmdb.open(str(data_file.parent), max_dbs=len(Tables._fields)) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as transaction:
            row = decode_row(transaction.get(number_key(log), db=tables.logs))
            for each in cuts:
                _cut(transaction, tables, row, each)
            transaction.put(number_key(log), encode(row), db=tables.logs)


def _cut(transaction: Any, tables: Tables, row: LogRow, each: Cut) -> None:
    match each:
        case CutContext(left):
            row.context = left
        case CutEntries(first):
            for key in _keys(transaction, tables.blocks, row.slot, first):
                row.blocks -= 1
                row.bytes -= len(transaction.get(key, db=tables.blocks))
                transaction.delete(key, db=tables.blocks)
                transaction.delete(key, db=tables.index)
            row.contiguous_end = Lsn(first)
        case CutRuns(left):
            for key in _keys(transaction, tables.commits, row.runs_slot, 0):
                transaction.delete(key, db=tables.commits)
            for run in left:
                key = block_key(row.runs_slot, run.first)
                transaction.put(key, encode(run), db=tables.commits)


def _keys(transaction: Any, table: Any, slot: int, first: int) -> list[bytes]:
    """Of the rows of a slot, from a position on."""
    found: list[bytes] = []
    with transaction.cursor(db=table) as cursor:
        if cursor.set_range(block_key(slot, first)):
            for key in cursor.iternext(keys=True, values=False):
                if split_block_key(key)[0] != slot:
                    break
                found.append(bytes(key))
    return found
