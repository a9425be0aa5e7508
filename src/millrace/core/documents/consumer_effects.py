"""What a consumer of a partition asks of its host, in order: each is done before the next is begun.

All are carried out whatever happens to the connection, for the consumer counts on them; only
questions are dropped with it (`PartitionConsumer.failed`).

`Ask`, `Persist` and `ReloadMap` are for every host.  The others come from consumers that hand
documents to an application (`ring_backing.py`); a replica puts them into its partition itself.
"""

from enum import Enum

import msgspec

from millrace.core.documents.document import NO_SEQ, Document, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.messages import (
    CloseStream,
    Fetch,
    GetFailoverLog,
    Repair,
    StreamRequest,
)
from millrace.core.documents.ring_buffer import RingEntry

Question = GetFailoverLog | StreamRequest | CloseStream | Fetch | Repair


class PersistStep(Enum):
    INTENT = "intent"  # An undo begins: nothing may be undone before this is durable (U2).
    FINISH = "finish"  # It is over: undone documents, failover log and place in one write.


class FollowerState(msgspec.Struct, frozen=True, array_like=True):
    """Where an application stands, to be kept with what it made of the documents up to there.

    It is a resumable offset: id, seq, and the first and last seq of the snapshot (U1)."""

    log: FailoverLog = NO_LOG
    snapshot: Seq = NO_SEQ  # The last seq of the last complete snapshot.
    seen: Seq = NO_SEQ
    running: Seq = NO_SEQ
    undo: Seq | None = None


class Ask(msgspec.Struct, frozen=True):
    """Send it to the partition's master; the answer goes to `answered` with this number."""

    number: int
    request: Question


class Persist(msgspec.Struct, frozen=True):
    """Make durable what the backing holds now, in one write; then call `persisted`."""

    number: int
    step: PersistStep


class ReloadMap(msgspec.Struct, frozen=True):
    """Whoever was asked is not, or not any more, the partition's master."""

    detail: str


class KeepEntries(msgspec.Struct, frozen=True):
    """Add these to the durable ring buffer, before any of the documents is processed (R-M.1)."""

    entries: tuple[RingEntry, ...]


class Deliver(msgspec.Struct, frozen=True):
    """Process the documents.  `after` may be kept once that is done, not before."""

    documents: tuple[Document, ...]
    after: FollowerState


class Undo(msgspec.Struct, frozen=True):
    """Take these versions whatever is there, and forget the keys that the master does not have."""

    documents: tuple[Document, ...]
    missing: tuple[bytes, ...]


class ForgetAll(msgspec.Struct, frozen=True):
    """All that was processed: the stream begins anew."""


BackingEffect = KeepEntries | Deliver | Undo | ForgetAll
ConsumerEffect = Ask | Persist | ReloadMap | BackingEffect
