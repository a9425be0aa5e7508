"""Clients that read through read streams: the real ones, with an application that takes its time.

A follower reads on for ever, and its position survives a crash of the process, for it is the
application's.  A sampler reads ranges of what is there, one behind the other, wherever they lie.
What kinds of logs differ in is left to the subclasses.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec

from millrace.codec.cuts import selected_batch
from millrace.core.messages import Blocks, Message, MetaList, MetaListing, Start
from millrace.core.procedure import Answer
from millrace.core.reading.effects import (
    Deliver,
    DeliverGap,
    Fail,
    Finish,
    HealthChanged,
    NeedEpochs,
    SequencedReadEffect,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.selections import credit_bytes
from millrace.core.statuses import Entries, Statuses, between, statuses_of
from millrace.lsn import show
from millrace.meta.keys import STATUSES
from millrace.sim.driver import Driver
from millrace.sim.metadata import METADATA_NUMBER
from millrace.sim.network import Connection
from millrace.sim.process import Process
from millrace.sim.schedule import MS
from millrace.sim.selecting import Columns, check_rows, draw_selection
from millrace.sim.sequenced.surroundings import entries_of
from millrace.sim.violation import Violation
from millrace.types import (
    LSN_MAX,
    Block,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    LogId,
    Lsn,
    NodeId,
)

if TYPE_CHECKING:
    from millrace.sim.world import World

RANGE_MAX = 30
SAMPLE_PAUSE_US = 100 * MS


class ReadLedger(Protocol):
    """Who checks what readers are given."""

    def delivered(self, reader: str, block: Block, first: Lsn, end: Lsn) -> None: ...

    def written(self, block: Block) -> Columns:
        """What was appended with a block that was delivered."""

    def gap(self, reader: str, log: LogId, gap: Gap) -> None: ...


class ReadShape(Protocol):
    @property
    def racks(self) -> int: ...


class ReadPart(Protocol):
    """The logs of one kind in a world."""

    @property
    def log_ids(self) -> Sequence[LogId]: ...

    @property
    def shape(self) -> ReadShape: ...

    @property
    def ledger(self) -> ReadLedger: ...


class Reading:
    """One stream, its timer, and what its application was given so far."""

    def __init__(self, stream: SequencedReadStream, first: Lsn, end: Lsn) -> None:
        self.stream = stream
        self.at = first
        self.end = end
        self.timer: int | None = None


class Nap(msgspec.Struct, frozen=True):
    """An application begins once more at `begin_us`, and takes nothing until `end_us`."""

    begin_us: int
    end_us: int


class StreamReader(Process):
    world: "World"
    FIRSTS: Sequence[Lsn] = (Lsn(1),)  # Where followers may begin.
    FOLLOWER = ""  # The name of one who reads everything: there is at least one.
    IS_DENSE = False

    def __init__(self, world: "World", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.driver: Driver
        self.is_sampler = self.rng.random() < 0.5 and name != self.FOLLOWER
        self.first = self.rng.choice(self.FIRSTS)
        self.positions: dict[LogId, Lsn] = {}
        self.readings: dict[int, Reading] = {}
        self.selection = draw_selection(Random(f"{world.seed}/selection/{number}"))
        self.take_us = self.rng.choice((0, 0, 100, 5_000))
        self.nap = Nap(0, 0)
        self.data_received = 0
        self.data_delivered = 0
        self.rewinds = 0
        self.losses_told = 0
        self.is_stopping = False
        self._streams = 0
        self._entries: Entries | None = None  # As it has looked at them last.

    # -- What kinds of logs differ in -----------------------------------------------------------

    @property
    def part(self) -> ReadPart:
        """Whose logs it reads."""
        raise NotImplementedError

    @property
    def settings(self) -> SequencedReadSettings:
        raise NotImplementedError

    @property
    def look_ms(self) -> int:
        """How often it looks at what it would be told of by a watch."""
        raise NotImplementedError

    def values(self, log: LogId) -> list[Lsn]:
        """Positions of records that were acknowledged or read."""
        raise NotImplementedError

    def find_epochs(self, reading: Reading, epoch: Epoch) -> None:
        raise NotImplementedError

    def arrived(self, reading: Reading, part: Deliver | Gap) -> None:
        """A read stream gives something: it may be handed over at once."""
        self.hand_over(reading, part)

    def looked(self, statuses: Statuses) -> None:
        for reading in list(self.readings.values()):
            effects = reading.stream.statuses_changed(statuses, self._now_ms())
            self.perform(reading, effects)

    # -- Life -----------------------------------------------------------------------------------

    def on_start(self) -> None:
        self.driver = Driver(self)
        self.readings = {}
        self._entries = None
        for log in self.part.log_ids:
            self._open(log)
        self._look_at_statuses()
        if self.world.schedule.now_us < self.nap.begin_us:
            self.later(self.nap.begin_us - self.world.schedule.now_us, self._fall_behind)

    def _fall_behind(self) -> None:
        self.crash()
        self.positions.clear()
        self.start()

    def on_crash(self) -> None:
        for reading in self.readings.values():
            self._tally(reading)
        self.readings = {}

    # -- Streams --------------------------------------------------------------------------------

    def _open(self, log: LogId) -> None:
        if self.is_sampler:
            self._sample(log)
        else:
            self.read(log, self.positions.setdefault(log, self.first), LSN_MAX)

    def _sample(self, log: LogId) -> None:
        """A range of what is there; nothing yet: later."""
        values = self.values(log)
        if self.is_stopping:
            return
        if not values:
            self.later(SAMPLE_PAUSE_US, self._sample, log)
            return
        one, other = sorted(self.rng.choice(values) for _ in range(2))
        first = max(Lsn(1), Lsn(one - int(self.rng.random() * 3)))
        end = max(other, Lsn(first + 1)) if self.rng.random() < 0.3 else Lsn(first + RANGE_MAX)
        self.read(log, first, min(end, Lsn(max(values) + 1)))

    def audit(self, log: LogId, end: Lsn) -> None:
        """Read all that there is once more."""
        self.read(log, Lsn(1), end)

    def read(self, log: LogId, first: Lsn, end: Lsn) -> None:
        self._streams += 1
        stream = SequencedReadStream(
            log,
            self._streams,
            first,
            end,
            self.settings,
            self.selection,
            seed=self.number,
            location=f"r.d.c.w.k{self.number % self.part.shape.racks}",
            draw=self.rng.randrange,
            is_dense=self.IS_DENSE,
        )
        reading = self.readings[self._streams] = self.reading(stream, first, end)
        self.perform(reading, stream.open(self._now_ms()))

    def reading(self, stream: SequencedReadStream, first: Lsn, end: Lsn) -> Reading:
        return Reading(stream, first, end)

    def _now_ms(self) -> int:
        return self.world.schedule.now_us // MS

    def finish(self, reading: Reading) -> None:
        self._tally(reading)
        if self.readings.pop(reading.stream.number, None) is None:
            return
        if reading.at != reading.end:
            at = show(reading.at)
            raise Violation("G2", f"{self.name} was finished at {at}, not {show(reading.end)}")
        self.world.count("reader.finished")
        if self.is_sampler and not self.is_stopping:
            self.later(SAMPLE_PAUSE_US, self._sample, reading.stream.log)

    def abandon(self, reading: Reading) -> None:
        """Another stream is to take its place."""
        self._tally(reading)
        del self.readings[reading.stream.number]
        if reading.timer is not None:
            self.world.schedule.cancel(reading.timer)
        for effect in reading.stream.stop():
            if isinstance(effect, TellSender):
                self.tell(effect.node, effect.message)

    def _tally(self, reading: Reading) -> None:
        for reason, count in reading.stream.rewinds.counts.items():
            self.world.count(f"rewind.{reason.value}", count)
        for wrong in reading.stream.hearing.misbehaviours:
            raise Violation("cost", f"{self.name} takes an honest node for bad: {wrong.value}")
        self.rewinds += reading.stream.rewinds.total

    @property
    def streams_opened(self) -> int:
        return self._streams

    def tally_all(self) -> None:
        """At the end of a run: what the open streams have counted."""
        for reading in self.readings.values():
            self._tally(reading)

    # -- Effects --------------------------------------------------------------------------------

    def perform(self, reading: Reading, effects: list[SequencedReadEffect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self.arrived(reading, effect)
                case DeliverGap(gap):
                    self.arrived(reading, gap)
                case StartSender(node, start):
                    self._start(reading, node, start)
                case TellSender(node, message):
                    self.tell(node, message)
                case SetTimer(ms):
                    self._set_timer(reading, ms)
                case NeedEpochs(epoch):
                    self.find_epochs(reading, epoch)
                case HealthChanged(is_healthy):
                    self.world.count(f"reader.{'healthy' if is_healthy else 'unhealthy'}")
                case Finish():
                    self.finish(reading)
                case Fail(reason):
                    raise Violation("G3", f"{self.name} fails: {reason.value}")
        self._check_bounds(reading.stream)

    def hand_over(self, reading: Reading, part: Deliver | Gap) -> None:
        if isinstance(part, Gap):
            self._advance(reading, part.first, Lsn(part.last + 1))
            self.losses_told += part.kind is GapKind.DATALOSS
            self.part.ledger.gap(self.name, reading.stream.log, part)
            return
        block, first, end = part.block, part.first, part.end
        self._advance(reading, first, end)
        self.data_delivered += 1
        self.part.ledger.delivered(self.name, block, first, end)
        if self.selection is not None:
            batch = selected_batch(block, self.selection, first=first, end=end)
            written = self.part.ledger.written(block)
            check_rows(self.name, written, block, self.selection, (first, end), batch)
        self.later(self._taken_in_us(), self._take, reading, credit_bytes(block))

    def _taken_in_us(self) -> int:
        now_us = self.world.schedule.now_us
        if not self.nap.begin_us <= now_us < self.nap.end_us:
            return self.take_us
        self.world.count("reader.napped")
        return self.nap.end_us - now_us

    def _advance(self, reading: Reading, first: Lsn, end: Lsn) -> None:
        """Keeps watch over G2."""
        if first != reading.at or end <= first or end > reading.end:
            at = show(reading.at)
            raise Violation(
                "G2", f"{self.name} is at {at}, and was given {show(first)} up to {show(end)}"
            )
        reading.at = end
        if reading.end == LSN_MAX:
            self.positions[reading.stream.log] = end

    def _check_bounds(self, stream: SequencedReadStream) -> None:
        nodes = len(self.world.nodes)
        buffer = stream.delivery.buffer
        held = stream.credit.untaken_bytes
        held += sum(buffer.bytes_of(node.node) for node in self.world.nodes)
        share = max(self.settings.window_bytes, self.settings.sender_bytes_min)
        if held > nodes * (share + self.world.block_bytes_max):
            raise Violation("G13", f"{self.name} holds {held} bytes")

    def _start(self, reading: Reading, node: NodeId, start: Start) -> None:
        def answered(answer: Answer) -> None:
            if reading.stream.is_current(node, start.version):
                self.perform(reading, reading.stream.arrived(node, answer, self._now_ms()))

        self.ask(node, start, 0, answered)

    def _set_timer(self, reading: Reading, ms: int) -> None:
        if reading.timer is not None:
            self.world.schedule.cancel(reading.timer)
        reading.timer = self.later(ms * MS or 1, self._timer_fired, reading)

    def _timer_fired(self, reading: Reading) -> None:
        reading.timer = None
        self.perform(reading, reading.stream.timer_fired(self._now_ms()))

    def _take(self, reading: Reading, size_bytes: int) -> None:
        self.perform(reading, reading.stream.took(size_bytes, self._now_ms()))

    def _look_at_statuses(self) -> None:
        """Stands for the watch that clients have on them."""

        def listed(answer: Answer) -> None:
            if not isinstance(answer, MetaListing):
                return
            entries, before = entries_of(answer.entries), self._entries
            self._entries = entries
            if before is None:
                self.looked(statuses_of(entries))
            elif entries != before:
                for statuses in between(before, entries):
                    self.looked(statuses)

        self.later(self.look_ms * MS, self._look_at_statuses)
        self.ask(METADATA_NUMBER, MetaList(STATUSES.prefix), 0, listed)

    # -- Arrivals -------------------------------------------------------------------------------

    def pushed(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Blocks):
            data = sum(block.kind is EntryKind.DATA for block in message.blocks)
            self.data_received += data
        reading = self.readings.get(getattr(message, "stream", 0))
        if reading is not None:
            node = NodeId(connection.peer_of(self).number)
            self.perform(reading, reading.stream.arrived(node, message, self._now_ms()))

    def on_closed(self, connection: Connection) -> None:
        node = NodeId(connection.peer_of(self).number)
        for reading in list(self.readings.values()):
            self.perform(reading, reading.stream.lost(node, self._now_ms()))


def small_times(settings: SequencedReadSettings, ask_ms: int) -> SequencedReadSettings:
    """So that what takes minutes elsewhere happens within a run."""
    return msgspec.structs.replace(
        settings,
        sender_bytes_min=1,
        reconnect_ms_max=1_000,
        started_timeout_ms=ask_ms,
        rewind_ms_max=50,
        stalled_grace_ms=1_000,
        epochs_retry_ms_min=20,
        epochs_retry_ms_max=500,
    )


def reader_behind(readers: Iterable[StreamReader], end_of: Callable[[LogId], Lsn]) -> str | None:
    """Of somebody who does not come to the end of a log: what he waits for (G9)."""
    for reader in readers:
        for reading in reader.readings.values():
            log = reading.stream.log
            end = min(reading.end, end_of(log))
            if reading.at >= end:
                continue
            explained = reading.stream.explain()
            if not explained["waits_for"]:
                raise Violation("G9", f"{reader.name} cannot say what it waits for")
            return f"{reader.name} does not reach {show(end)} of log {log}: {explained}"
    return None
