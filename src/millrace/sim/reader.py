"""Clients that read: the real read stream, with an application that takes its time.

A reader's position is its application's state, so it survives a crash of the process.  Some read
short ranges one behind the other, others follow the log for ever.
"""

from random import Random
from typing import TYPE_CHECKING

from millrace.codec.blocks import HEADER_BYTES, junk
from millrace.codec.cuts import selected_batch
from millrace.core.follow import copy_elsewhere, find_projection
from millrace.core.messages import Message, Start
from millrace.core.procedure import Answer, Failure
from millrace.core.projection import Projection
from millrace.core.read_stream import (
    Deliver,
    DeliverGap,
    Fail,
    Finish,
    NeedCopy,
    NeedProjection,
    NeedRepair,
    ReadEffect,
    ReadSettings,
    ReadStream,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.repair import FillPolicy, repair
from millrace.core.selections import credit_bytes
from millrace.sim.driver import Driver
from millrace.sim.network import Connection
from millrace.sim.process import Process
from millrace.sim.schedule import MS
from millrace.sim.selecting import check_rows, draw_selection
from millrace.sim.violation import Violation
from millrace.types import LSN_MAX, Block, LogId, Lsn, NodeId, Selection

if TYPE_CHECKING:
    from millrace.sim.world import World

RANGE_MAX = 30


class Reading:
    """One stream and its timer."""

    def __init__(self, stream: ReadStream) -> None:
        self.stream = stream
        self.timer: int | None = None
        self.projection: Projection | None = None
        self.blocks_delivered = 0


class Reader(Process):
    world: "World"

    def __init__(self, world: "World", number: int, name: str, policy: FillPolicy) -> None:
        super().__init__(world, number, name)
        self.policy = policy
        self.driver: Driver
        self.positions = {log: Lsn(1) for log in world.log_ids}
        self.readings: dict[int, Reading] = {}
        self.reads_ranges = self.rng.random() < 0.3
        self.selection = draw_selection(Random(f"{world.seed}/selection/{number}"))
        self.take_us = self.rng.choice((0, 0, 100, 5_000))
        self.rewinds = 0
        self.blocks_received = 0
        self.blocks_delivered = 0
        self._streams = 0

    def on_start(self) -> None:
        self.driver = Driver(self)
        self.readings = {}
        for log in self.world.log_ids:
            self._open(log)

    def on_crash(self) -> None:
        for reading in self.readings.values():
            self._tally(reading)
        self.readings = {}

    def _open(self, log: LogId) -> None:
        shape = self.world.shape
        first = self.positions[log]
        length = 1 + int(self.rng.random() * RANGE_MAX)
        end = Lsn(first + length) if self.reads_ranges else LSN_MAX
        settings = ReadSettings(
            window_bytes=shape.window_bytes,
            hole_check_ms=50,
            start_timeout_ms=shape.ask_ms,
            retry_ms=20,
        )
        self._streams += 1
        stream = ReadStream(log, self._streams, first, end, settings, self.selection)
        reading = Reading(stream)
        self.readings[self._streams] = reading
        self._perform(reading, reading.stream.open())

    # -- Effects --------------------------------------------------------------------------------

    def _perform(self, reading: Reading, effects: list[ReadEffect]) -> None:
        stream = reading.stream
        for effect in effects:
            match effect:
                case Deliver(block, first, end):
                    self._advance(stream.log, first, end)
                    self.blocks_delivered += 1
                    self.world.ledger.delivered(self.name, block, first, end)
                    if self.selection is not None:
                        self._select(self.selection, block, first, end)
                    self.later(self.take_us, self._take, reading, credit_bytes(block))
                case DeliverGap(gap):
                    self._advance(stream.log, gap.first, Lsn(gap.last + 1))
                    self.world.ledger.gap(self.name, stream.log, gap)
                case StartSender(node, start):
                    self._start(reading, node, start)
                case TellSender(node, message):
                    self.tell(node, message)
                case SetTimer(ms):
                    self._set_timer(reading, ms)
                case NeedProjection():
                    self._find_projection(reading, effect)
                case NeedRepair(lsn):
                    self._repair(reading, lsn)
                case NeedCopy():
                    self._copy(reading, effect)
                case Finish():
                    self._finish(reading)
                case Fail(reason):
                    self.world.count(f"reader.failed_{reason.value}")
                    self._finish(reading)  # Its application tries again.
        self._check_bounds(stream)

    def _select(self, selection: Selection, block: Block, first: Lsn, end: Lsn) -> None:
        """As the client library turns what it took into rows."""
        how = "bare" if block.size == HEADER_BYTES else "cut" if block.is_cut else "whole"
        self.world.count(f"select.{how}")
        batch = selected_batch(block, selection, first=first, end=end)
        written = self.world.ledger.appends[block.token].written
        check_rows(self.name, written, block, selection, (first, end), batch)

    def _advance(self, log: LogId, first: Lsn, end: Lsn) -> None:
        at = self.positions[log]
        if first != at or end <= first:
            raise Violation("G2", f"{self.name} is at {at} of log {log}, and was given {first}")
        self.positions[log] = end

    def _check_bounds(self, stream: ReadStream) -> None:
        not_taken, waiting = stream.bytes_not_taken, stream.blocks_out_of_order
        if not_taken > self.world.shape.window_bytes + self.world.block_bytes_max:
            raise Violation("G13", f"{self.name} holds {not_taken} bytes that nobody took")
        if waiting > self.world.blocks_waiting_max:
            raise Violation("G13", f"{self.name} holds {waiting} blocks out of order")

    def _start(self, reading: Reading, node: NodeId, start: Start) -> None:
        def answered(answer: Answer) -> None:
            if start.version == reading.stream.version:
                self._perform(reading, reading.stream.arrived(node, answer))

        self.ask(node, start, 0, answered)

    def _set_timer(self, reading: Reading, ms: int) -> None:
        if reading.timer is not None:
            self.world.schedule.cancel(reading.timer)
        reading.timer = self.later(ms * MS, self._timer_fired, reading)

    def _timer_fired(self, reading: Reading) -> None:
        reading.timer = None
        self._perform(reading, reading.stream.timer_fired())

    def _find_projection(self, reading: Reading, need: NeedProjection) -> None:
        def found(answer: Projection | Failure) -> None:
            if isinstance(answer, Projection):
                reading.projection = answer
            self._perform(reading, reading.stream.projected(answer))

        procedure = find_projection(reading.stream.log, need, reading.projection)
        self.driver.start(procedure, found)

    def _repair(self, reading: Reading, lsn: Lsn) -> None:
        assert reading.projection is not None
        procedure = repair(reading.projection, lsn, self.policy, junk)

        def repaired(result: object) -> None:
            self.world.count(f"repair.{getattr(result, 'value', 'trouble')}")
            self._perform(reading, reading.stream.repaired(lsn, result))  # type: ignore[arg-type]

        self.driver.start(procedure, repaired)

    def _copy(self, reading: Reading, need: NeedCopy) -> None:
        assert reading.projection is not None
        self.world.count("reader.copied_elsewhere")
        self.driver.start(
            copy_elsewhere(reading.projection, need),
            lambda block: self._perform(reading, reading.stream.copied(need.lsn, block)),
        )

    def _take(self, reading: Reading, size: int) -> None:
        self._perform(reading, reading.stream.took(size))

    def _finish(self, reading: Reading) -> None:
        self._tally(reading)
        if self.readings.pop(reading.stream.number, None) is not None:
            self._open(reading.stream.log)

    def _tally(self, reading: Reading) -> None:
        self.rewinds += sum(reading.stream.rewinds.values())
        self.blocks_received += reading.stream.blocks_received

    def count_rewinds(self) -> int:
        open_streams = [reading.stream for reading in self.readings.values()]
        return self.rewinds + sum(sum(stream.rewinds.values()) for stream in open_streams)

    def count_received(self) -> int:
        open_streams = [reading.stream for reading in self.readings.values()]
        return self.blocks_received + sum(stream.blocks_received for stream in open_streams)

    # -- Arrivals -------------------------------------------------------------------------------

    def pushed(self, connection: Connection, message: Message) -> None:
        reading = self.readings.get(getattr(message, "stream", 0))
        if reading is not None:
            node = NodeId(connection.peer_of(self).number)
            self._perform(reading, reading.stream.arrived(node, message))

    def on_closed(self, connection: Connection) -> None:
        node = NodeId(connection.peer_of(self).number)
        for reading in list(self.readings.values()):
            self._perform(reading, reading.stream.lost(node))
