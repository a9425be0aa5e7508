"""One attempt at a task: ranges side by side on lines of its own, keys into the ring, rows out."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.core.documents.change_query import PartitionRange, begun_of, receipt_of
from millrace.core.documents.change_ring import RingPart, Stretches
from millrace.core.documents.consumer_effects import Ask, ReloadMap
from millrace.core.documents.document import NO_CAS, ChangeKind, Document, PartitionId
from millrace.core.documents.messages import (
    Changes,
    ProducerAnswer,
    ProducerPush,
    SeqAdvanced,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)
from millrace.core.documents.range_consumer import (
    BeginEra,
    Compensate,
    GiveUp,
    RangeConsumer,
    RangeEffect,
    RangePhase,
    RecallParts,
)
from millrace.core.documents.ring_buffer import RingEntry
from millrace.sim.changes.checkpoint import Row
from millrace.sim.changes.lines import LinePool, QueryLine
from millrace.sim.schedule import MS
from millrace.sim.violation import Violation

if TYPE_CHECKING:
    from millrace.sim.changes.query import Query

KEEP_US = 3 * MS  # How long an append to the ring takes, about.
LOSS_SHARE = 0.3  # Of undos.
HAND_OUT_SHARE = 0.4  # Of arrivals after which what is there is handed out.


class AttemptRange:
    def __init__(self, attempt: "Attempt", wanted: PartitionRange) -> None:
        self.wanted = wanted
        self.number = wanted.partition
        self.machine = RangeConsumer(wanted, attempt.now_ms())
        self.keys_kept = 0
        self.line: QueryLine | None = None
        self.stream = 0
        self._attempt = attempt
        self._stretches = Stretches(wanted)
        self._rows: list[Row] = []
        self._timer_ms: int | None = None

    @property
    def is_done(self) -> bool:
        return self.machine.phase is RangePhase.DONE

    def take_out(self) -> tuple[list[Row], RingPart | None]:
        """What was taken since, and the part that it is kept in."""
        rows, self._rows = self._rows, []
        part = self._stretches.next(self.machine.place, bool(rows), self.machine.blind_to)
        if part is None:
            return rows, None
        above = self._stretches.above
        entries = [RingEntry(row.seq, row.key) for row in rows if row.seq > above]
        self.keys_kept += len(entries)
        return rows, msgspec.structs.replace(part, entries=tuple(entries))

    # -- What happens ---------------------------------------------------------------------------

    def tick(self) -> None:
        self.perform(self.machine.tick(self._attempt.now_ms()))

    def _rang(self, timer_ms: int) -> None:
        if self._timer_ms == timer_ms and not self._attempt.is_over:
            self._timer_ms = None
            self.tick()

    def failed(self, why: str) -> None:
        self.line, self.stream = None, 0
        self.perform(self.machine.failed(self._attempt.now_ms(), why))

    def pushed(self, line: QueryLine, push: ProducerPush, opaque: int) -> None:
        if line is not self.line or opaque != self.stream or not self.machine.is_streaming:
            return
        now_ms = self._attempt.now_ms()
        effects: list[RangeEffect] = []
        match push:
            case Changes(documents=documents):
                count, effects = self.machine.took([one.seq for one in documents], now_ms)
                self._rows += [self._row(document) for document in documents[:count]]
            case SnapshotMarker(first=first, last=last):
                effects = self.machine.marked(first, last, now_ms)
            case SeqAdvanced(seq=seq):
                effects = self.machine.advanced(seq, now_ms)
            case StreamEnd(reason=reason):
                effects = self.machine.ended(reason, now_ms)
        self.perform(effects)
        self._attempt.arrived()

    def _row(self, document: Document) -> Row:
        kept = document if document.kind is ChangeKind.MUTATION else None
        return Row(self.number, self.machine.place.era, document.seq, document.key, kept)

    # -- What is to be done ---------------------------------------------------------------------

    def perform(self, effects: Sequence[RangeEffect]) -> None:
        for effect in effects:
            self._do(effect)
        timer_ms = self.machine.next_timer_ms
        if timer_ms is not None and timer_ms != self._timer_ms:
            self._timer_ms = timer_ms
            delay_ms = max(1, timer_ms - self._attempt.now_ms())
            self._attempt.query.later(delay_ms * MS, self._rang, timer_ms)

    def _do(self, effect: RangeEffect) -> None:
        match effect:
            case Ask():
                self._ask(effect)
            case ReloadMap():
                self._attempt.pool.reload_map()
            case RecallParts(number):
                self._attempt.recall(self, number)
            case BeginEra(found):
                self._attempt.query.era_begun(self.number, found)
                self._stretches.begin_era(found.start)
                self._attempt.may_lose(self.line)
            case Compensate(documents, missing):
                self._compensate(documents, missing)
            case GiveUp(detail):
                self._attempt.give_up(detail)

    def _compensate(self, documents: Sequence[Document], missing: Sequence[bytes]) -> None:
        seq = self.machine.place.seq
        gone = [Document(key, b"", seq, NO_CAS, kind=ChangeKind.DELETION) for key in missing]
        rows = [self._row(document) for document in (*documents, *gone)]
        self._attempt.query.compensated(self.number, rows, seq)
        self._rows += rows

    def _ask(self, ask: Ask) -> None:
        self.stream = 0
        line = self.line = self._attempt.pool.to_master(self.number)
        if line is None or not line.is_open:
            self.failed("there is no connection yet")
            return
        opaque = line.put(ask.request, partial(self._answered, ask.number))
        if isinstance(ask.request, StreamRequest):
            self.stream = opaque

    def _answered(self, number: int, answer: ProducerAnswer) -> None:
        if not self._attempt.is_over:
            self.perform(self.machine.answered(number, answer, self._attempt.now_ms()))


class Attempt:
    def __init__(
        self, query: "Query", task: int, ranges: Sequence[PartitionRange], is_again: bool
    ) -> None:
        self.query = query
        self._is_again = is_again
        self.task = task
        self.rows: list[Row] = []  # All that was handed out.
        self.is_over = False
        self.is_unwanted = False  # Another one was quicker.
        self.pool = LinePool(query, self)
        self._appending = 0
        self._ranges = {each.partition: AttemptRange(self, each) for each in ranges}

    def start(self) -> None:
        if self._is_again:
            again = [begun_of(each.wanted) for each in self._ranges.values()]
            self.query.checkpoint.ring.append((), again)
        for each in self._ranges.values():
            each.tick()

    def now_ms(self) -> int:
        return self.query.now_ms()

    def end(self) -> None:
        """Won, failed, or not wanted any more."""
        self.is_over = True
        self.pool.close()

    def give_up(self, detail: str) -> None:
        raise Violation("liveness", f"{self.query.name} gave up a partition: {detail}")

    def explain(self) -> str:
        return "; ".join(each.machine.explain() for each in self._ranges.values())

    # -- Lines ----------------------------------------------------------------------------------

    def push_came(self, line: QueryLine, push: ProducerPush, opaque: int) -> None:
        if isinstance(push, Changes | SnapshotMarker | SeqAdvanced | StreamEnd):
            each = self._ranges.get(push.partition)
            if each is not None and not self.is_over:
                each.pushed(line, push, opaque)

    def line_lost(self, line: QueryLine, why: str) -> None:
        self.pool.forget(line)
        for each in self._ranges.values():
            if each.line is line and not self.is_over:
                each.failed(why)

    def may_lose(self, line: QueryLine | None) -> None:
        """A connection that breaks in the middle of an undo."""
        query = self.query
        if line is not None and query.rng.random() < LOSS_SHARE:
            delay_us = int(6 * query.rng.random() * query.world.shape.delay_us)
            query.later(1 + delay_us, self._lose, line)

    def _lose(self, line: QueryLine) -> None:
        if line.is_open and not self.is_over:
            self.query.world.count("query.line_lost_in_undo")
            line.close()
            line.closed("it was reset")

    # -- Keeping, and handing out -----------------------------------------------------------------

    @property
    def _is_done(self) -> bool:
        return all(each.is_done for each in self._ranges.values())

    def arrived(self) -> None:
        if not self.is_over and (self._is_done or self.query.rng.random() < HAND_OUT_SHARE):
            self._keep(list(self._ranges.values()))

    def _keep(self, ranges: Sequence[AttemptRange]) -> None:
        """Into the ring, and only then to whoever reads the rows."""
        found = [(each, *each.take_out()) for each in ranges]
        parts = [(each.number, part) for each, _, part in found if part is not None]
        rows = [row for _, some, _ in found for row in some]
        self._appending += 1
        delay_us = 1 + int(2 * self.query.rng.random() * KEEP_US)
        self.query.later(delay_us, self._kept, parts, rows)

    def _kept(self, parts: Sequence[tuple[PartitionId, RingPart]], rows: Sequence[Row]) -> None:
        self._appending -= 1
        self.query.checkpoint.ring.append(parts)
        self.query.checkpoint.table.note(rows)
        if self.is_over:
            return  # The append was on its way when the attempt died.
        self.rows += rows
        if not self.is_unwanted:
            self.query.handed_out(rows)
        if self._is_done and not self._appending:
            self._finish()

    def _finish(self) -> None:
        receipts = [
            receipt_of(
                each.wanted,
                each.machine.place,
                each.keys_kept,
                seen=each.machine.seen,
                is_again=self._is_again,
            )
            for each in self._ranges.values()
        ]
        self.query.checkpoint.ring.append((), receipts)
        self.query.attempt_done(self)

    def recall(self, each: AttemptRange, number: int) -> None:
        self._keep([each])
        self._recall_when_kept(each, number)

    def _recall_when_kept(self, each: AttemptRange, number: int) -> None:
        if self.is_over:
            return
        if self._appending:
            self.query.later(MS, self._recall_when_kept, each, number)
            return
        ring = self.query.checkpoint.ring
        parts = ring.parts(each.number, self.query.settled_before)
        each.perform(each.machine.recalled(number, parts, self.now_ms()))
