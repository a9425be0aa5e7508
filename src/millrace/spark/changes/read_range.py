"""One range of a task: does what its state machine asks, and holds what was taken of it.

I1  What belongs to a stream that was given up is dropped; its bytes are acknowledged all the same.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from millrace.client.changes.connection import Pushed, StreamConnection
from millrace.client.changes.questions import Questions
from millrace.codec.memcached.columns import to_arrow
from millrace.core.documents.change_query import PartitionRange, Receipt, receipt_of
from millrace.core.documents.change_ring import Begin, RingPart, Stretches
from millrace.core.documents.consumer_effects import Ask, ReloadMap
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Seq
from millrace.core.documents.messages import (
    Changes,
    ProducerAnswer,
    SeqAdvanced,
    SnapshotMarker,
    StreamEnd,
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
from millrace.errors import ProtocolError
from millrace.spark.changes.columns import Taken, documents_of
from millrace.spark.changes.ring import (
    NO_KEYS,
    KeyColumns,
    PartDocument,
    columns_of,
    document_of,
)

if TYPE_CHECKING:
    from millrace.spark.changes.reading import RangesReader

BEGINNINGS_MAX: Final = 20  # Each was through a failover or a lost connection.


class _Waiting(msgspec.Struct, frozen=True):
    """Rows that were taken, and whom to tell when they are gone."""

    taken: Taken
    connection: StreamConnection | None
    size_bytes: int


class ReadRange:
    def __init__(self, wanted: PartitionRange, reader: "RangesReader") -> None:
        self.wanted = wanted
        self.number = wanted.partition
        self.machine = RangeConsumer(wanted, reader.now_ms())
        self.rows_waiting = 0
        self.bytes_waiting = 0
        self.keys_kept = 0
        self.detail = ""  # What was taken back, and why.
        self.questions = Questions(wanted.partition, self, reader)
        self._reader = reader
        self._waiting: list[_Waiting] = []
        self._unkept: list[Taken] = []
        self._stretches = Stretches(wanted)
        self._point = NO_SEQ
        self._begun = 1

    @property
    def is_done(self) -> bool:
        return self.machine.phase is RangePhase.DONE

    @property
    def is_ready(self) -> bool:
        """Whether what waits may be handed out."""
        return self.is_done or not self._reader.is_held

    # -- What happens -------------------------------------------------------------------------

    def start(self) -> None:
        self.ticked()

    def stop(self) -> None:
        self.questions.stop()

    def ticked(self) -> None:
        self._perform(self.machine.tick(self._now_ms()))

    def answered(self, number: int, answer: ProducerAnswer) -> None:
        self._perform(self.machine.answered(number, answer, self._now_ms()))

    def failed(self, detail: str) -> None:
        self._perform(self.machine.failed(self._now_ms(), detail))

    def recalled(self, number: int, parts: Sequence[RingPart]) -> None:
        self._perform(self.machine.recalled(number, parts, self._now_ms()))

    def pushed(self, connection: StreamConnection, pushed: Pushed) -> None:
        is_mine = self.questions.is_of_stream(connection, pushed)
        if not is_mine or not self.machine.is_streaming:  # Keeps I1.
            connection.processed(pushed.size_bytes)
            return
        now_ms, machine = self._now_ms(), self.machine
        match pushed.message:
            case Changes():
                self._changed(connection, pushed)
                return
            case SnapshotMarker(first=first, last=last):
                effects = machine.marked(first, last, now_ms)
            case SeqAdvanced(seq=seq):
                effects = machine.advanced(seq, now_ms)
            case StreamEnd(reason=reason):
                effects = machine.ended(reason, now_ms)
            case _:
                effects = []
        connection.processed(pushed.size_bytes)
        self._perform(effects)

    def _changed(self, connection: StreamConnection, pushed: Pushed) -> None:
        assert pushed.body is not None
        try:
            rows: Any = to_arrow(pushed.body)
        except ProtocolError as problem:
            connection.close(f"{connection.address}: {problem}")
            return
        if not rows.num_rows:
            connection.processed(pushed.size_bytes)
            return
        count, effects = self.machine.took(rows.column("seq").to_numpy(), self._now_ms())
        if count:
            self._take(rows.slice(0, count), self._point, connection, pushed.size_bytes)
        else:
            connection.processed(pushed.size_bytes)
        self._perform(effects)

    def _now_ms(self) -> int:
        return self._reader.now_ms()

    # -- What is to be done -------------------------------------------------------------------

    def _perform(self, effects: Sequence[RangeEffect]) -> None:
        for effect in effects:
            self._do(effect)
        self.questions.wake_at(self.machine.next_timer_ms)
        self._reader.news()

    def _do(self, effect: RangeEffect) -> None:
        match effect:
            case Ask():
                self.questions.ask(effect)
            case ReloadMap():
                self._reader.reload_map()
            case RecallParts(number):
                self._recall(number)
            case BeginEra(found):
                self._begin_era(found)
            case Compensate(documents, missing):
                rows = documents_of(documents, missing, self.machine.place.seq)
                self._take(rows, SEQ_MAX, None, 0)
            case GiveUp():
                self._reader.give_up(self.machine.explain())

    def _recall(self, number: int) -> None:
        if self._reader.ring is not None:
            self._reader.recall(self, number)
            return
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing of a snapshot was handed out yet."""
        self._begun += 1
        if self._begun > BEGINNINGS_MAX:
            self._reader.give_up(self.machine.explain())
            return
        self._release(self._waiting)
        self._waiting, self._unkept = [], []
        self.rows_waiting = self.bytes_waiting = 0
        self.machine = RangeConsumer(self.wanted, self._now_ms())

    def _begin_era(self, found: Begin) -> None:
        self._point = found.point if found.is_reread else NO_SEQ
        self._stretches.begin_era(found.start)
        self.detail = f"back to seq {found.point}, {len(found.keys)} keys ({found.detail})"
        if found.is_reread:
            self.detail += (
                "; that is further than keys are kept (rollbackKeys), so the partition is read "
                "again, and keys that are not known any more stay if they do not exist now"
            )

    def receipt(self) -> Receipt:
        machine, is_again = self.machine, self._reader.is_again
        told = self.keys_kept, self.detail, machine.seen, is_again
        return receipt_of(self.wanted, machine.place, *told)

    # -- What was taken -----------------------------------------------------------------------

    def _take(
        self, rows: pa.RecordBatch, point: Seq, connection: StreamConnection | None, size: int
    ) -> None:
        taken = Taken(self.number, self.machine.place.era, point, rows)
        self._waiting.append(_Waiting(taken, connection, size))
        self._unkept.append(taken)
        self.rows_waiting += rows.num_rows
        self.bytes_waiting += rows.nbytes
        if self._reader.is_held and connection is not None:
            connection.processed(size)

    def new_parts(self) -> list[PartDocument]:
        """Of what was taken since they were asked for last."""
        unkept, self._unkept = self._unkept, []
        part = self._stretches.next(self.machine.place, bool(unkept), self.machine.blind_to)
        if part is None:
            return []
        columns = self._kept_columns(unkept) if unkept and self._reader.keeps_keys else NO_KEYS
        self.keys_kept += len(columns.ends) // 4
        return [document_of(part, columns)]

    def _kept_columns(self, unkept: Sequence[Taken]) -> KeyColumns:
        tables: list[Any] = [each.rows.select(["seq", "key"]) for each in unkept]
        joined: Any = pa.concat_batches(tables)  # type: ignore[attr-defined]
        if self._stretches.above > NO_SEQ:
            is_kept = joined.column("seq").to_numpy() > self._stretches.above
            joined = joined.slice(len(is_kept) - int(is_kept.sum()))  # Seqs rise.
        return columns_of(joined.column("seq"), joined.column("key"))

    def hand_out(self) -> list[Taken]:
        waiting, self._waiting = self._waiting, []
        self.rows_waiting = self.bytes_waiting = 0
        if not self._reader.is_held:
            self._release(waiting)
        return [each.taken for each in waiting]

    def _release(self, waiting: Sequence[_Waiting]) -> None:
        for each in waiting:
            if each.connection is not None and each.connection.is_open:
                each.connection.processed(each.size_bytes)
