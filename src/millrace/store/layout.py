"""How the store lies on disk: the tables, their keys and their rows.

One LMDB environment with six tables, so that a block, its index entry and the log's row change in
one transaction:

  blocks    (slot, first)  the block's bytes
  index     (slot, first)  IndexEntry: the copyset index, small enough to stay in memory
  logs      log            LogRow
  doomed    slot           empty; a dropped log whose blocks are still being deleted
  identity  name           whose data this is (`directory.py`)
  commits   (slot, first)  StreamCommit: a run of a stream, by its position in the commit log

A slot is a number given to a log when the store first hears of it.  Blocks are filed under the
slot, not under the log, so that a log which is dropped and made again never meets the remains of
the old one, which go away in the background.  The runs of a stream have a slot of their own for the
same reason: they can be forgotten while the blocks stay.

Invariants:

  I1  A key of `blocks` is in `index` and the other way round.
  I2  `LogRow.contiguous_end` is exact at every commit: opening a log walks only what lies above it.
      Of a scattered log it means nothing, and opening walks nothing.
  I3  A slot is reused only after its last block, its last run and its `doomed` entry are gone.
  I4  Fields are added to rows at their end, with a default: what an older version wrote is read.
"""

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import lmdb
import msgspec

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.log_state import Fence, Marks
from millrace.core.messages import Standing
from millrace.types import FIRST_LSN, NO_TOKEN, Copy, Epoch, Extent, LogId, Lsn, NodeId, Placement

FORMAT_VERSION: Final = 1
TABLES_MAX: Final = 8

NO_FENCE: Final = Fence(Epoch(0), NO_TOKEN, Standing.BLANK)

_BLOCK_KEY: Final = Struct(">QQ")
_NUMBER_KEY: Final = Struct(">Q")

# A view transaction's values lie in the map, uncopied.  The library's classes cannot be
# subscripted when the program runs.
if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]
    ViewTransaction = lmdb.Transaction[memoryview]
    ViewCursor = lmdb.Cursor[memoryview]
else:
    Transaction = ViewTransaction = lmdb.Transaction
    ViewCursor = lmdb.Cursor

block_key = _BLOCK_KEY.pack
split_block_key = _BLOCK_KEY.unpack
number_key = _NUMBER_KEY.pack


def number_of(key: bytes | memoryview) -> int:
    (number,) = _NUMBER_KEY.unpack(key)
    return int(number)


class IndexEntry(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a block without reading it."""

    extent: Extent
    epoch: Epoch
    timestamp_last: int  # Newest record, microseconds; 0 in junk.
    copyset: tuple[NodeId, ...]
    wave: int = 0
    recovery: Epoch = Epoch(0)

    @property
    def placement(self) -> Placement:
        return Placement(self.copyset, self.wave, self.recovery)

    def copy(self) -> Copy:
        return Copy(self.extent, self.placement)

    def placed(self, placement: Placement) -> "IndexEntry":
        """The same block in another placement."""
        return IndexEntry(
            self.extent,
            self.epoch,
            self.timestamp_last,
            placement.copyset,
            placement.wave,
            placement.recovery,
        )


class LogRow(msgspec.Struct, array_like=True):
    log: LogId
    slot: int
    fence: Fence = NO_FENCE
    trim_end: Lsn = FIRST_LSN
    contiguous_end: Lsn = FIRST_LSN
    blocks: int = 0
    bytes: int = 0
    # Has taken memory-acknowledged blocks since it was opened (contract, I4).
    is_volatile: bool = False
    is_scattered: bool = False
    marks: Marks = Marks()
    context: CommitContext | None = None
    runs_slot: int = 0  # 0: no run was ever stored, or they were forgotten.


encode: Final = msgspec.msgpack.Encoder().encode
decode_entry: Final = msgspec.msgpack.Decoder(IndexEntry).decode
decode_run: Final = msgspec.msgpack.Decoder(StreamCommit).decode
decode_row: Final = msgspec.msgpack.Decoder(LogRow).decode


class Tables(NamedTuple):
    """Handles of the tables; the type of a handle is not public in the library."""

    blocks: Any
    index: Any
    logs: Any
    doomed: Any
    identity: Any
    commits: Any


def open_tables(environment: lmdb.Environment) -> Tables:
    return Tables(*(environment.open_db(name.encode()) for name in Tables._fields))


def load_rows(transaction: Transaction, tables: Tables) -> dict[LogId, LogRow]:
    with transaction.cursor(db=tables.logs) as cursor:
        rows = [decode_row(value) for value in cursor.iternext(keys=False, values=True)]
    return {row.log: row for row in rows}


def load_doomed(transaction: Transaction, tables: Tables) -> list[int]:
    with transaction.cursor(db=tables.doomed) as cursor:
        return [number_of(key) for key in cursor.iternext(keys=True, values=False)]
