"""A little cluster that serves a read stream in virtual time: nodes, a network, an application.

The nodes send as `core/send_streams.py` does: what their shipper chooses, in order, within window
and credit, each push with a claim.  Everything takes time, in order for each node, and nothing is
random: what happens to whom is the test's choice.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import count

from millrace.core.epochs import EpochRange
from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Damaged,
    GapFound,
    Message,
    Refusal,
    Refused,
    Start,
    Started,
    Stop,
    Window,
)
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading import effects as e
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.replication import Replication
from millrace.core.selections import credit_bytes
from millrace.core.shipping import Shipper
from millrace.lsn import lsn_of
from millrace.types import (
    LSN_MAX,
    NO_TOKEN,
    AuthoritativeStatus,
    Block,
    Copy,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
    Placement,
)

LOG = LogId(1)
STREAM = 7
BATCH_BYTES = 400
Statuses = dict[NodeId, AuthoritativeStatus]


def at(offset: int, epoch: int = 1) -> Lsn:
    return lsn_of(Epoch(epoch), offset)


def block(first: Lsn, records: int = 1, kind: EntryKind = EntryKind.DATA, size: int = 100) -> Block:
    epoch, checksum = Epoch(first >> 32), first % 1009
    return Block(LOG, first, records, epoch, kind, NO_TOKEN, checksum, _zeros(size))


@lru_cache
def _zeros(size: int) -> bytes:
    return bytes(size)


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def one_range(nodeset: Iterable[int], replication: int, last: int = 1) -> tuple[EpochRange, ...]:
    return (EpochRange(Epoch(1), Epoch(last), nodes(*nodeset), Replication.of(replication)),)


class Node:
    """A storage node that serves one stream."""

    def __init__(self, number: NodeId) -> None:
        self.number = number
        self.copies: dict[Lsn, tuple[Block, Placement]] = {}
        self.damaged: set[Lsn] = set()
        self.released = Lsn(0)
        self.trim_end = Lsn(1)
        self.latency_ms = 1
        self.is_up = True
        self.is_hung = False  # Connected, and says nothing until it wakes.
        self.unheard: list[Callable[[], None]] = []  # What it was told meanwhile.
        self.is_incomplete = False
        self.refusal: Refusal | None = None
        self._start: Start | None = None
        self._forget()

    def _forget(self) -> None:
        self._start = None
        self._next = Lsn(0)
        self._window_last = Lsn(0)
        self._credit_bytes = self._sent_bytes = 0
        self._told: Lsn | None = None

    def stop(self) -> None:
        self._forget()

    def start(self, start: Start) -> list[Message]:
        self._forget()
        if self.refusal is not None:
            return [Refused(self.refusal)]
        assert start.shipping is not None
        self._start, self._next = start, start.first
        self._window_last, self._credit_bytes = start.window_last, start.credit_bytes
        self._shipper = Shipper(self.number, start.shipping, {})
        started = Started(start.stream, start.version, start.first, self.is_incomplete)
        return [started, *self.pump()]

    def widen(self, window: Window) -> list[Message]:
        if self._start is None or window.version != self._start.version:
            return []
        self._credit_bytes = max(self._credit_bytes, window.credit_bytes)
        self._window_last = max(self._window_last, window.window_last)
        return self.pump()

    def tell_again(self) -> None:
        """How far it has come, with the next of what is pumped."""
        self._told = None

    def pump(self) -> list[Message]:
        """All that can be sent now."""
        pushed: list[Message] = []
        while self._start is not None and self._next < self._start.end:
            push = self._push(self._start)
            if push is None:
                break
            pushed.append(push)
        return pushed

    def _push(self, start: Start) -> Message | None:
        number, version = start.stream, start.version
        if self._next < min(self.trim_end, start.end):
            first, self._next = self._next, min(self.trim_end, start.end)
            self._told = self._next
            return GapFound(number, version, GapKind.TRIM, first, Lsn(self._next - 1))
        end = min(Lsn(self.released + 1), start.end, Lsn(self._window_last + 1))
        if self._next >= end:
            if self._told == self._next:
                return None
            self._told = self._next
            return CaughtUp(number, version, self._next, self._next, self.is_incomplete)
        if self._sent_bytes >= self._credit_bytes:
            return None
        chosen = self._choose(end)
        if chosen and chosen[0].first in self.damaged:
            self._next = self._told = chosen[0].end
            return Damaged(number, version, chosen[0].first, self._next)
        return self._ship(start, chosen, end)

    def _choose(self, end: Lsn) -> list[Block]:
        return [
            stored
            for stored, placement in (self.copies[first] for first in sorted(self.copies))
            if stored.end > self._next
            and stored.first < end
            and self._shipper.ships(Copy(stored.extent(), placement))
        ]

    def _ship(self, start: Start, chosen: Sequence[Block], end: Lsn) -> Message:
        room = min(BATCH_BYTES, self._credit_bytes - self._sent_bytes)
        sent: list[Block] = []
        self._next = end
        for stored in chosen:
            if room <= 0 or stored.first in self.damaged:
                self._next = stored.first
                break
            sent.append(stored)
            room -= credit_bytes(stored)
            self._sent_bytes += credit_bytes(stored)
            self._next = max(stored.end, end)
        self._told = self._next
        return Blocks(start.stream, start.version, tuple(sent), self._next)


class Cluster:
    """One stream, its nodes and its application, which takes what it is given at once unless it is
    told to pause."""

    def __init__(
        self,
        ranges: tuple[EpochRange, ...],
        first: Lsn,
        end: Lsn = LSN_MAX,
        settings: SequencedReadSettings | None = None,
        statuses: Statuses | None = None,
    ) -> None:
        self.ranges = ranges
        self.nodes = {n: Node(n) for each in ranges for n in each.nodeset}
        self.statuses: Statuses = dict(statuses or {})
        self.epochs_ms = 1  # How long it takes to find out where they lie.
        self.stream = SequencedReadStream(LOG, STREAM, first, end, settings)
        self.now_ms = 0
        self.next_lsn = first
        self.delivered: list[e.Deliver | Gap] = []
        self.started: list[tuple[NodeId, Start]] = []
        self.health: list[bool] = []
        self.is_finished = False
        self.is_paused = False
        self.on_gap: Callable[[Gap], None] = lambda gap: None
        self._untaken: list[int] = []
        self._timer_ms: int | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._busy_until: dict[tuple[NodeId, str], int] = {}
        self._session: dict[NodeId, int] = {}

    # -- What a test does ---------------------------------------------------------------------

    def store(
        self, stored: Block, copyset: Iterable[int], held_by: Iterable[int] | None = None
    ) -> None:
        placement = Placement(nodes(*copyset))
        for node in placement.copyset if held_by is None else nodes(*held_by):
            self.nodes[node].copies[stored.first] = (stored, placement)

    def release(self, last: Lsn, *only: int) -> None:
        for number in nodes(*only) or tuple(self.nodes):
            self.nodes[number].released = max(self.nodes[number].released, last)
            if self.nodes[number].is_up and not self.nodes[number].is_hung:
                self._say(number, self.nodes[number].pump())

    def open(self) -> None:
        self.perform(self.stream.open(self.now_ms))

    def kill(self, *numbers: int) -> None:
        for number in nodes(*numbers):
            node = self.nodes[number]
            node.is_up = False
            node.stop()
            node.unheard.clear()
            self._session[number] = self._session.get(number, 0) + 1
            self._later(1, partial(self._lose, number))

    def revive(self, *numbers: int) -> None:
        for number in nodes(*numbers):
            self.nodes[number].is_up = True

    def hang(self, number: int) -> None:
        self.nodes[NodeId(number)].is_hung = True

    def wake(self, number: int) -> None:
        node = self.nodes[NodeId(number)]
        node.is_hung = False
        unheard, node.unheard = node.unheard, []
        for hear in unheard:
            hear()
        self._say(node.number, node.pump())

    def set_statuses(self, statuses: Statuses) -> None:
        self.statuses = dict(statuses)
        self.perform(self.stream.statuses_changed(dict(statuses), self.now_ms))

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._take_all()

    def run(self, ms: int) -> None:
        """Let so much time pass."""
        until_ms = self.now_ms + ms
        steps = 0
        while (due_ms := self._next_due()) is not None and due_ms <= until_ms:
            steps += 1
            assert steps < 100_000, "the stream is busy without end"
            self.now_ms = max(self.now_ms, due_ms)
            if self._timer_ms is not None and self._timer_ms <= self.now_ms:
                self._timer_ms = None
                self.perform(self.stream.timer_fired(self.now_ms))
            else:
                heapq.heappop(self._events)[2]()
        self.now_ms = until_ms

    # -- What a test sees ---------------------------------------------------------------------

    def shown(self) -> list[str]:
        """What was delivered, by offsets: `1..3` for blocks, `hole 4..5` for gaps."""
        return [
            f"{part.first & 0xFFFFFFFF}..{part.end - 1 & 0xFFFFFFFF}"
            if isinstance(part, e.Deliver)
            else f"{part.kind.value} {part.first & 0xFFFFFFFF}..{part.last & 0xFFFFFFFF}"
            for part in self.delivered
        ]

    @property
    def rewinds(self) -> dict[str, int]:
        return {reason.value: n for reason, n in self.stream.rewinds.counts.items()}

    # -- Performing ---------------------------------------------------------------------------

    def perform(self, effects: Sequence[e.SequencedReadEffect]) -> None:
        assert not (self.is_finished and effects), "there are effects after the end"
        for effect in effects:
            match effect:
                case e.Deliver(_, first, end):
                    self._hand_over(first, end, effect)
                    self._untaken.append(credit_bytes(effect.block))
                case e.DeliverGap(gap):
                    self._hand_over(gap.first, Lsn(gap.last + 1), gap)
                    self.on_gap(gap)
                case e.StartSender(node, start):
                    self.started.append((node, start))
                    session = self._session.get(node, 0)
                    self._to(node, partial(self._start, node, start, session))
                case e.TellSender(node, message):
                    self._to(node, partial(self._tell, node, message))
                case e.SetTimer(ms):
                    self._timer_ms = self.now_ms + ms
                case e.NeedEpochs():
                    self._later(self.epochs_ms, self._find_epochs())
                case e.HealthChanged(is_healthy):
                    self.health.append(is_healthy)
                case e.Finish() | e.Fail():
                    self.is_finished = True
        self._take_all()

    def _hand_over(self, first: Lsn, end: Lsn, part: e.Deliver | Gap) -> None:
        assert first == self.next_lsn, f"{part} does not follow {self.next_lsn}"
        assert end > first
        self.next_lsn = end
        self.delivered.append(part)

    def _lose(self, number: NodeId) -> None:
        self.perform(self.stream.lost(number, self.now_ms))

    def _take_all(self) -> None:
        if self.is_paused or not self._untaken:
            return
        taken, self._untaken = self._untaken, []
        for size_bytes in taken:
            self._later(1, partial(self._took, size_bytes))

    def _took(self, size_bytes: int) -> None:
        self.perform(self.stream.took(size_bytes, self.now_ms))

    def _find_epochs(self) -> Callable[[], None]:
        """As they are now, however late the answer is."""
        released = Epoch(max(node.released for node in self.nodes.values()) >> 32)
        ranges, statuses = self.ranges, dict(self.statuses)

        def answer() -> None:
            self.perform(self.stream.epochs_known(ranges, released, {}, statuses, self.now_ms))

        return answer

    def _start(self, number: NodeId, start: Start, session: int) -> None:
        node = self.nodes[number]
        if session != self._session.get(number, 0):
            return  # It was on its way when the connection broke.
        if not node.is_up:
            self._answer(number, start.version, Failure(FailureKind.CONNECT))
        elif node.is_hung:
            node.unheard.append(lambda: self._start(number, start, session))
        else:
            answer, *pushed = node.start(start)
            self._answer(number, start.version, answer)
            self._say(number, pushed)

    def _answer(self, number: NodeId, version: int, answer: Message | Failure) -> None:
        def arrive() -> None:
            if self.stream.is_current(number, version):
                self.perform(self.stream.arrived(number, answer, self.now_ms))

        self._from(number, arrive)

    def _tell(self, number: NodeId, message: Window | Stop) -> None:
        node = self.nodes[number]
        if node.is_hung:
            node.unheard.append(lambda: self._tell(number, message))
        elif isinstance(message, Stop):
            node.stop()
        elif node.is_up:
            self._say(number, node.widen(message))

    def _say(self, number: NodeId, messages: Iterable[Message]) -> None:
        session = self._session.get(number, 0)
        for message in messages:

            def arrive(message: Message = message) -> None:
                if session == self._session.get(number, 0):
                    self.perform(self.stream.arrived(number, message, self.now_ms))

            self._from(number, arrive)

    def _from(self, number: NodeId, arrive: Callable[[], None]) -> None:
        self._in_order((number, "from"), arrive)

    def _to(self, number: NodeId, hear: Callable[[], None]) -> None:
        self._in_order((number, "to"), hear)

    def _in_order(self, way: tuple[NodeId, str], arrive: Callable[[], None]) -> None:
        """What goes to a node, or comes from it, arrives in order."""
        arrival = self.now_ms + self.nodes[way[0]].latency_ms
        arrival = self._busy_until[way] = max(arrival, self._busy_until.get(way, 0))
        heapq.heappush(self._events, (arrival, next(self._order), arrive))

    def _later(self, ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + ms, next(self._order), event))

    def _next_due(self) -> int | None:
        dues = [self._events[0][0]] if self._events else []
        if self._timer_ms is not None:
            dues.append(self._timer_ms)
        return min(dues, default=None)
