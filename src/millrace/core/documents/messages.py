"""What is said on a change stream's connection, apart from bytes (`codec/memcached/`).

A consumer opens a connection, asks for failover logs, requests streams of partitions, and
acknowledges what it has processed.  The producer answers, and pushes markers, changes and ends.
Names are the protocol's where the meaning is the same (U10); the rest are extensions.
"""

from enum import Enum, IntEnum, IntFlag
from typing import Final

import msgspec

from millrace.core.documents.document import (
    NO_SEQ,
    SEQ_MAX,
    Cas,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.failover_log import FailoverLog


class StreamFlag(IntFlag):
    """Of a StreamRequest; the low bits are the protocol's own."""

    TAKEOVER = 0x01  # End when all is sent, and hand the partition over.
    DISK_ONLY = 0x02
    TO_LATEST = 0x04  # Finite: up to what the master has when the stream begins.
    ACTIVE_ONLY = 0x10
    STRICT_ID = 0x20  # The id must be known even at seq 0.
    FROM_LATEST = 0x40  # From now on.
    NEWEST_ID = 0x1000_0000  # The id must be the newest there: else it is refused (seed, R-J.5).
    KEYS_ONLY = 0x2000_0000


class StreamStatus(IntEnum):
    """How a request is answered; the numbers are the protocol's statuses."""

    OK = 0x00
    NOT_FOUND = 0x01
    EXISTS = 0x02  # The stream, or the cookie, is there already.
    TOO_LARGE = 0x03  # For one frame: ask for fewer, or offer fewer.
    INVALID = 0x04
    NOT_MY_PARTITION = 0x07
    NO_BUCKET = 0x08
    RANGE = 0x22
    ROLLBACK = 0x23
    UNKNOWN_COMMAND = 0x81
    NO_MEMORY = 0x82
    BUSY = 0x85
    TEMPORARY_FAILURE = 0x86
    WRONG_FAILOVER_ID = 0xE0  # Extension.


class EndReason(IntEnum):
    """Why a stream ended; the numbers are the protocol's."""

    OK = 0  # Its last seq was sent.
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6  # The partition it came from is rolled back itself.


class MarkerFlag(IntFlag):
    MEMORY = 0x01
    DISK = 0x02


# -- What a consumer says ---------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True):
    """`name` is "what:who": replica:3, indexer:eu-1."""

    name: str
    bucket: str = ""  # Empty: the one that the connection has selected.
    bucket_id: int = 0  # 0: whichever has the name now.  A replica's is of one, and no other.


class Control(msgspec.Struct, frozen=True):
    """connection_buffer_size, enable_noop, set_noop_interval, changes_in_batches, key_prefix,
    states (comma-separated)."""

    key: str
    value: str


class GetFailoverLog(msgspec.Struct, frozen=True):
    partition: PartitionId


class StreamRequest(msgspec.Struct, frozen=True):
    """`start` means "I have this one"; `end` is the last seq wanted."""

    partition: PartitionId
    start: Seq
    id: FailoverId
    snapshot_first: Seq = NO_SEQ
    snapshot_last: Seq = NO_SEQ
    end: Seq = SEQ_MAX
    flags: StreamFlag = StreamFlag(0)


class CloseStream(msgspec.Struct, frozen=True):
    partition: PartitionId


class BufferAck(msgspec.Struct, frozen=True):
    """So many bytes of pushed messages were processed."""

    bytes: int


class Barrier(msgspec.Struct, frozen=True):
    """Send the cookie back when all that was acknowledged before has been streamed."""

    cookie: str


class SeqAck(msgspec.Struct, frozen=True):
    """A replica has the complete snapshot up to `complete`, and `persisted` of it on disk."""

    partition: PartitionId
    id: FailoverId
    complete: Seq
    persisted: Seq


class Fetch(msgspec.Struct, frozen=True):
    """The newest versions of these documents, tombstones included, for an undo to `start` (R-M.4).
    Refused by a copy that has not come so far itself: it may lack them."""

    partition: PartitionId
    id: FailoverId
    keys: tuple[bytes, ...]
    start: Seq


class Repair(msgspec.Struct, frozen=True):
    """Store each of these unless the document's seq here is above `rollback` (U7)."""

    partition: PartitionId
    id: FailoverId
    rollback: Seq
    documents: tuple[Document, ...]


# -- What a producer answers ------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """To whatever needs no more than a status; `detail` is for people."""

    status: StreamStatus
    detail: str = ""


class FailoverLogGot(msgspec.Struct, frozen=True):
    partition: PartitionId
    log: FailoverLog
    high: Seq
    purged: Seq
    state: PartitionState


class StreamAnswered(msgspec.Struct, frozen=True):
    """OK comes with the failover log, ROLLBACK with the seq to go back to."""

    partition: PartitionId
    status: StreamStatus
    log: FailoverLog = FailoverLog()
    rollback: Seq = NO_SEQ
    detail: str = ""


class Fetched(msgspec.Struct, frozen=True):
    """Those that exist there; a key that is missing was never there, or its tombstone is gone."""

    documents: tuple[Document, ...]


class Repaired(msgspec.Struct, frozen=True):
    """The keys that were taken, with new seqs."""

    keys: tuple[bytes, ...]


# -- What a producer pushes -------------------------------------------------------------------


class SnapshotMarker(msgspec.Struct, frozen=True):
    """Changes of (first, last] follow; the state is whole when `last` is reached.  A marker
    with the `first` of the snapshot that runs, and a later `last`, extends it."""

    partition: PartitionId
    first: Seq
    last: Seq
    flags: MarkerFlag = MarkerFlag.MEMORY


class Changes(msgspec.Struct, frozen=True):
    """In the order of their seqs.  With KEYS_ONLY the values are empty."""

    partition: PartitionId
    documents: tuple[Document, ...]


class SeqAdvanced(msgspec.Struct, frozen=True):
    """All up to `seq` was sent: what is missing was filtered out, or its tombstone purged."""

    partition: PartitionId
    seq: Seq


class StreamEnd(msgspec.Struct, frozen=True):
    partition: PartitionId
    reason: EndReason


class AllPartitions(msgspec.Struct, frozen=True):
    """Every partition was streamed, or had nothing, since this was said last."""

    cycle: int


class BarrierReached(msgspec.Struct, frozen=True):
    cookie: str


class Noop(msgspec.Struct, frozen=True):
    """Are you there?  Answered with Answered(OK)."""


ConsumerRequest = (
    Open | Control | GetFailoverLog | StreamRequest | CloseStream | Barrier | Fetch | Repair
)
ConsumerNotice = BufferAck | SeqAck
ProducerAnswer = Answered | FailoverLogGot | StreamAnswered | Fetched | Repaired
ProducerPush = (
    SnapshotMarker | Changes | SeqAdvanced | StreamEnd | AllPartitions | BarrierReached | Noop
)

COOKIE_BYTES_MAX: Final = 128
NAME_BYTES_MAX: Final = 200


# -- Durability waits -------------------------------------------------------------------------


class WaitKind(Enum):
    """What a wait is for, on the node that is asked (R-H)."""

    ARRIVED = "arrived"  # A complete snapshot with it is in memory.
    PERSISTED = "persisted"


class MutationToken(msgspec.Struct, frozen=True):
    """Names a mutation: what a front-end client gets back, and waits with."""

    partition: PartitionId
    id: FailoverId
    seq: Seq
    cas: Cas
