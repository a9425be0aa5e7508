"""The sending side of read streams: which blocks a node pushes to which reader, and when.

I1  A stream is sent [first, end) in order, once for each version.
I2  Only readable positions are sent (nothing unreleased, G6).
I3  At most one batch of a stream is under way, and no more than its credit plus one block, so
    a slow reader costs bounded memory (G13).
I4  A batch of a stream that selects is bounded by what is looked at, however little is sent.
I5  Of a sequenced or a commit log each push says up to where the node has nothing more for the
    stream, and whatever happens the node says so again when that moves: readers rely on it
    (logdevice 2.5).
"""

from millrace.core.chain_node import ChainNode
from millrace.core.commit.source import CommitSource
from millrace.core.effects import (
    NodeEffect,
    Push,
    Reply,
    SendBlocks,
    ShipBlocks,
    ShipCommitted,
    Ticket,
)
from millrace.core.messages import (
    CaughtUp,
    Damaged,
    Ended,
    GapFound,
    Refusal,
    Refused,
    Start,
    Started,
    Window,
)
from millrace.core.sequenced.storage import SequencedStorage
from millrace.core.shipping import Shipper
from millrace.limits import READ_BATCH_BYTES, SELECT_BATCH_BYTES, STREAMS_PER_SESSION_MAX
from millrace.types import GapKind, LogId, Lsn

# What a node holds of a log of which others hold other parts: each says what it has, and what not.
PartSource = SequencedStorage | CommitSource
Source = ChainNode | PartSource


class SendStream:
    __slots__ = (
        "credit_bytes",
        "end",
        "has_shipped",
        "is_sending",
        "is_widened",
        "log",
        "next_lsn",
        "number",
        "selection",
        "sent_bytes",
        "session",
        "shipper",
        "told",
        "version",
        "window_last",
    )

    def __init__(self, session: int, start: Start, shipper: Shipper | None) -> None:
        self.session = session
        self.log = start.log
        self.number = start.stream
        self.version = start.version
        self.next_lsn = start.first
        self.end = start.end
        self.credit_bytes = start.credit_bytes
        self.selection = start.selection
        self.shipper = shipper
        self.window_last = start.window_last
        self.sent_bytes = 0
        self.has_shipped = False
        self.is_sending = False
        self.is_widened = False  # The reader has not heard yet what lies in the wider window.
        self.told: tuple[Lsn, bool] | None = None  # The last CaughtUp: position, hole above it?


