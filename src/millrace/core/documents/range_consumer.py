"""One partition's share of a task: find out where it stands, take back, stream to its end.

    request -> stream                                        nothing happened since the plan
    failover log -> parts -> fetch -> request -> stream      something did

It is driven like `PartitionConsumer`: what arrives goes in, what is to be done comes out.  Its host
hands rows on and keeps their keys before it does (`change_ring.py`).

  I1  What was taken is in the ring before the parts are asked for, and before anybody sees it.
  I2  The machine ends where a snapshot does, at or behind the end of its range; in the middle of
      one only where the range is cut, or the snapshot runs away from it (OVERSHOOT_MAX).
      A range is cut by changes: in a history of which little is left, seqs are no measure.
  I3  What was fetched for an undo is overtaken by the stream: `place` covers all that was taken.
  I4  Of what its master has forgotten below where it begins it says so (`blind_to`): a rollback to
      there would miss it.
  I5  Whatever goes wrong is tried again, later and later, until nothing came for PATIENCE_MS.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from millrace.core.documents.change_query import MasterState, PartitionRange, QueryPlace
from millrace.core.documents.change_ring import Begin, RingPart, begin
from millrace.core.documents.consumer import LOST_MASTER
from millrace.core.documents.consumer_effects import Ask, Question, ReloadMap
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Document, Seq
from millrace.core.documents.messages import (
    Answered,
    CloseStream,
    EndReason,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    ProducerAnswer,
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.rollback import Refuse, find_start
from millrace.core.documents.undoing import Undoing

RETRY_MS_FIRST: Final = 20
RETRY_MS_MAX: Final = 1_000
ANSWER_MS_MAX: Final = 15_000
PATIENCE_MS: Final = 90_000  # A failover takes some leases; more than that is worth a message.
OVERSHOOT_MAX: Final = 1_000_000
FLAGS: Final = StreamFlag.NEWEST_ID | StreamFlag.ACTIVE_ONLY


class RecallParts(msgspec.Struct, frozen=True):
    """Keep what was taken, read the parts of the partition, and call `recalled`."""

    number: int


class BeginEra(msgspec.Struct, frozen=True):
    """What follows is of another era."""

    begin: Begin


class Compensate(msgspec.Struct, frozen=True):
    """Hand these out in place of what was taken back; `missing` do not exist any more."""

    documents: tuple[Document, ...]
    missing: tuple[bytes, ...]


class GiveUp(msgspec.Struct, frozen=True):
    detail: str


RangeEffect = Ask | ReloadMap | RecallParts | BeginEra | Compensate | GiveUp


class RangePhase(Enum):
    WAITING = "waiting"
    ASKING = "asking"  # For the failover log.
    RECALLING = "recalling"  # The parts are being read.
    FETCHING = "fetching"
    REQUESTING = "requesting"
    STREAMING = "streaming"
    CLOSING = "closing"  # A stream of before that is open still.
    DONE = "done"
    FAILED = "failed"


OVER: Final = (RangePhase.DONE, RangePhase.FAILED)
QUIET: Final = (RangePhase.RECALLING, RangePhase.STREAMING, *OVER)


class RangeConsumer:
    def __init__(self, wanted: PartitionRange, now_ms: int) -> None:
        self.wanted = wanted
        self.number = wanted.partition
        self.place = wanted.place
        self.phase = RangePhase.WAITING
        self.began = wanted.place.seq  # Where its stream began.
        self.end = wanted.end
        self.seen = NO_SEQ  # Up to where others handed out in its era.
        self.blind_to = NO_SEQ  # Deletions up to it were forgotten before its stream began.
        self._is_cut = wanted.is_cut
        self._room = wanted.end - wanted.place.seq  # For changes, if it is cut.
        self._is_doubtful = wanted.is_doubtful
        self._is_sure = not wanted.is_doubtful and wanted.place.seq > NO_SEQ
        self._announced = wanted.place.last
        self._number = 0
        self._attempts = 0
        self._timer_ms = self._progress_ms = self._now_ms = now_ms
        self._why = "nothing was tried yet"
        self._master = MasterState(wanted.place.log, wanted.end)
        self._undoing: Undoing | None = None
        self._before = wanted.place  # The undo began.
        self._is_half = False  # An undo broke off: what it handed out is to be kept as such.

    # -- Time, and what goes wrong ------------------------------------------------------------

    @property
    def next_timer_ms(self) -> int | None:
        return None if self.phase in QUIET else self._timer_ms

    @property
    def is_streaming(self) -> bool:
        return self.phase is RangePhase.STREAMING

    def tick(self, now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if self.phase in QUIET or now_ms < self._timer_ms:
            return []
        if self.phase is not RangePhase.WAITING:
            return self._retry(f"no answer while {self.phase.value}")
        if self._is_sure:
            return self._request()
        return self._ask(RangePhase.ASKING, GetFailoverLog(self.number))

    def failed(self, now_ms: int, detail: str) -> list[RangeEffect]:
        """The connection is gone, or a question could not be sent."""
        self._now_ms = now_ms
        if self.phase in OVER or self.phase is RangePhase.WAITING:
            return []
        return self._retry(detail, has_master=False)

    def _retry(self, why: str, has_master: bool = True) -> list[RangeEffect]:
        """Keeps I5.  What was taken may be of a history that is gone by then."""
        self._is_sure, self._is_doubtful = False, self._is_doubtful or self._has_taken
        if self._undoing is not None:
            self._undoing, self._is_half = None, True
        self.phase, self._why = RangePhase.WAITING, why
        self._number += 1
        if self._now_ms - self._progress_ms > PATIENCE_MS:
            self.phase = RangePhase.FAILED
            return [GiveUp(why)]
        delay_ms = min(RETRY_MS_MAX, RETRY_MS_FIRST << min(self._attempts, 16))
        self._timer_ms = self._now_ms + delay_ms
        self._attempts += 1
        return [] if has_master else [ReloadMap(why)]

    @property
    def _has_taken(self) -> bool:
        return self.place != self.wanted.place

    # -- Answers ------------------------------------------------------------------------------

    def answered(self, number: int, answer: ProducerAnswer, now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if number != self._number or self.phase in OVER:
            return []
        match self.phase, answer:
            case RangePhase.REQUESTING, StreamAnswered(status=StreamStatus.OK):
                self.phase, self._attempts = RangePhase.STREAMING, 0
                return []
            case RangePhase.REQUESTING, StreamAnswered(status=StreamStatus.EXISTS):
                self._why = "a stream of before was open still"
                return self._ask(RangePhase.CLOSING, CloseStream(self.number))
            case RangePhase.REQUESTING, StreamAnswered(status=status, detail=detail):
                return self._refused(status, detail)
            case RangePhase.ASKING, FailoverLogGot():
                return self._compare(answer)
            case RangePhase.FETCHING, Fetched(documents):
                return self._fetched(documents)
            case RangePhase.FETCHING, Answered(StreamStatus.TOO_LARGE) if self._ask_for_fewer():
                return self._fetch()
            case RangePhase.CLOSING, Answered():
                return self._retry(self._why)
            case _, Answered(status, detail):
                return self._refused(status, detail)
        return self._retry(f"{type(answer).__name__} is no answer while {self.phase.value}")

    def _refused(self, status: StreamStatus, detail: str) -> list[RangeEffect]:
        why = f"{status.name.lower()} while {self.phase.value}: {detail}"
        return self._retry(why, has_master=status not in LOST_MASTER)

    def _compare(self, got: FailoverLogGot) -> list[RangeEffect]:
        self._master = MasterState(got.log, got.high, got.purged)
        place = self._before if self._is_half else self.place
        found = find_start(got.log, place.compared, got.high, got.purged)
        if isinstance(found, Refuse):
            return self._retry(f"{found.reason.value}: {found.detail}", has_master=False)
        if self._is_doubtful or found.seq < place.seq:
            self.phase = RangePhase.RECALLING
            self._number += 1
            return [RecallParts(self._number)]
        return self._begin(Begin(self.place.seq, self.place.era))

    def recalled(self, number: int, parts: Sequence[RingPart], now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if number != self._number:
            return []
        if self._is_half:  # Half of an undo is none.
            self.place, self._is_half = self._before, False
        found = begin(self.place, parts, self._master)
        if isinstance(found, Refuse):
            return self._retry(f"{found.reason.value}: {found.detail}", has_master=False)
        newer = (part for part in parts if not part.is_settled and part.era == found.era)
        self.seen = max((part.seen for part in newer), default=NO_SEQ)
        return self._begin(found)

    def _begin(self, found: Begin) -> list[RangeEffect]:
        # What was planned may be of a history that is gone.
        self.end = Seq(max(found.start, min(self.wanted.end, self._master.high)))
        log = self._master.log
        if not found.is_back:
            self.place = msgspec.structs.replace(self.place, log=log)
            return self._request()
        start, before = found.start, self.place
        self.end, self._is_cut = self._master.high, False
        self.began = start
        self._before = before
        since = min(before.since, start)
        self.place = QueryPlace(log, start, start, start, found.era, since)
        self._undoing = Undoing(start, found.keys)
        return [BeginEra(found), *self._fetch()]

    # -- Taking back --------------------------------------------------------------------------

    def _fetch(self) -> list[RangeEffect]:
        assert self._undoing is not None
        keys = tuple(self._undoing.next_keys())
        if not keys:
            self._undoing = None
            return self._request()
        fetch = Fetch(self.number, self._master.log.newest, keys, self._undoing.start)
        return self._ask(RangePhase.FETCHING, fetch)

    def _ask_for_fewer(self) -> bool:
        return self._undoing is not None and self._undoing.ask_for_fewer()

    def _fetched(self, documents: Sequence[Document]) -> list[RangeEffect]:
        undoing = self._undoing
        assert undoing is not None
        undoing.take(documents)
        found, missing = tuple(undoing.documents), tuple(undoing.missing)
        undoing.documents.clear()
        undoing.missing.clear()
        highest = max((document.seq for document in found), default=NO_SEQ)
        self.end = max(self.end, highest)  # Keeps I3.
        self._progress_ms = self._now_ms
        return [Compensate(found, missing), *self._fetch()]

    # -- Streaming ----------------------------------------------------------------------------

    def _request(self) -> list[RangeEffect]:
        place = self.place
        is_within = place.first < place.seq < place.last < SEQ_MAX
        first, last = (place.first, place.last) if is_within else (place.seq, place.seq)
        self._announced = place.seq
        self.blind_to = self._master.purged if place.seq < self._master.purged else NO_SEQ
        request = StreamRequest(
            self.number, place.seq, place.log.newest, first, last, self.end, FLAGS
        )
        return self._ask(RangePhase.REQUESTING, request)

    def _ask(self, phase: RangePhase, request: Question) -> list[RangeEffect]:
        self.phase = phase
        self._number += 1
        self._timer_ms = self._now_ms + ANSWER_MS_MAX
        return [Ask(self._number, request)]

    def marked(self, first: Seq, last: Seq, now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if first > self.place.seq or last < self.place.seq:
            return self._broken(f"a snapshot of ({first}, {last}] cannot follow {self.place.seq}")
        self._announced = last
        return []

    def took(self, seqs: Sequence[int], now_ms: int) -> tuple[int, list[RangeEffect]]:
        """Changes with these seqs, which rise, have arrived: how many of them to hand on."""
        self._now_ms = now_ms
        if seqs[0] <= self.place.seq or seqs[-1] > self._announced:
            place, announced = self.place.seq, self._announced
            detail = f"{seqs[0]} to {seqs[-1]} came after {place}, in a snapshot up to {announced}"
            return 0, self._broken(detail)
        count = len(seqs) if not self._is_cut else min(len(seqs), self._room)
        self._room -= count
        # What lies before the next change is none.
        at = int(seqs[count]) - 1 if count < len(seqs) else int(seqs[-1])
        return count, self._arrived(Seq(at))

    def advanced(self, seq: Seq, now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if seq <= self.place.seq:
            return []
        if seq > self._announced:
            return self._broken(f"{seq} lies beyond the snapshot, up to {self._announced}")
        return self._arrived(seq)

    def ended(self, reason: EndReason, now_ms: int) -> list[RangeEffect]:
        self._now_ms = now_ms
        if reason is EndReason.OK and self.place.seq >= self.end:
            self.phase = RangePhase.DONE
            return []
        has_master = reason is not EndReason.STATE_CHANGED
        return self._retry(f"the stream ended: {reason.name.lower()}", has_master)

    def _arrived(self, seq: Seq) -> list[RangeEffect]:
        """A snapshot that broke off is whole only where it was to end, or the one that goes on
        with it does.  Keeps I2."""
        place = self.place
        last = self._announced if place.last == SEQ_MAX else max(place.last, self._announced)
        first = seq if seq >= last else place.first
        self.place = msgspec.structs.replace(place, seq=seq, first=first, last=last)
        self._progress_ms = self._now_ms
        if (self._is_cut and self._room <= 0) or seq >= self.end + OVERSHOOT_MAX:
            self.phase = RangePhase.DONE
            self._number += 1
            return [Ask(self._number, CloseStream(self.number))]
        return []

    def _broken(self, detail: str) -> list[RangeEffect]:
        """A producer that breaks the rules is asked anew, from where this stands."""
        self._why = detail
        return self._ask(RangePhase.CLOSING, CloseStream(self.number))

    def explain(self) -> str:
        waits = (
            f"partition {self.number} is {self.phase.value} at seq {self.place.seq} of {self.end}"
        )
        return f"{waits}: {self._why}" if self._why else waits
