"""Reading what was chosen by its index entry alone.

A storage node holds copies of most blocks of which another node sends one, so looking at a block's
data before it is known to be needed would cost each node the whole log.  The index is walked, and
only the data of chosen blocks is fetched, by its key.

Invariant:

  I1  The data of a block that is not chosen is not touched: its pages stay on the disk.
"""

from collections.abc import Callable, Iterable

from millrace.errors import CorruptBlock
from millrace.limits import SCAN_BLOCKS_MAX, SHIP_ENTRIES_MAX
from millrace.store.layout import Tables, ViewTransaction, block_key
from millrace.store.open_log import OpenLog
from millrace.store.reading import BlockScan, index_of, stored_block
from millrace.store.tail import TailEntry
from millrace.types import Block, Copy, Lsn

Ships = Callable[[Copy], bool]


class BlockShipment(BlockScan):
    """Blocks chosen together; see `contract.Shipment`."""

    __slots__ = ("next_lsn",)

    def __init__(
        self,
        blocks: list[Block],
        next_lsn: Lsn,
        transaction: ViewTransaction | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(blocks, transaction, release)
        self.next_lsn = next_lsn


class Fetch:
    """Takes blocks out of the map by their positions, and counts those that lie there still."""

    def __init__(
        self, transaction: ViewTransaction, tables: Tables, log: OpenLog, *, copies: bool
    ) -> None:
        self._transaction = transaction
        self._tables = tables
        self._log = log
        self._copies = copies
        self.mapped = 0

    def __call__(self, first: Lsn) -> Block:
        log = self._log
        data = self._transaction.get(block_key(log.slot, first), db=self._tables.blocks)
        if data is None:
            raise CorruptBlock(f"position {first} of log {log.log} has an index entry alone")
        block = stored_block(log, first, bytes(data) if self._copies else data)
        self.mapped += not self._copies
        return block


def choose_fresh(
    log: OpenLog, first: Lsn, end: Lsn, bytes_max: int, ships: Ships
) -> tuple[list[Block], Lsn]:
    """As `choose`, at or above the floor: everything is in memory."""
    start = max(first, log.picture.trim_end)
    fresh = log.tail.within(start, end) if start < end else ()
    values = ((entry.block.first, entry) for entry in fresh)
    return choose(values, log, max(first, end), bytes_max, ships, None)


def choose(
    values: Iterable[tuple[Lsn, TailEntry | memoryview]],
    log: OpenLog,
    end: Lsn,
    bytes_max: int,
    ships: Ships,
    fetch: Fetch | None,
) -> tuple[list[Block], Lsn]:
    """The blocks to send, and up to where `values` was looked at: `end` if to its end."""
    blocks: list[Block] = []
    size = 0
    for looked, (at, one) in enumerate(values):
        if looked >= SHIP_ENTRIES_MAX:
            return blocks, at
        copy = index_of(log, at, one).copy()
        if not ships(copy):
            continue
        size += copy.extent.size
        if blocks and (size > bytes_max or len(blocks) >= SCAN_BLOCKS_MAX):
            return blocks, at
        try:
            blocks.append(_block_of(at, one, fetch))
        except CorruptBlock:
            if blocks:
                return blocks, at
            raise
    return blocks, end


def _block_of(first: Lsn, one: TailEntry | memoryview, fetch: Fetch | None) -> Block:
    if isinstance(one, TailEntry):
        return one.block
    assert fetch is not None, f"the block at {first} is on disk alone, above the floor"
    return fetch(first)
