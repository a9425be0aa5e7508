"""The words everything else is said in: ids, records, gaps, blocks.

Ranges are half-open with `end`; `last` is inclusive.  Positions of chain logs are contiguous
from 1, those of sequenced logs are an epoch and an offset in it (`lsn.py`), so 0 always means
"before the first record".
"""

from enum import Enum, IntEnum
from typing import Final, NewType

import msgspec

Buffer = bytes | bytearray | memoryview

NodeId = NewType("NodeId", int)
LogId = NewType("LogId", int)
Lsn = NewType("Lsn", int)
Epoch = NewType("Epoch", int)
StreamId = NewType("StreamId", int)  # Of a commit log; from 1.
Version = NewType("Version", int)  # Of what a commit log's committer decided; from 1.

FIRST_LSN: Final = Lsn(1)
NO_LSN: Final = Lsn(0)
NO_NODE: Final = NodeId(0)
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
    DOCUMENTS = "documents"
    METADATA = "metadata"


class EntryKind(IntEnum):
    """What a position holds.  The numbers are on disk: never renumber."""

    DATA = 0
    HOLE = 1  # Filled: its writer never completed, nothing was acknowledged here.
    LOSS = 2  # Filled by a recovery that cannot rule out an acknowledged record here.
    BRIDGE = 3  # Written by a recovery behind the last record of an epoch: no more follow in it.


class GapKind(Enum):
    """Why a range has no records.  Each word is the same in the API, CLI, metrics and docs."""

    BRIDGE = "bridge"
    HOLE = "hole"
    DATALOSS = "dataloss"
    TRIM = "trim"
    ACCESS = "access"
    NOTINCONFIG = "notinconfig"
    FILTERED_OUT = "filtered_out"


class AuthoritativeStatus(Enum):
    """Whether a node's "I do not have it" counts (seed 003, R7)."""

    FULLY_AUTHORITATIVE = "fully_authoritative"
    UNDERREPLICATION = "underreplication"  # Its data is not coming back: it has no vote.
    AUTHORITATIVE_EMPTY = "authoritative_empty"  # Its data was copied elsewhere.
    UNAVAILABLE = "unavailable"  # Down, and it may come back with its data: wait for it.


class CopysetOrder(Enum):
    """In which order the nodes of a copyset are asked to send a block (R1)."""

    STORED = "stored"
    SHUFFLED = "shuffled"
    SHUFFLED_PER_CLIENT = "shuffled_per_client"


class LocalScd(Enum):
    """Whether nodes near the reader send before others (R3)."""

    OFF = "off"
    REGION = "region"
    RACK = "rack"


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


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Where the copies of a block are, in delivery order, and who said so.  Of two placements of
    one position the one of the higher `recovery` stands, then the one of the higher `wave`."""

    copyset: tuple[NodeId, ...]
    wave: int = 0  # Attempts of the appender; 0: not written by one.
    recovery: Epoch = Epoch(0)  # The epoch whose recovery wrote it; 0: it was appended.

    @property
    def precedence(self) -> tuple[int, int]:
        return self.recovery, self.wave


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A block as one node holds it, without the data."""

    extent: Extent
    placement: Placement


class Weight(msgspec.Struct, frozen=True, array_like=True):
    """About how many bytes the blocks of positions [first, end) have."""

    first: Lsn
    end: Lsn
    bytes: int


class Run(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Consecutive positions [first, end) of one epoch that records were given."""

    first: Lsn
    end: Lsn


class Block:
    """The unit of storing, sending and replicating: consecutive records of one log.

    `data` is the whole encoded block (header and body), never copied on its way; the other
    fields repeat its header.  Replicas of a block are byte for byte the same.  A block that
    `is_cut` holds what a reader selected of it: it exists on the wire alone, no store takes one.
    One that `is_published` says where its records lie in another log.  `shift` is how far the
    positions in the body of a cut lie below those that it is seen at.
    """

    __slots__ = (
        "checksum",
        "count",
        "data",
        "end",
        "epoch",
        "first",
        "is_cut",
        "is_published",
        "kind",
        "last",
        "log",
        "shift",
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
        is_published: bool = False,
        shift: int = 0,
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
        self.is_published = is_published
        self.shift = shift
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
    roles: tuple[Role, ...] = (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS)
    admin: str = ""  # host:port of /healthz and /metrics.
    instance: str = ""  # Drawn when the data directory was made: a wiped node is another one.
    documents: str = ""  # host:port of the documents' protocol.


class LogAttributes(msgspec.Struct, frozen=True):
    """What a user chooses for a log; every field has a default that suits most."""

    write_path: WritePath = WritePath.SEQUENCED
    replication: int = 3
    ack: Ack = Ack.DISK
    compression: bool = True
    retention_ms: int | None = None
    retention_bytes: int | None = None
    across: tuple[tuple[str, int], ...] = ()  # Scopes beyond nodes, e.g. at least two racks.
    nodeset_size: int | None = None  # None: all storage nodes.
    is_single_copy: bool = True  # Whether readers use single copy delivery.
    local_scd: LocalScd = LocalScd.OFF
    copyset_order: CopysetOrder = CopysetOrder.SHUFFLED
    kept_ms_min: int | None = None  # What is younger is kept, whatever the size of the log.


class LogInfo(msgspec.Struct, frozen=True):
    id: LogId
    name: str
    attributes: LogAttributes
    created_ms: int = 0
