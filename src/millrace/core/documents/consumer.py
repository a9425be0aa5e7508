"""The consumer of one partition: finds where to begin, rolls back, follows, and begins again (R-M).

Replicas and other consumers go the same way (U2); where they differ is what they keep and how they
take a change back, which is their `Backing`:

    failover log -> find_start -> intent, durable -> undo -> end of the undo, durable -> stream

The machine is driven by what arrives: `answered`, `persisted`, `pushed`, `failed`, `tick`.  Each
returns what is to be done, in order.  Numbers tell answers to questions that were given up.

  I1  Nothing is undone before the intent is durable, and the master's failover log is not stored
      before all is undone: a crash in between finds the same start again, or an earlier one.
  I2  Nothing is streamed before the end of the undo is durable.
  I3  Whatever ends a stream or a question, it is tried again, later and later up to RETRY_MS_MAX;
      only `stop` and the end of a finite stream end a consumer.  `explain` says what it waits for.
  I4  A rollback to 0, or one that is larger than can be undone, forgets everything.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from millrace.core.documents.backing import Backing
from millrace.core.documents.consumer_effects import (
    Ask,
    ConsumerEffect,
    Persist,
    PersistStep,
    Question,
    ReloadMap,
)
from millrace.core.documents.document import (
    NO_SEQ,
    SEQ_MAX,
    Document,
    PartitionId,
    Seq,
)
from millrace.core.documents.failover_log import NO_LOG
from millrace.core.documents.message_sizes import documents_bytes
from millrace.core.documents.messages import (
    Answered,
    Changes,
    CloseStream,
    EndReason,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    ProducerAnswer,
    ProducerPush,
    Repair,
    Repaired,
    SeqAdvanced,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.rollback import Refuse, find_start
from millrace.core.documents.undoing import ANSWER_BYTES_MAX, Undoing

RETRY_MS_FIRST: Final = 50
RETRY_MS_MAX: Final = 10_000
ANSWER_MS_MAX: Final = 30_000
LOST_MASTER: Final = (
    StreamStatus.NOT_MY_PARTITION,
    StreamStatus.WRONG_FAILOVER_ID,
    StreamStatus.RANGE,
)


class Wish(msgspec.Struct, frozen=True):
    """What is wanted of the stream."""

    flags: StreamFlag = StreamFlag(0)
    end: Seq = SEQ_MAX
    is_from_now: bool = False  # If there is nothing yet.


class ConsumerPhase(Enum):
    WAITING = "waiting"  # To try again.
    ASKING = "asking"  # For the failover log.
    LOWERING = "lowering"  # The intent of an undo is being persisted.
    REPAIRING = "repairing"  # The master is offered what it does not have.
    FETCHING = "fetching"  # The master's versions of what is undone.
    FINISHING = "finishing"  # The end of the undo is being persisted.
    REQUESTING = "requesting"
    STREAMING = "streaming"
    CLOSING = "closing"  # A stream of before that is open still.
    DONE = "done"  # A finite stream has come to its end.
    STOPPED = "stopped"


EVERYTHING: Final = Wish()


class PartitionConsumer:
    def __init__(
        self, number: PartitionId, backing: Backing, now_ms: int, wish: Wish = EVERYTHING
    ) -> None:
        self.number = number
        self.backing = backing
        self.phase = ConsumerPhase.WAITING
        self.high = NO_SEQ  # The highest seq that the producer is known to have.
        self.rollbacks = 0
        self.retries = 0
        self._wish = wish
        self._why = "nothing was tried yet"
        self._start_detail = ""
        self._now_ms = now_ms
        self._timer_ms = now_ms
        self._attempts = 0
        self._streaming_since_ms = now_ms
        self._number = 0  # Of what is answered or persisted next.
        self._log = NO_LOG
        self._purged = NO_SEQ
        self._limit: Seq | None = None  # The producer said: go back to this.
        self._is_finished = True  # The end of the last undo is durable.
        self._undoing: Undoing | None = None

    # -- Time, and what goes wrong ------------------------------------------------------------

    @property
    def next_timer_ms(self) -> int | None:
        """When to call `tick`."""
        is_silent = self.phase in SILENT
        return None if is_silent else self._timer_ms

    def tick(self, now_ms: int) -> list[ConsumerEffect]:
        self._now_ms = now_ms
        if self.phase in SILENT or now_ms < self._timer_ms:
            return []
        if self.phase is ConsumerPhase.WAITING:
            return self._ask(ConsumerPhase.ASKING, GetFailoverLog(self.number))
        return self._retry(f"no answer while {self.phase.value}")

    def failed(self, now_ms: int, detail: str) -> list[ConsumerEffect]:
        """The connection is gone, or a question could not be sent."""
        self._now_ms = now_ms
        if self.phase is ConsumerPhase.WAITING:  # Its time was set by what it tried itself.
            self._why = detail
            return []
        is_over = self.phase in (ConsumerPhase.DONE, ConsumerPhase.STOPPED)
        return [] if is_over else self._retry(detail)

    def stop(self) -> list[ConsumerEffect]:
        """The host closes the connection, or the stream on it, itself."""
        self.phase = ConsumerPhase.STOPPED
        self._number += 1
        return []

    def _retry(self, why: str, has_master: bool = True) -> list[ConsumerEffect]:
        """Keeps I3."""
        streamed_ms = self._now_ms - self._streaming_since_ms
        if self.phase is ConsumerPhase.STREAMING and streamed_ms >= RETRY_MS_MAX:
            self._attempts = 0  # It went well for a while, even if nothing changed meanwhile.
        self.phase, self._why = ConsumerPhase.WAITING, why
        self._number += 1  # Whatever is on its way is not waited for.
        self._undoing = None
        delay_ms = min(RETRY_MS_MAX, RETRY_MS_FIRST << min(self._attempts, 16))
        self._timer_ms = self._now_ms + delay_ms
        self._attempts += 1
        self.retries += 1
        return [] if has_master else [ReloadMap(why)]

    # -- Answers ------------------------------------------------------------------------------

    def answered(self, number: int, answer: ProducerAnswer, now_ms: int) -> list[ConsumerEffect]:
        self._now_ms = now_ms
        if number != self._number:
            return []
        match self.phase, answer:
            case ConsumerPhase.ASKING, FailoverLogGot():
                return self._compare(answer)
            case ConsumerPhase.REPAIRING, Repaired():
                return self._fetch()
            case ConsumerPhase.FETCHING, Fetched(documents):
                return self._take_fetched(documents)
            case (
                ConsumerPhase.REPAIRING | ConsumerPhase.FETCHING,
                Answered(StreamStatus.TOO_LARGE),
            ) if self._undoing is not None and self._undoing.ask_for_fewer():
                return self._undo_next()
            case ConsumerPhase.REQUESTING, StreamAnswered():
                return self._begin(answer)
            case ConsumerPhase.CLOSING, Answered():
                return self._retry(self._why)
            case _, Answered(status, detail):
                return self._refused(status, detail)
        return self._retry(f"{type(answer).__name__} is no answer while {self.phase.value}")

    def _refused(self, status: StreamStatus, detail: str) -> list[ConsumerEffect]:
        why = f"{status.name.lower()} while {self.phase.value}: {detail}"
        return self._retry(why, has_master=status not in LOST_MASTER)

    def _compare(self, got: FailoverLogGot) -> list[ConsumerEffect]:
        self.high = got.high
        if not got.log.newest:
            return self._retry("the partition has no master yet")
        place = self.backing.place
        found = find_start(got.log, place, got.high, got.purged)
        if isinstance(found, Refuse):
            return self._retry(f"{found.reason.value}: {found.detail}", has_master=False)
        self._log, self._purged = got.log, got.purged
        self._start_detail = f"{found.reason.value}: {found.detail}"
        start = found.seq if self._limit is None else min(found.seq, self._limit)
        self._limit = None
        if self.backing.undo is not None or self.backing.undo_needed(start, got.log):
            return self._begin_undo(start)
        if self._wish.is_from_now and not place.log.entries:
            self.backing.begin_at(got.high)
        if got.log != place.log or not self._is_finished or self.backing.is_blind_to(got.purged):
            return self._finish()
        return self._request()

    def _begin(self, answer: StreamAnswered) -> list[ConsumerEffect]:
        match answer.status:
            case StreamStatus.OK:
                self.phase, self._why = ConsumerPhase.STREAMING, ""
                self._streaming_since_ms = self._now_ms
                return []
            case StreamStatus.EXISTS:
                self._why = "a stream of before was open still"
                return self._ask(ConsumerPhase.CLOSING, CloseStream(self.number))
            case StreamStatus.ROLLBACK:
                self._limit = answer.rollback
                return self._retry(f"it wants a rollback to {answer.rollback}: {answer.detail}")
        return self._refused(answer.status, answer.detail)

    def _request(self) -> list[ConsumerEffect]:
        offset = self.backing.offset
        request = StreamRequest(
            self.number,
            offset.seq,
            self._log.newest,
            offset.first,
            offset.last,
            max(self._wish.end, offset.seq),
            self._wish.flags | StreamFlag.NEWEST_ID,
        )
        return self._ask(ConsumerPhase.REQUESTING, request)

    def _ask(self, phase: ConsumerPhase, request: Question) -> list[ConsumerEffect]:
        self.phase = phase
        self._number += 1
        self._timer_ms = self._now_ms + ANSWER_MS_MAX
        return [Ask(self._number, request)]

    # -- Rolling back -------------------------------------------------------------------------

    def _begin_undo(self, start: Seq) -> list[ConsumerEffect]:
        keys = self.backing.keys_above(start) if start else None
        if keys is None:  # Keeps I4.
            start, keys = NO_SEQ, []
        self.rollbacks += 1
        self._undoing = Undoing(start, keys)
        self.backing.begin_undo(start)
        self._is_finished = False
        return self._persist(ConsumerPhase.LOWERING, PersistStep.INTENT)

    def persisted(self, number: int, now_ms: int) -> list[ConsumerEffect]:
        self._now_ms = now_ms
        if number != self._number:
            return []
        if self.phase is ConsumerPhase.LOWERING:
            return self._undo_next()
        assert self.phase is ConsumerPhase.FINISHING
        self._is_finished = True
        return self._request()

    def _undo_next(self) -> list[ConsumerEffect]:
        """Keeps I1: the intent is durable."""
        undoing = self._undoing
        assert undoing is not None
        if not undoing.start:
            return [*self.backing.wipe(), *self._finish()]
        if undoing.is_too_large:
            self._limit = NO_SEQ
            return self._retry("there is too much to undo: everything is forgotten instead")
        keys = undoing.next_keys()
        if not keys:
            documents, missing = undoing.documents, undoing.missing
            return [*self.backing.undo_documents(documents, missing), *self._finish()]
        offered = self.backing.offers(keys, undoing.start)
        while documents_bytes(offered) > ANSWER_BYTES_MAX and undoing.ask_for_fewer():
            offered = self.backing.offers(undoing.next_keys(), undoing.start)
        if not offered:
            return self._fetch()
        repair = Repair(self.number, self._log.newest, undoing.start, tuple(offered))
        return self._ask(ConsumerPhase.REPAIRING, repair)

    def _fetch(self) -> list[ConsumerEffect]:
        """Also what the master was repaired with: it has other seqs there."""
        assert self._undoing is not None
        keys = tuple(self._undoing.asked)
        fetch = Fetch(self.number, self._log.newest, keys, self._undoing.start)
        return self._ask(ConsumerPhase.FETCHING, fetch)

    def _take_fetched(self, documents: Sequence[Document]) -> list[ConsumerEffect]:
        assert self._undoing is not None
        self._undoing.take(documents)
        return self._undo_next()

    def _finish(self) -> list[ConsumerEffect]:
        self._undoing = None
        self._is_finished = False
        self.backing.finish_undo(self._log, self._purged)
        return self._persist(ConsumerPhase.FINISHING, PersistStep.FINISH)

    def _persist(self, phase: ConsumerPhase, step: PersistStep) -> list[ConsumerEffect]:
        self.phase = phase
        self._number += 1
        return [Persist(self._number, step)]

    # -- Streaming ----------------------------------------------------------------------------

    def pushed(self, message: ProducerPush, now_ms: int) -> Sequence[ConsumerEffect]:
        """What concerns this partition.  What comes of a stream that was given up is left out."""
        self._now_ms = now_ms
        if self.phase is not ConsumerPhase.STREAMING:
            return []
        try:
            return self._take(message)
        except ValueError as error:
            # A producer that breaks the rules is asked anew, from where this stands.
            self._why = str(error)
            return self._ask(ConsumerPhase.CLOSING, CloseStream(self.number))

    def _take(self, message: ProducerPush) -> Sequence[ConsumerEffect]:
        match message:
            case Changes(documents=documents):
                self._attempts = 0
                return self.backing.apply(documents)
            case SnapshotMarker(first=first, last=last):
                self.high = max(self.high, last)
                self.backing.begin_snapshot(first, last)
            case SeqAdvanced(seq=seq):
                self._attempts = 0
                return self.backing.advance(seq)
            case StreamEnd(reason=reason):
                return self._ended(reason)
        return []

    def _ended(self, reason: EndReason) -> list[ConsumerEffect]:
        is_finite = self._wish.end < SEQ_MAX or bool(self._wish.flags & FINITE)
        if reason is EndReason.OK and is_finite:
            self.phase, self._why = ConsumerPhase.DONE, "its last seq was sent"
            return []
        has_master = reason is not EndReason.STATE_CHANGED
        return self._retry(f"the stream ended: {reason.name.lower()}", has_master)

    # -- For people ---------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Seqs that it is behind what its producer is known to have."""
        return max(0, self.high - self.backing.offset.seq)

    def explain(self) -> str:
        offset = self.backing.offset
        said = [f"partition {self.number} is {self.phase.value} at seq {offset.seq}"]
        if offset.first < offset.seq < offset.last:
            said.append(f"in the snapshot ({offset.first}, {offset.last}]")
        if self.backing.undo is not None:
            said.append(f"rolling back to {self.backing.undo}")
        if self.lag:
            said.append(f"{self.lag} behind")
        if self._start_detail:
            said.append(f"began because of {self._start_detail}")
        if self._why:
            said.append(self._why)
        if self.phase is ConsumerPhase.WAITING:
            wait_ms = max(0, self._timer_ms - self._now_ms)
            said.append(f"attempt {self._attempts + 1} in {wait_ms} ms")
        return "; ".join(said)


FINITE: Final = StreamFlag.TO_LATEST | StreamFlag.TAKEOVER | StreamFlag.DISK_ONLY
SILENT: Final = (  # Nothing is waited for, or only the disk and the producer's pushes.
    ConsumerPhase.LOWERING,
    ConsumerPhase.FINISHING,
    ConsumerPhase.STREAMING,
    ConsumerPhase.DONE,
    ConsumerPhase.STOPPED,
)
