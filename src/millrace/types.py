"""The words everything else is said in: ids, records, gaps, blocks.

Ranges are half-open with `end`; `last` is inclusive.  Positions of chain logs are contiguous
from 1, so 0 always means "before the first record".
"""

from enum import Enum, IntEnum
from typing import Final, NewType

import msgspec

Buffer = bytes | bytearray | memoryview

NodeId = NewType("NodeId", int)
LogId = NewType("LogId", int)
Lsn = NewType("Lsn", int)
Epoch = NewType("Epoch", int)

FIRST_LSN: Final = Lsn(1)
NO_LSN: Final = Lsn(0)
LSN_MAX: Final = Lsn(2**63 - 1)  # Signed so that Arrow, Spark and LMDB agree on it.


class WritePath(Enum):
    """Who orders a log's records, and who copies them (architecture, section 2)."""

    SEQUENCED = "sequenced"
    CHAIN = "chain"
    COMMIT = "commit"


class Ack(Enum):
    """What an acknowledged append rests on, on each of its R nodes."""

    DISK = "disk"
    MEMORY = "memory"


class Role(Enum):
    STORAGE = "storage"
    SEQUENCER = "sequencer"
    METADATA = "metadata"


class EntryKind(IntEnum):
    """What a position holds.  The numbers are on disk: never renumber."""

    DATA = 0
    HOLE = 1  # Filled: its writer never completed, nothing was acknowledged here.
    LOSS = 2  # Filled by a recovery that cannot rule out an acknowledged record here.


class GapKind(Enum):
    """Why a range has no records.  Each word is the same in the API, CLI, metrics and docs."""

    BRIDGE = "bridge"
    HOLE = "hole"
    DATALOSS = "dataloss"
    TRIM = "trim"
    ACCESS = "access"
    NOTINCONFIG = "notinconfig"
    FILTERED_OUT = "filtered_out"


class Token(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Names one append of one client, so that `written` answers can be told apart (C2)."""

    client: int
    request: int


NO_TOKEN: Final = Token(0, 0)


class Record(msgspec.Struct, frozen=True):
    """One record as an application sees it; `timestamp` is in microseconds since 1970."""

    lsn: Lsn
    value: bytes
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


RECORD_COLUMNS: Final = ("key", "value", "timestamp", "headers")  # Beside `lsn`.


class Gap(msgspec.Struct, frozen=True):
    """Positions `first..last` (inclusive) have no records, for the reason `kind`."""

    kind: GapKind
    first: Lsn
    last: Lsn


class Selection(msgspec.Struct, frozen=True, array_like=True):
    """What a reader wants of a log: the storage node leaves out the rest before it sends.

    `columns` are those of a record beside `lsn`, which always comes.  Rows match whose timestamp
    lies in [time_first_us, time_end_us) and whose key is one of `keys`; None: whatever it is.
    No columns and no filter give positions alone, at the cost of the blocks' headers.
    """

    columns: tuple[str, ...] = RECORD_COLUMNS
    time_first_us: int | None = None
    time_end_us: int | None = None
    keys: tuple[bytes, ...] | None = None

    @property
    def has_times(self) -> bool:
        return self.time_first_us is not None or self.time_end_us is not None

    @property
    def has_filter(self) -> bool:
        return self.keys is not None or self.has_times


class Extent(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What a node holds at `first..last`, without the data: an entry of the copyset index."""

    first: Lsn
    last: Lsn
    kind: EntryKind
    token: Token
    checksum: int  # The block's header checksum, which covers the body's.
    size: int  # Bytes of the stored block.


class Weight(msgspec.Struct, frozen=True, array_like=True):
    """About how many bytes the blocks of positions [first, end) have."""

    first: Lsn
    end: Lsn
    bytes: int


class Block:
    """The unit of storing, sending and replicating: consecutive records of one log.

    `data` is the whole encoded block (header and body), never copied on its way; the other
    fields repeat its header.  Replicas of a block are byte for byte the same.  A block that
    `is_cut` holds what a reader selected of it: it exists on the wire alone, no store takes one.
    """

    __slots__ = (
        "checksum",
        "count",
        "data",
        "end",
        "epoch",
        "first",
        "is_cut",
        "kind",
        "last",
        "log",
        "size",
        "token",
    )

    def __init__(
        self,
        log: LogId,
        first: Lsn,
        count: int,
        epoch: Epoch,
        kind: EntryKind,
        token: Token,
        checksum: int,
        data: Buffer,
        is_cut: bool = False,
    ) -> None:
        self.log = log
        self.first = first
        self.count = count
        self.epoch = epoch
        self.kind = kind
        self.token = token
        self.checksum = checksum
        self.data = data
        self.is_cut = is_cut
        # Computed once: every layer that a block passes asks for them.
        self.end = Lsn(first + count)
        self.last = Lsn(first + count - 1)
        self.size = len(data)

    def extent(self) -> Extent:
        return Extent(self.first, self.last, self.kind, self.token, self.checksum, self.size)

    def __repr__(self) -> str:
        return f"Block({self.kind.name.lower()} {self.first}..{self.last} of log {self.log})"


class NodeInfo(msgspec.Struct, frozen=True):
    """A node as registered in the metadata repository."""

    id: NodeId
    address: str  # host:port of the data protocol.
    location: str = ""  # region.dc.cluster.row.rack
    roles: tuple[Role, ...] = (Role.STORAGE, Role.SEQUENCER)
    admin: str = ""  # host:port of /healthz and /metrics.
    instance: str = ""  # Drawn when the data directory was made: a wiped node is another one.


class LogAttributes(msgspec.Struct, frozen=True):
    """What a user chooses for a log; every field has a default that suits most."""

    write_path: WritePath = WritePath.CHAIN
    replication: int = 3
    ack: Ack = Ack.DISK
    compression: bool = True
    retention_ms: int | None = None
    retention_bytes: int | None = None


class LogInfo(msgspec.Struct, frozen=True):
    id: LogId
    name: str
    attributes: LogAttributes
    created_ms: int = 0
