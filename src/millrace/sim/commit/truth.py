"""What is true of one commit log, whoever knows it: entries of its streams, and their order.

The order is made by the records that the repository held, one behind the other: nothing else can
give a position.  So a position has one value from then on, and everything else is compared with it.
"""

from bisect import bisect_left, bisect_right

from millrace.core.append import AppendOutcome
from millrace.core.commit.record import CommitRecord, stream_log_of
from millrace.sim.selecting import Columns
from millrace.types import FIRST_LSN, Ack, Block, Epoch, LogId, Lsn, NodeId, Token, Version


class AppendRecord:
    """What is known of one append."""

    __slots__ = (
        "ack",
        "block",
        "floor",
        "log",
        "outcome",
        "writer",
        "written",
    )

    def __init__(
        self, block: Block, ack: Ack, truth: "CommitTruth", writer: str, written: Columns
    ) -> None:
        self.log = block.log
        self.block = block
        self.ack = ack
        self.floor = truth.acked_last  # The highest position acknowledged before this began.
        self.writer = writer
        self.written = written
        self.outcome: AppendOutcome | None = None

    @property
    def token(self) -> Token:
        return self.block.token


class EntryTruth:
    """A block that a primary gave a local position to."""

    __slots__ = (
        "ack",
        "checksum",
        "durable",
        "end",
        "first",
        "generation",
        "held",
        "lost",
        "stream_log",
        "token",
    )

    def __init__(self, block: Block, ack: Ack) -> None:
        self.stream_log = block.log
        self.first = block.first
        self.end = block.end
        self.checksum = block.checksum
        self.generation: Epoch = block.epoch
        self.token = block.token
        self.ack = ack
        self.held: set[NodeId] = set()  # Who has it in memory ...
        self.durable: set[NodeId] = set()  # ... and on disk ...
        self.lost: set[NodeId] = set()  # ... or lost it by a fault, having had it.

    @property
    def kept(self) -> set[NodeId]:
        """Who had what an acknowledgement rests on."""
        safe = self.durable if self.ack is Ack.DISK else self.held | self.durable
        return safe | self.lost


class Place:
    """Where in the log an entry lies."""

    __slots__ = ("entry", "first", "is_lost", "last")

    def __init__(self, entry: EntryTruth, first: Lsn) -> None:
        self.entry = entry
        self.first = first
        self.is_lost = False
        self.last = Lsn(first + entry.end - entry.first - 1)


class CommitTruth:
    def __init__(self) -> None:
        self.record: CommitRecord | None = None  # What the repository holds.
        self.streams: dict[LogId, dict[Lsn, list[EntryTruth]]] = {}  # By first local position.
        self.order: dict[Lsn, Place] = {}  # By first position of the log.
        self.places: dict[Token, Lsn] = {}
        self.acked_last = Lsn(0)
        self.trim_end = FIRST_LSN  # The highest that anybody asked for.
        self.ends: dict[LogId, list[tuple[Version, Lsn]]] = {}  # Of streams, as of which version.
        self.lossy: set[LogId] = set()  # Streams of which all replicas lost something.
        self._firsts: list[Lsn] = []  # Of `order`: ascending, since positions are.

    def note_ends(self, record: CommitRecord) -> None:
        for stream in record.streams:
            ends = self.ends.setdefault(stream_log_of(record.log, stream.stream), [])
            if ends and stream.local_end < ends[-1][1]:
                ends.clear()  # What was above is lost.
            if not ends or ends[-1][1] != stream.local_end:
                ends.append((record.version, stream.local_end))

    def end_at(self, stream_log: LogId, version: Version) -> Lsn | None:
        """Where the committed part of a stream ended; None if nobody knows any more."""
        ends = [end for at, end in self.ends.get(stream_log, ()) if at <= version]
        return ends[-1] if ends else None

    @property
    def high_watermark(self) -> Lsn:
        return Lsn(0) if self.record is None else self.record.high_watermark

    def entries_at(self, stream_log: LogId, first: Lsn) -> list[EntryTruth]:
        """All that ever was at this local position, the newest generation last."""
        return self.streams.setdefault(stream_log, {}).setdefault(first, [])

    def entry(self, block: Block) -> EntryTruth | None:
        return next(
            (
                one
                for one in self.entries_at(block.log, block.first)
                if one.checksum == block.checksum
            ),
            None,
        )

    def put_in_order(self, place: Place) -> None:
        self.order[place.first] = place
        self._firsts.append(place.first)

    def within(self, first: Lsn, last: Lsn) -> list[Place]:
        """What the positions first..last were given to."""
        low = max(0, bisect_right(self._firsts, first) - 1)
        found = [self.order[at] for at in self._firsts[low : bisect_left(self._firsts, last + 1)]]
        return [place for place in found if place.last >= first]

    def kept_places(self) -> list[Place]:
        """Those that are not trimmed away whole, or lost."""
        low = max(0, bisect_right(self._firsts, self.trim_end) - 1)
        found = (self.order[at] for at in self._firsts[low:])
        return [place for place in found if place.last >= self.trim_end and not place.is_lost]