class SendStreams:
    """All streams of one node, found by (session, number) and by log."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[int, SendStream]] = {}
        self._by_log: dict[LogId, dict[tuple[int, int], SendStream]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._streams and not self._by_log

    def shipping_logs(self) -> list[LogId]:
        """The logs, of which nodes hold a part each, that streams read."""
        return [
            log
            for log, streams in self._by_log.items()
            if any(stream.shipper is not None for stream in streams.values())
        ]

    def has_readers(self, log: LogId) -> bool:
        return log in self._by_log

    def is_waiting(self, log: LogId, end: Lsn) -> bool:
        """Some stream of the log has all that is readable below `end`."""
        return any(stream.next_lsn >= end for stream in self._by_log.get(log, {}).values())

    def start(
        self, ticket: Ticket, start: Start, source: Source, shipper: Shipper | None = None
    ) -> list[NodeEffect]:
        session = ticket[0]
        self.stop(session, start.stream)
        mine = self._streams.setdefault(session, {})
        if len(mine) >= STREAMS_PER_SESSION_MAX:
            refused = Refused(Refusal.BUSY, source.fence.epoch, "too many streams on a connection")
            return [Reply(ticket, refused)]
        stream = SendStream(session, start, shipper)
        mine[start.stream] = stream
        self._by_log.setdefault(start.log, {})[session, start.stream] = stream
        is_incomplete = not isinstance(source, ChainNode) and source.is_incomplete
        started = Started(start.stream, start.version, start.first, is_incomplete)
        return [Reply(ticket, started), *self._pump(stream, source)]

    def stop(self, session: int, number: int) -> None:
        mine = self._streams.get(session, {})
        stream = mine.pop(number, None)
        if stream is None:
            return
        if not mine:
            del self._streams[session]
        same_log = self._by_log[stream.log]
        del same_log[session, number]
        if not same_log:
            del self._by_log[stream.log]

    def close_session(self, session: int) -> None:
        for number in list(self._streams.get(session, {})):
            self.stop(session, number)
        self._streams.pop(session, None)

    def find(self, session: int, number: int, version: int) -> SendStream | None:
        stream = self._streams.get(session, {}).get(number)
        return stream if stream is not None and stream.version == version else None

    def widen(self, stream: SendStream, window: Window, source: Source) -> list[NodeEffect]:
        stream.credit_bytes = max(stream.credit_bytes, window.credit_bytes)
        stream.is_widened |= window.window_last > stream.window_last
        stream.window_last = max(stream.window_last, window.window_last)
        return self._pump(stream, source)

    def sent(
        self, stream: SendStream, next_lsn: Lsn, sent_bytes: int, source: Source
    ) -> list[NodeEffect]:
        """The shell sent what it was told to, up to `next_lsn`; `sent_bytes` of the credit."""
        stream.is_sending = False
        stream.next_lsn = max(stream.next_lsn, next_lsn)
        stream.sent_bytes += sent_bytes
        if stream.shipper is not None:
            stream.told = (stream.next_lsn, False)  # The push itself told it (I5).
        return self._pump(stream, source)

    def broke(self, stream: SendStream, source: Source, detail: str) -> list[NodeEffect]:
        """The store cannot serve the stream's next block: it is damaged."""
        self.stop(stream.session, stream.number)
        return [self._ended(stream, source, Refusal.CORRUPT, detail)]

    def skip_damaged(
        self, stream: SendStream, first: Lsn, next_lsn: Lsn, source: Source
    ) -> list[NodeEffect]:
        """Of a sequenced log others have copies: say so and go on behind the block."""
        stream.is_sending = False
        stream.next_lsn = max(stream.next_lsn, next_lsn)
        stream.told = (stream.next_lsn, False)
        damaged = Damaged(stream.number, stream.version, first, stream.next_lsn)
        return [Push(stream.session, damaged), *self._pump(stream, source)]

    def advanced(self, source: Source) -> list[NodeEffect]:
        """More of the log may be readable: serve whoever waits for it."""
        streams = self._by_log.get(source.log)
        if not streams:
            return []
        waiting = list(streams.values())
        return [effect for stream in waiting for effect in self._pump(stream, source)]

    def fenced(
        self, source: Source, reason: Refusal = Refusal.EPOCH, detail: str = "the log was sealed"
    ) -> list[NodeEffect]:
        """The node does not serve the log any more: its readers must look up who does."""
        effects: list[NodeEffect] = []
        for stream in list(self._by_log.get(source.log, {}).values()):
            self.stop(stream.session, stream.number)
            effects.append(self._ended(stream, source, reason, detail))
        return effects

    def _pump(self, stream: SendStream, source: Source) -> list[NodeEffect]:
        if stream.is_sending:
            return []
        effects = self._skip_trimmed(stream, source)
        if stream.next_lsn >= stream.end:
            self.stop(stream.session, stream.number)
            return effects
        if isinstance(source, ChainNode):
            return effects + self._pump_chain(stream, source)
        return effects + self._pump_part(stream, source)

    def _skip_trimmed(self, stream: SendStream, source: Source) -> list[NodeEffect]:
        trim_end = min(source.trim_end, stream.end)
        if stream.next_lsn >= trim_end:
            return []
        first, last = stream.next_lsn, Lsn(trim_end - 1)
        stream.next_lsn = trim_end
        gap = GapFound(stream.number, stream.version, GapKind.TRIM, first, last)
        return [Push(stream.session, gap)]

    def _pump_part(self, stream: SendStream, source: PartSource) -> list[NodeEffect]:
        if stream.shipper is None:
            self.stop(stream.session, stream.number)
            return [self._ended(stream, source, Refusal.BAD_REQUEST, "it is no chain log")]
        end = min(source.readable_end, stream.end, Lsn(stream.window_last + 1))
        if stream.next_lsn >= end:
            # That there is nothing more in a wider window is news, too.
            if stream.told == (stream.next_lsn, False) and not stream.is_widened:
                return []
            stream.told = (stream.next_lsn, False)
            stream.is_widened = False
            claim = CaughtUp(
                stream.number,
                stream.version,
                stream.next_lsn,
                stream.next_lsn,
                source.is_incomplete,
            )
            return [Push(stream.session, claim)]
        room = stream.credit_bytes - stream.sent_bytes
        if room <= 0:
            return []
        stream.is_widened = False
        stream.is_sending = True
        batch_bytes = READ_BATCH_BYTES if stream.selection is None else SELECT_BATCH_BYTES
        place = (stream.session, stream.log, stream.number, stream.version, stream.next_lsn, end)
        bytes_max = min(room, batch_bytes)
        if isinstance(source, CommitSource):
            streams = source.shipped_by(stream.shipper)
            return [ShipCommitted(*place, bytes_max, streams, stream.selection)]
        is_first, stream.has_shipped = not stream.has_shipped, True
        return [ShipBlocks(*place, bytes_max, stream.shipper, stream.selection, is_first)]

    def _pump_chain(self, stream: SendStream, chain: ChainNode) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        readable_end = chain.readable_end
        if stream.next_lsn >= readable_end:
            return self._caught_up(stream, chain)
        room = stream.credit_bytes - stream.sent_bytes
        if room > 0:
            stream.is_sending = True
            stream.told = None
            batch_bytes = READ_BATCH_BYTES if stream.selection is None else SELECT_BATCH_BYTES
            effects.append(
                SendBlocks(
                    stream.session,
                    stream.log,
                    stream.number,
                    stream.version,
                    stream.next_lsn,
                    min(readable_end, stream.end),
                    min(room, batch_bytes),
                    stream.selection,
                )
            )
        return effects

    def _caught_up(self, stream: SendStream, chain: ChainNode) -> list[NodeEffect]:
        # A block that is here but not yet safe is no hole: it will be sent when it is.
        has_hole = chain.taken.contiguous_end <= stream.next_lsn < chain.taken.end
        if stream.told == (stream.next_lsn, has_hole):
            return []
        stream.told = (stream.next_lsn, has_hole)
        end = chain.taken.end if has_hole else stream.next_lsn
        return [Push(stream.session, CaughtUp(stream.number, stream.version, stream.next_lsn, end))]

    def _ended(
        self, stream: SendStream, source: Source, reason: Refusal, detail: str
    ) -> NodeEffect:
        ended = Ended(
            stream.number, stream.version, reason, source.fence.epoch, stream.next_lsn, detail
        )
        return Push(stream.session, ended)
