"""What the metadata repository holds of a commit log: one record, written by its committer alone.

I1  Each change is a compare-and-set by the committer of the newest term, so that no position is
    given twice, whoever else believes to be the committer.
I2  `version` goes up by one with each change that commits entries, `high_watermark` by their
    number; the commits of a version lie next to one another, in the order of the streams.
I3  A stream's history has each commit that some replica of its set may not have taken.
"""

from typing import Final

import msgspec

from millrace.types import FIRST_LSN, Epoch, LogId, Lsn, NodeId, StreamId, Version

STREAM_LOG_BIT: Final = 1 << 61  # In the id of a stream's log in the store.
_STREAM_SHIFT: Final = 44  # Log numbers stay below, streams above.
STREAMS_MAX: Final = 1 << 12


def stream_log_of(log: LogId, stream: StreamId) -> LogId:
    """Under which number the store keeps a stream."""
    return LogId(STREAM_LOG_BIT | stream << _STREAM_SHIFT | log)


def is_stream_log(log: LogId) -> bool:
    return bool(log & STREAM_LOG_BIT)


def log_of_stream(stream_log: LogId) -> LogId:
    """The commit log that the stream belongs to."""
    return LogId(stream_log & (1 << _STREAM_SHIFT) - 1)


def stream_of(stream_log: LogId) -> StreamId:
    return StreamId((stream_log & ~STREAM_LOG_BIT) >> _STREAM_SHIFT)


class StreamCommit(msgspec.Struct, frozen=True, array_like=True):
    """`count` entries of a stream, from local position `local` on, are the log's from `first` on:
    the seed's (version, local_offset, global_offset, length)."""

    version: Version
    local: Lsn
    first: Lsn
    count: int

    @property
    def local_end(self) -> Lsn:
        return Lsn(self.local + self.count)

    @property
    def end(self) -> Lsn:
        return Lsn(self.first + self.count)


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """`count` entries were committed, and no replica had them any more.  Up to `version` their
    local positions, from `local` on, were other entries' than since: whoever has some of those and
    heard of nothing later has to forget them."""

    count: int
    version: Version
    local: Lsn


class StreamRecord(msgspec.Struct, frozen=True, array_like=True):
    """`replicas` of this generation, the primary first.  All below `local_end` is committed, its
    last entry at `last` of the log (0 if there is none)."""

    stream: StreamId
    generation: Epoch
    replicas: tuple[NodeId, ...]
    is_open: bool = True  # False: an operator sealed it; nothing is appended or committed.
    local_end: Lsn = FIRST_LSN
    last: Lsn = Lsn(0)
    history: tuple[StreamCommit, ...] = ()  # In order.
    loss: Loss | None = None

    @property
    def taken_end(self) -> Lsn:
        """All replicas had taken the commits of what lies below: they alone know where it is in the
        log, and one that does not know it any more cannot be told by commits."""
        return self.history[0].local if self.history else self.local_end

    @property
    def lost(self) -> int:
        """Entries that were committed and are nowhere any more."""
        return 0 if self.loss is None else self.loss.count


class CommitRecord(msgspec.Struct, frozen=True):
    log: LogId
    term: Epoch
    committer: NodeId
    copies: int  # Replicas that each stream should have.
    streams: tuple[StreamRecord, ...]  # In order of their numbers.
    version: Version = Version(0)
    high_watermark: Lsn = Lsn(0)
    trim_end: Lsn = FIRST_LSN
    is_sealed: bool = False  # For good: no more appends to any stream.

    def stream(self, number: StreamId) -> StreamRecord | None:
        return next((each for each in self.streams if each.stream == number), None)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All that have a replica of any stream, in order."""
        return tuple(sorted({node for each in self.streams for node in each.replicas}))


class CommitContext(msgspec.Struct, frozen=True, array_like=True):
    """What a replica keeps of the newest commit it knows of, empty or not (M1, M2, M3).

    `local + count` is the end of its committed entries.  `first` of an empty commit is where the
    positions of its version begin; a context that says the next position of the log, or the
    stream's own, instead is taken as well.  `last` is the global position of the last committed
    entry, 0 if there is none: known even when all entries are trimmed.  `trim_end` is the log's
    trim point as of then: entries alone do not tell it, as what lies around it may be another
    stream's."""

    version: Version
    high_watermark: Lsn
    local: Lsn
    first: Lsn
    count: int
    last: Lsn
    trim_end: Lsn = FIRST_LSN

    @property
    def local_end(self) -> Lsn:
        return Lsn(self.local + self.count)
