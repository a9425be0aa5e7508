"""Reading a log: the tail buffer and LMDB as one.

At or above a log's floor everything is in memory (`tail.py`).  Below it the disk is read, with
three corrections: what is removed but not yet deleted is passed over, what is trimmed but not yet
deleted is not reached, and blocks that are in memory take the place of, or come between, those on
disk.  Of an index entry that is amended but not yet rewritten the amended one counts.  A block is
parsed and its checksums are computed once, when it is read from the map.

Invariants:

  I1  A reader sees every queued mutation.
  I2  A block from disk is handed out only if its checksums match and it is the one its key names.
  I3  Data of a scan lies in the map only while the scan holds its transaction.
"""

from collections.abc import Callable, Iterable, Iterator

from millrace.codec.blocks import parse
from millrace.errors import CorruptBlock
from millrace.limits import SCAN_BLOCKS_MAX
from millrace.store.layout import (
    IndexEntry,
    Tables,
    ViewCursor,
    ViewTransaction,
    block_key,
    decode_entry,
    split_block_key,
)
from millrace.store.open_log import OpenLog
from millrace.store.tail import TailEntry
from millrace.types import Block, Buffer, EntryKind, Extent, Lsn


class BlockScan:
    """Blocks read together; see `contract.Scan`."""

    __slots__ = ("_release", "_transaction", "blocks")

    def __init__(
        self,
        blocks: list[Block],
        transaction: ViewTransaction | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.blocks = blocks
        self._transaction = transaction
        self._release = release

    @property
    def is_mapped(self) -> bool:
        return self._transaction is not None

    def release(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self.blocks = []
            transaction.abort()
            assert self._release is not None
            self._release()


def stored_block(log: OpenLog, first: Lsn, data: Buffer) -> Block:
    """Keeps I2."""
    block = parse(data)
    if block.log != log.log or block.first != first or block.is_cut:
        raise CorruptBlock(f"position {first} of log {log.log} holds {block!r}")
    return block


def start_of(transaction: ViewTransaction, tables: Tables, slot: int, lsn: Lsn) -> Lsn:
    """Where the block begins that holds `lsn`, if one does; else `lsn`."""
    with transaction.cursor(db=tables.index) as cursor:
        if cursor.set_range(block_key(slot, lsn)):
            if split_block_key(cursor.key()) == (slot, lsn) or not cursor.prev():
                return lsn
        elif not cursor.last():
            return lsn
        found, first = split_block_key(cursor.key())
        if found == slot and decode_entry(cursor.value()).extent.last >= lsn:
            return Lsn(first)
    return lsn


def _on_disk(
    cursor: ViewCursor, log: OpenLog, first: Lsn, end: Lsn
) -> Iterator[tuple[Lsn, memoryview]]:
    """Values of a table that begin in [first, end), without those removed."""
    if not cursor.set_range(block_key(log.slot, first)):
        return
    wanted, removed = log.slot, log.removed
    for key, value in cursor.iternext():
        slot, at = split_block_key(key)
        if slot != wanted or at >= end:
            return
        if at not in removed:
            yield at, value


def index_of(log: OpenLog, first: Lsn, one: TailEntry | memoryview) -> IndexEntry:
    """The index entry that stands for what `index_values` gave."""
    if isinstance(one, TailEntry):
        return one.index
    amended = log.amended.get(first) if log.amended else None
    return decode_entry(one) if amended is None else amended


def _merged(
    disk: Iterator[tuple[Lsn, memoryview]], memory: Iterator[TailEntry]
) -> Iterator[tuple[Lsn, TailEntry | memoryview]]:
    """Both in order of position; where both have a block, memory's."""
    entry = next(memory, None)
    for first, value in disk:
        while entry is not None and entry.block.first < first:
            yield entry.block.first, entry
            entry = next(memory, None)
        if entry is not None and entry.block.first == first:
            continue
        yield first, value
    while entry is not None:
        yield entry.block.first, entry
        entry = next(memory, None)


def entries(
    transaction: ViewTransaction, tables: Tables, log: OpenLog, first: Lsn, end: Lsn
) -> Iterator[IndexEntry]:
    """Index entries of what intersects [first, end), in order."""
    for at, one in index_values(transaction, tables, log, first, end):
        yield index_of(log, at, one)


def index_values(
    transaction: ViewTransaction, tables: Tables, log: OpenLog, first: Lsn, end: Lsn
) -> Iterator[tuple[Lsn, TailEntry | memoryview]]:
    """What intersects [first, end), in order: the entry in memory, or the index's value."""
    first = max(first, log.picture.trim_end)
    if first >= end:
        return
    floor = log.tail.floor
    if first < floor:
        stop = min(end, floor)
        start = start_of(transaction, tables, log.slot, first)
        with transaction.cursor(db=tables.index) as cursor:
            disk = _on_disk(cursor, log, start, stop)
            yield from _merged(disk, log.tail.within(first, stop))
    for entry in log.tail.within(max(first, floor), end):
        yield entry.block.first, entry


def entries_at(
    transaction: ViewTransaction, tables: Tables, log: OpenLog, firsts: Iterable[Lsn]
) -> Iterator[IndexEntry]:
    """Index entries of the blocks that begin exactly at these positions."""
    for first in firsts:
        one: TailEntry | memoryview | None = log.tail.get(first)
        if one is None and first < log.tail.floor and first not in log.removed:
            one = transaction.get(block_key(log.slot, first), db=tables.index)
        if one is not None:
            entry = index_of(log, first, one)
            if entry.extent.last >= log.picture.trim_end:
                yield entry


def last_below(
    transaction: ViewTransaction, tables: Tables, log: OpenLog, end: Lsn
) -> Extent | None:
    """The last block that begins below `end`, wherever it is."""
    newest = next(log.tail.within_backward(log.picture.trim_end, end), None)
    found = None if newest is None else newest.index.extent
    with transaction.cursor(db=tables.index) as cursor:
        is_above = cursor.set_range(block_key(log.slot, end))
        is_below = cursor.prev() if is_above else cursor.last()
        for key, value in cursor.iterprev() if is_below else ():
            slot, first = split_block_key(key)
            if slot != log.slot or (found is not None and first <= found.first):
                break
            if first not in log.removed:
                stored = decode_entry(value).extent
                return stored if stored.last >= log.picture.trim_end else found
    return found


def from_memory(log: OpenLog, first: Lsn, end: Lsn, bytes_max: int) -> list[Block]:
    blocks: list[Block] = []
    size = 0
    for entry in log.tail.within(first, end):
        size += entry.block.size
        if blocks and (size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX):
            break
        blocks.append(entry.block)
    return blocks


def from_disk(
    transaction: ViewTransaction,
    tables: Tables,
    log: OpenLog,
    first: Lsn,
    end: Lsn,
    bytes_max: int,
    copies: bool,
) -> tuple[list[Block], int]:
    """Blocks of [first, end), which begins below the floor, and how many of them lie in the map.
    Goes on into the tail when the budget lasts."""
    blocks: list[Block] = []
    size = mapped = 0
    floor = log.tail.floor
    stop = min(end, floor)
    start = start_of(transaction, tables, log.slot, first)
    with transaction.cursor(db=tables.blocks) as cursor:
        for at, one in _merged(_on_disk(cursor, log, start, stop), log.tail.within(first, stop)):
            size += one.block.size if isinstance(one, TailEntry) else len(one)
            if blocks and (size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX):
                return blocks, mapped
            if isinstance(one, TailEntry):
                blocks.append(one.block)
                continue
            try:
                blocks.append(stored_block(log, at, bytes(one) if copies else one))
            except CorruptBlock:
                if blocks:
                    return blocks, mapped
                raise
            mapped += not copies
    if size < bytes_max or not blocks:
        more = from_memory(log, max(first, floor), end, bytes_max - size)
        if more and (not blocks or size + more[0].size <= bytes_max):
            blocks.extend(more[: SCAN_BLOCKS_MAX - len(blocks)])
    return blocks, mapped


def find_time(transaction: ViewTransaction, tables: Tables, log: OpenLog, timestamp_us: int) -> Lsn:
    """The first block that reaches the time.  Writers choose timestamps, so they need not grow and
    nothing but looking at each block is right: retention, which trims below the answer, would
    otherwise forget what is young.  Retention stops at the first block that is young enough."""
    trim_end, end = log.picture.trim_end, log.picture.end
    for entry in entries(transaction, tables, log, trim_end, end):
        if entry.extent.kind is EntryKind.DATA and entry.timestamp_last >= timestamp_us:
            return max(entry.extent.first, trim_end)
    return end


def find_size(transaction: ViewTransaction, tables: Tables, log: OpenLog, bytes_kept: int) -> Lsn:
    """The highest position that leaves `bytes_kept` at or above it.  Walks from whichever end is
    nearer: retention asks again and again, when little is too much."""
    picture = log.picture
    if bytes_kept <= 0:
        return picture.end
    surplus = log.bytes - bytes_kept
    if surplus < bytes_kept and not _is_lagging(transaction, tables, log):
        return _skip_surplus(
            entries(transaction, tables, log, picture.trim_end, picture.end),
            surplus,
            picture.trim_end,
        )
    kept = 0
    for extent in _backward(transaction, tables, log):
        kept += extent.size
        if kept >= bytes_kept:
            return Lsn(max(extent.first, picture.trim_end))
    return picture.trim_end


def _is_lagging(transaction: ViewTransaction, tables: Tables, log: OpenLog) -> bool:
    """Whether the counts still hold trimmed blocks: then they would make us skip too many."""
    if log.trims_queued:
        return True
    with transaction.cursor(db=tables.index) as cursor:
        if not cursor.set_range(block_key(log.slot, 0)):
            return False
        slot, _ = split_block_key(cursor.key())
        extent = decode_entry(cursor.value()).extent
    return bool(slot == log.slot and extent.last < log.picture.trim_end)


def _skip_surplus(ascending: Iterator[IndexEntry], surplus: int, start: Lsn) -> Lsn:
    for entry in ascending:
        surplus -= entry.extent.size
        if surplus < 0:
            return Lsn(max(entry.extent.first, start))
    return start


def _backward(transaction: ViewTransaction, tables: Tables, log: OpenLog) -> Iterator[Extent]:
    """Extents from the end down: those in memory, then those on disk below the floor.  Strays
    below the floor are passed over: they are few and soon on disk."""
    floor, trim_end = log.tail.floor, log.picture.trim_end
    for entry in log.tail.within_backward(max(floor, trim_end), log.picture.end):
        yield entry.index.extent
    with transaction.cursor(db=tables.index) as cursor:
        is_found = cursor.set_range(block_key(log.slot, floor))
        if not (cursor.prev() if is_found else cursor.last()):
            return
        for key, value in cursor.iterprev():
            slot, first = split_block_key(key)
            extent = decode_entry(value).extent
            if slot != log.slot or extent.last < trim_end:
                return
            if first not in log.removed:
                yield extent
