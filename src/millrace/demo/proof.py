"""Holds what the reader and Spark saw against what was acknowledged."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client import Log
from millrace.demo.ledger import Counts, Ledger
from millrace.demo.records import make_keys, make_values, number_of
from millrace.types import Gap


class ReadBack(msgspec.Struct):
    """What a reader found from the start of the log to its end."""

    records: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    gaps: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: float = 0.0
    bytes_received: int = 0
    bytes_delivered: int = 0

    def is_equal(self, ledger: Ledger) -> bool:
        return self.records == ledger.appended and not (self.missing or self.doubled or self.wrong)


async def read_back(log: Log, ledger: Ledger, advanced: Callable[[int], None]) -> ReadBack:
    found = ReadBack()
    seen = bytearray(ledger.records)
    started_s = time.perf_counter()
    async with await log.read("start", "end") as reader:
        async for batch in reader.batches(["lsn", "key", "value"]):
            if isinstance(batch, Gap):
                found.gaps[batch.kind.value] += batch.last - batch.first + 1
                continue
            _check(batch, seen, ledger, found)
            advanced(batch.num_rows)
        found.bytes_received = reader.bytes_received
        found.bytes_delivered = reader.bytes_delivered
    found.seconds = time.perf_counter() - started_s
    found.missing = seen.count(0)
    return found


def _check(batch: pa.RecordBatch, seen: bytearray, ledger: Ledger, found: ReadBack) -> None:
    """Column-wise: keys and values of a block must be exactly those that were acknowledged at
    its positions."""
    count = batch.num_rows
    found.records += count
    number = number_of(batch.column("value")[0].as_py())
    if ledger.blocks.get(batch.column("lsn")[0].as_py()) != (count, number):
        found.wrong += count
        return
    for column, want in (("key", make_keys), ("value", make_values)):
        if not _is_equal(batch.column(column), pa.array(want(number, count), pa.binary())):
            found.wrong += count
            break
    if seen[number] != 0:
        found.doubled += count
    seen[number : number + count] = b"\x01" * count


def _is_equal(column: "pa.Array[Any]", want: "pa.Array[Any]") -> bool:
    # A null is not equal to anything, and `all` would pass over it.
    return column.null_count == 0 and bool(pc.all(pc.equal(column, want)).as_py())


def different_counts(found: Counts, ledger: Ledger) -> int:
    """How many counts, of a key in a second, differ from what was acknowledged."""
    keys = found.keys() | ledger.counts.keys()
    return sum(found[key] != ledger.counts[key] for key in keys)
