"""The sending side of read streams: which blocks a node pushes to which reader, and when.

I1  A stream is sent [first, end) in order, once for each version.
I2  Only readable positions are sent (nothing unreleased, G6).
I3  At most one batch of a stream is under way, and no more than its credit plus one block, so
    a slow reader costs bounded memory (G13).
I4  A batch of a stream that selects is bounded by what is looked at, however little is sent.
"""

from millrace.core.chain_node import ChainNode
from millrace.core.effects import NodeEffect, Push, Reply, SendBlocks, Ticket
from millrace.core.messages import (
    CaughtUp,
    Ended,
    GapFound,
    Refusal,
    Refused,
    Start,
    Started,
)
from millrace.limits import READ_BATCH_BYTES, SELECT_BATCH_BYTES, STREAMS_PER_SESSION_MAX
from millrace.types import GapKind, LogId, Lsn


class SendStream:
    __slots__ = (
        "credit_bytes",
        "end",
        "is_sending",
        "log",
        "next_lsn",
        "number",
        "selection",
        "sent_bytes",
        "session",
        "told",
        "version",
    )

    def __init__(self, session: int, start: Start) -> None:
        self.session = session
        self.log = start.log
        self.number = start.stream
        self.version = start.version
        self.next_lsn = start.first
        self.end = start.end
        self.credit_bytes = start.credit_bytes
        self.selection = start.selection
        self.sent_bytes = 0
        self.is_sending = False
        self.told: tuple[Lsn, bool] | None = None  # The last CaughtUp: position, hole above it?


class SendStreams:
    """All streams of one node, found by (session, number) and by log."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[int, SendStream]] = {}
        self._by_log: dict[LogId, dict[tuple[int, int], SendStream]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._streams and not self._by_log

    def start(self, ticket: Ticket, start: Start, chain: ChainNode) -> list[NodeEffect]:
        session = ticket[0]
        self.stop(session, start.stream)
        mine = self._streams.setdefault(session, {})
        if len(mine) >= STREAMS_PER_SESSION_MAX:
            refused = Refused(Refusal.BUSY, chain.fence.epoch, "too many streams on a connection")
            return [Reply(ticket, refused)]
        stream = SendStream(session, start)
        mine[start.stream] = stream
        self._by_log.setdefault(start.log, {})[session, start.stream] = stream
        started = Started(start.stream, start.version, start.first)
        return [Reply(ticket, started), *self._pump(stream, chain)]

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

    def widen(self, stream: SendStream, credit_bytes: int, chain: ChainNode) -> list[NodeEffect]:
        stream.credit_bytes = max(stream.credit_bytes, credit_bytes)
        return self._pump(stream, chain)

    def sent(
        self, stream: SendStream, next_lsn: Lsn, sent_bytes: int, chain: ChainNode
    ) -> list[NodeEffect]:
        """The shell sent what it was told to, up to `next_lsn`; `sent_bytes` of the credit."""
        stream.is_sending = False
        stream.next_lsn = max(stream.next_lsn, next_lsn)
        stream.sent_bytes += sent_bytes
        return self._pump(stream, chain)

    def broke(self, stream: SendStream, chain: ChainNode, detail: str) -> list[NodeEffect]:
        """The store cannot serve the stream's next block: it is damaged."""
        self.stop(stream.session, stream.number)
        return [self._ended(stream, chain, Refusal.CORRUPT, detail)]

    def advanced(self, chain: ChainNode) -> list[NodeEffect]:
        """More of the log may be readable: serve whoever waits for it."""
        streams = self._by_log.get(chain.log)
        if not streams:
            return []
        return [effect for stream in list(streams.values()) for effect in self._pump(stream, chain)]

    def fenced(self, chain: ChainNode) -> list[NodeEffect]:
        """The log was sealed: its readers must look up who serves it now."""
        effects: list[NodeEffect] = []
        for stream in list(self._by_log.get(chain.log, {}).values()):
            self.stop(stream.session, stream.number)
            effects.append(self._ended(stream, chain, Refusal.EPOCH, "the log was sealed"))
        return effects

    def _pump(self, stream: SendStream, chain: ChainNode) -> list[NodeEffect]:
        if stream.is_sending:
            return []
        effects: list[NodeEffect] = []
        trim_end = min(chain.taken.trim_end, stream.end)
        if stream.next_lsn < trim_end:
            first, last = stream.next_lsn, Lsn(trim_end - 1)
            gap = GapFound(stream.number, stream.version, GapKind.TRIM, first, last)
            effects.append(Push(stream.session, gap))
            stream.next_lsn = trim_end
        if stream.next_lsn >= stream.end:
            self.stop(stream.session, stream.number)
            return effects
        readable_end = chain.readable_end
        if stream.next_lsn >= readable_end:
            return effects + self._caught_up(stream, chain)
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
        self, stream: SendStream, chain: ChainNode, reason: Refusal, detail: str
    ) -> NodeEffect:
        ended = Ended(
            stream.number, stream.version, reason, chain.fence.epoch, stream.next_lsn, detail
        )
        return Push(stream.session, ended)
