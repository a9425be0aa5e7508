"""One partition that is followed: does what its state machine asks, in order, and counts what the
application has not acknowledged yet.

  I1  A step of a rollback is written when all that was handed out before is acknowledged: what is
      written says where the application stands.
  I2  The offset moves in the order in which batches were handed out, whatever the order of the
      acknowledgements, and never past one that is not acknowledged.
  I3  What belongs to a stream that was given up is dropped; its bytes are acknowledged all the
      same.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from millrace.client.changes.batches import BatchCause, ChangeBatch, rollback_batch
from millrace.client.changes.connection import Pushed, StreamConnection
from millrace.client.changes.questions import Questions, Ways
from millrace.client.changes.states import AddEntries, Kept, ReplaceAll, StateChange
from millrace.core.documents.consumer import ConsumerPhase, PartitionConsumer, Wish
from millrace.core.documents.consumer_effects import (
    Ask,
    ConsumerEffect,
    Deliver,
    FollowerState,
    ForgetAll,
    KeepEntries,
    Persist,
    ReloadMap,
    Undo,
)
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import ProducerAnswer
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.ring_buffer import RingEntry


class Surroundings(Ways, Protocol):
    """What a followed partition needs of its consumer."""

    def reload_map(self) -> None: ...

    def submit(self, change: StateChange | None, then: Callable[[], None]) -> None:
        """Write it, and call `then` afterwards; in the order of the calls."""

    def hand_out(self, batch: ChangeBatch) -> None: ...

    def acknowledged(self, followed: "FollowedPartition") -> None: ...

    def phase_changed(self, followed: "FollowedPartition") -> None: ...


class FollowedPartition:
    def __init__(
        self,
        number: PartitionId,
        kept: Kept,
        entries_max: int,
        wish: Wish,
        surroundings: Surroundings,
    ) -> None:
        self.number = number
        self.backing = RingBacking(kept.ring(entries_max), kept.state)
        self.machine = PartitionConsumer(number, self.backing, surroundings.now_ms(), wish)
        self.state = kept.state  # Where the application stands.
        self.newest_cas = 0  # Of what it acknowledged: when that was made, in microseconds.
        self.questions = Questions(number, self, surroundings)
        self._surroundings = surroundings
        self._phase_told = self.machine.phase
        self._handed_out: deque[tuple[ChangeBatch, StreamConnection | None]] = deque()
        self._entries: tuple[RingEntry, ...] = ()  # To be kept before the next batch.
        self._persist: Persist | None = None  # It waits for acknowledgements.
        self._arriving: Pushed | None = None
        self._left_in: ChangeBatch | None = None  # The application takes no more than part of it.

    @property
    def is_streaming(self) -> bool:
        return self.machine.phase is ConsumerPhase.STREAMING

    @property
    def is_begun(self) -> bool:
        return bool(self.state.log.entries)

    @property
    def is_done(self) -> bool:
        return self.machine.phase is ConsumerPhase.DONE and not self._handed_out

    def open_batches(self) -> list[ChangeBatch]:
        """Not all before them are acknowledged."""
        return [batch for batch, _ in self._handed_out]

    # -- What happens -------------------------------------------------------------------------

    def start(self) -> None:
        self._perform(self.machine.tick(self._surroundings.now_ms()))

    def stop(self) -> None:
        self.machine.stop()
        self.questions.stop()

    def ticked(self) -> None:
        self._perform(self.machine.tick(self._surroundings.now_ms()))

    def answered(self, number: int, answer: ProducerAnswer) -> None:
        self._perform(self.machine.answered(number, answer, self._surroundings.now_ms()))

    def failed(self, detail: str) -> None:
        self._persist = None
        self._perform(self.machine.failed(self._surroundings.now_ms(), detail))

    def pushed(self, connection: StreamConnection, pushed: Pushed) -> None:
        is_wanted = self.is_streaming and self.questions.is_of_stream(connection, pushed)
        if not is_wanted:  # Keeps I3.
            connection.processed(pushed.size_bytes)
            return
        self._arriving = pushed
        self._perform(self.machine.pushed(pushed.message, self._surroundings.now_ms()))
        if self._arriving is not None:  # Nothing of it was handed out.
            self._arriving = None
            connection.processed(pushed.size_bytes)

    def shorten(self, batch: ChangeBatch, count: int) -> None:
        """Only its first documents are processed: the place is then within a snapshot, and stays
        there, whatever came behind them."""
        after = batch.after
        if after is None or count >= len(batch):
            return
        assert count > 0 and self._handed_out[0][0] is batch, "those before it come first"
        seen, running = batch.documents[count - 1].seq, max(after.running, after.seen)
        batch.after = FollowerState(after.log, self.state.snapshot, seen, running)
        self._left_in = batch

    def acknowledge(self, batch: ChangeBatch) -> None:
        batch.is_acknowledged = True
        self._settle()

    def _persisted(self, number: int) -> None:
        self._perform(self.machine.persisted(number, self._surroundings.now_ms()))

    # -- What is to be done -------------------------------------------------------------------

    def _perform(self, effects: Sequence[ConsumerEffect]) -> None:
        for effect in effects:
            self._do(effect)
        self.questions.wake_at(self.machine.next_timer_ms)
        if self._phase_told is not self.machine.phase:
            self._phase_told = self.machine.phase
            self._surroundings.phase_changed(self)

    def _do(self, effect: ConsumerEffect) -> None:
        match effect:
            case KeepEntries(entries):
                self._entries = entries
            case Deliver():
                self._deliver(effect)
            case Ask():
                self.questions.ask(effect)
            case Persist():
                self._persist = effect
                self._persist_if_settled()
            case ReloadMap():
                self._surroundings.reload_map()
            case Undo(documents, missing):
                self._hand_out(rollback_batch(self.number, documents, missing), None)
            case ForgetAll():
                self._hand_out(ChangeBatch(self.number, BatchCause.WIPE), None)

    # -- Handing out --------------------------------------------------------------------------

    def _deliver(self, deliver: Deliver) -> None:
        pushed, self._arriving = self._arriving, None
        assert pushed is not None, "changes come from a stream"
        batch = ChangeBatch(
            self.number,
            BatchCause.STREAM,
            deliver.documents,
            deliver.after,
            pushed.body,
            pushed.size_bytes,
        )
        if deliver.documents:
            self._hand_out(batch, self.questions.connection)
        else:  # The place alone moved: there is nothing to process.
            self._handed_out.append((batch, self.questions.connection))
            self.acknowledge(batch)

    def _hand_out(self, batch: ChangeBatch, connection: StreamConnection | None) -> None:
        entries, self._entries = self._entries, ()
        self._handed_out.append((batch, connection))
        kept = AddEntries(self.number, entries) if entries else None
        self._surroundings.submit(kept, partial(self._surroundings.hand_out, batch))

    def _settle(self) -> None:
        """Keeps I2."""
        handed_out = self._handed_out
        while handed_out and handed_out[0][0].is_acknowledged:
            batch, connection = handed_out.popleft()
            if connection is not None:
                connection.processed(batch.size_bytes)
            if batch.after is not None and self._left_in in (None, batch):
                self.state = batch.after
            if batch.documents:
                self.newest_cas = max(self.newest_cas, batch.documents[-1].cas)
        self._surroundings.acknowledged(self)
        self._persist_if_settled()

    def _persist_if_settled(self) -> None:
        """Keeps I1."""
        if self._persist is None or self._handed_out or self._left_in is not None:
            return
        persist, self._persist = self._persist, None
        self.state = self.backing.state()
        ring = self.backing.ring
        change = ReplaceAll(self.number, self.state, ring.entries, ring.floor)
        self._surroundings.submit(change, partial(self._persisted, persist.number))

    def explain(self) -> str:
        said = self.machine.explain()
        if self._handed_out:
            said += f"; {len(self._handed_out)} batches are not acknowledged"
        if self._persist is not None:
            said += "; a rollback waits for that"
        return said
