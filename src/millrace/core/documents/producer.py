"""The producer's end of one connection: the handshake, flow control, and what is pushed (R-J, R-K).

Its host hands it what the consumer says (`handle`), tells it which partitions changed (`changed`),
and sends what `pump` returns.  It never looks for changes itself: an idle one costs nothing.

  I1  No more than `connection_buffer_size` bytes are pushed beyond what was acknowledged, and one
      message.  Answers and keep-alives are not counted: they reach whoever acknowledges nothing.
  I2  A consumer that acknowledges nothing holds a view for VIEW_MS_MAX at most.
  I3  A peer that was silent for two intervals of the keep-alive is gone: `is_lost`.
  I4  A repair brings nothing in that a client could not have stored: what is too large, or has no
      proper key, is not taken.
"""

from collections.abc import Callable
from typing import Final

from millrace.core.documents.change_stream import ChangeSource, ChangeStream
from millrace.core.documents.document import (
    NO_SEQ,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.message_sizes import documents_bytes
from millrace.core.documents.messages import (
    NAME_BYTES_MAX,
    Answered,
    Barrier,
    BufferAck,
    CloseStream,
    ConsumerNotice,
    ConsumerRequest,
    Control,
    FailoverLogGot,
    Fetch,
    Fetched,
    GetFailoverLog,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    Repair,
    Repaired,
    SeqAck,
    StreamAnswered,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.producer_settings import ProducerSettings
from millrace.core.documents.stream_cycle import StreamCycle
from millrace.core.documents.stream_rules import Accepted, high_of, judge
from millrace.core.documents.undoing import ANSWER_BYTES_MAX
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX, DOCUMENT_KEY_BYTES_MAX

FETCH_KEYS_MAX: Final = 10_000
FETCH_KEYS_AT_ONCE: Final = 64  # Values may be large: it is seen in time if they are too many.
OK: Final = Answered(StreamStatus.OK)

OnAck = Callable[[str, SeqAck], None]  # With the connection's name.


class Producer:
    def __init__(
        self,
        source: ChangeSource,
        now_ms: int,
        on_ack: OnAck | None = None,
        clock_us: Callable[[], int] | None = None,
        value_bytes_max: int = DOCUMENT_FRAME_BYTES_MAX,
    ) -> None:
        """`clock_us` tells the microseconds since 1970, for documents that repairs change, and
        `value_bytes_max` how large these may be: as the bucket's attributes say."""
        self.name = ""
        self.settings = ProducerSettings()
        self.acks: dict[PartitionId, SeqAck] = {}
        self._source = source
        self._on_ack = on_ack
        self._clock_us = clock_us
        self._value_bytes_max = value_bytes_max
        self._cycle = StreamCycle()
        self._purged_told: dict[PartitionId, Seq] = {}  # With the failover log, last.
        self._unacknowledged_bytes = 0
        self._pushed_bytes = 0
        self._heard_ms = now_ms
        self._noop_ms = now_ms  # When the last keep-alive was sent.
        self._now_ms = now_ms

    # -- What the consumer says ---------------------------------------------------------------

    def handle(
        self, message: ConsumerRequest | ConsumerNotice, now_ms: int
    ) -> ProducerAnswer | None:
        """The answer; notices have none."""
        self.heard(now_ms)
        match message:
            case BufferAck(size_bytes):
                self._unacknowledged_bytes = max(0, self._unacknowledged_bytes - size_bytes)
                return None
            case SeqAck():
                self._take_ack(message)
                return None
            case Open():
                return self._open(message)
        if not self.name:
            return Answered(StreamStatus.INVALID, "the connection was not opened")
        return self._handle_opened(message)

    def heard(self, now_ms: int) -> None:
        """The peer said something, if only that it is there."""
        self._heard_ms = self._now_ms = now_ms

    def _handle_opened(self, message: ConsumerRequest) -> ProducerAnswer:
        match message:
            case Control(key, value):
                return self._control(key, value)
            case GetFailoverLog(number):
                return self._failover_log(number)
            case StreamRequest():
                return self._request(message)
            case CloseStream(number):
                is_closed = self._cycle.remove(number)
                return OK if is_closed else Answered(StreamStatus.NOT_FOUND, "no such stream")
            case Barrier(cookie):
                return Answered(self._cycle.add_barrier(cookie))
            case Fetch():
                return self._fetch(message)
            case Repair():
                return self._repair(message)
            case Open():
                return Answered(StreamStatus.INVALID, "the connection is open")

    def _open(self, message: Open) -> Answered:
        """The name is "what:who" (R-J.2)."""
        if self.name or not 0 < len(message.name.encode()) <= NAME_BYTES_MAX:
            return Answered(StreamStatus.INVALID, f"a name has 1 to {NAME_BYTES_MAX} bytes")
        self.name = message.name
        return OK

    def _control(self, key: str, value: str) -> Answered:
        try:
            self.settings = self.settings.changed(key, value)
        except ValueError as error:
            return Answered(StreamStatus.INVALID, str(error))
        self._noop_ms = self._now_ms
        return OK

    def _failover_log(self, number: PartitionId) -> FailoverLogGot | Answered:
        partition = self._find(number, self.settings.states)
        if partition is None:
            return self._not_here(number)
        if partition.has_undo:
            detail = f"partition {number} is rolling back itself"
            return Answered(StreamStatus.TEMPORARY_FAILURE, detail)
        high, purged = high_of(partition), partition.purged
        self._purged_told[number] = purged
        return FailoverLogGot(number, partition.log, high, purged, partition.state)

    def _request(self, request: StreamRequest) -> StreamAnswered:
        number, states = request.partition, self._states_of(request.flags)
        partition = self._find(number, states)
        if partition is None:
            detail = self._not_here(number).detail
            return StreamAnswered(number, StreamStatus.NOT_MY_PARTITION, detail=detail)
        if number in self._cycle.streams:
            return StreamAnswered(number, StreamStatus.EXISTS, detail="it is streamed already")
        judged = judge(request, partition, self._purged_told.get(number))
        if isinstance(judged, StreamAnswered):
            return judged
        self._cycle.add(self._stream(partition, judged, request.flags, states))
        return StreamAnswered(number, StreamStatus.OK, partition.log)

    def _stream(
        self,
        partition: Partition,
        accepted: Accepted,
        flags: StreamFlag,
        states: frozenset[PartitionState],
    ) -> ChangeStream:
        prefix = self.settings.key_prefix
        return ChangeStream(self._source, partition, accepted, flags, states, prefix)

    def _states_of(self, flags: StreamFlag) -> frozenset[PartitionState]:
        states = self.settings.states
        if flags & StreamFlag.ACTIVE_ONLY:
            states &= {PartitionState.ACTIVE}
        if flags & StreamFlag.TAKEOVER:  # The master is told to be dead while the rest is sent.
            states |= {PartitionState.DEAD}
        return states

    def _find(self, number: PartitionId, states: frozenset[PartitionState]) -> Partition | None:
        partition = self._source.partition(number)
        return partition if partition is not None and partition.state in states else None

    def _high(self, number: PartitionId) -> Seq:
        partition = self._source.partition(number)
        return NO_SEQ if partition is None else high_of(partition)

    def _not_here(self, number: PartitionId) -> Answered:
        partition = self._source.partition(number)
        what = "not here" if partition is None else partition.state.value
        return Answered(StreamStatus.NOT_MY_PARTITION, f"partition {number} is {what}")

    # -- For an undo --------------------------------------------------------------------------

    def _fetch(self, message: Fetch) -> Fetched | Answered:
        refused = self._check_id(message.partition, message.id, self.settings.states)
        if refused is not None:
            return refused
        if self._high(message.partition) < message.start:
            detail = f"partition {message.partition} has not come to seq {message.start} here"
            return Answered(StreamStatus.TEMPORARY_FAILURE, detail)
        if len(message.keys) > FETCH_KEYS_MAX:
            return Answered(StreamStatus.INVALID, f"more than {FETCH_KEYS_MAX} keys at once")
        found: list[Document] = []
        size_bytes = 0
        for first in range(0, len(message.keys), FETCH_KEYS_AT_ONCE):
            keys = message.keys[first : first + FETCH_KEYS_AT_ONCE]
            part = self._source.newest(message.partition, keys)
            found += part
            size_bytes += documents_bytes(part)
            if size_bytes > ANSWER_BYTES_MAX and len(message.keys) > 1:
                return Answered(StreamStatus.TOO_LARGE, "too much for one answer: ask for fewer")
        return Fetched(tuple(found))

    def _repair(self, message: Repair) -> Repaired | Answered:
        number = message.partition
        refused = self._check_id(number, message.id, frozenset({PartitionState.ACTIVE}))
        partition = self._source.partition(number)
        if refused is not None or partition is None:
            return refused or self._not_here(number)

        def fetch_seq(key: bytes) -> Seq:
            found = self._source.newest(number, (key,))
            return found[0].seq if found else NO_SEQ

        now_us = self._now_ms * 1000 if self._clock_us is None else self._clock_us()
        offered = [document for document in message.documents if self._is_storable(document)]
        taken = partition.repair(message.rollback, offered, fetch_seq, now_us)
        return Repaired(tuple(taken))

    def _is_storable(self, document: Document) -> bool:
        """Keeps I4."""
        is_key = 0 < len(document.key) <= DOCUMENT_KEY_BYTES_MAX
        return is_key and len(document.value or b"") <= self._value_bytes_max

    def _check_id(
        self, number: PartitionId, id: FailoverId, states: frozenset[PartitionState]
    ) -> Answered | None:
        partition = self._find(number, states)
        if partition is None:
            return self._not_here(number)
        if partition.has_undo:
            return Answered(StreamStatus.TEMPORARY_FAILURE, "it is rolling back itself")
        if partition.log.newest != id:
            detail = f"the newest failover id is {partition.log.newest:016x}, not {id:016x}"
            return Answered(StreamStatus.WRONG_FAILOVER_ID, detail)
        return None

    def _take_ack(self, ack: SeqAck) -> None:
        self.acks[ack.partition] = ack
        if self._on_ack is not None:
            self._on_ack(self.name, ack)

    # -- What the producer pushes -------------------------------------------------------------

    def changed(self, number: PartitionId) -> None:
        """Something about the partition changed (`Partition.on_change`)."""
        self._cycle.changed(number)

    @property
    def wants_to_pump(self) -> bool:
        return self._cycle.has_work and self._room_bytes > 0

    @property
    def is_lost(self) -> bool:
        """As of the last `pump`.  Keeps I3: the connection is to be closed."""
        interval_ms = self.settings.noop_interval_ms
        return self.settings.has_noop and self._now_ms - self._heard_ms >= 2 * interval_ms

    @property
    def next_timer_ms(self) -> int | None:
        """When `pump` is to be called though nothing happened."""
        timers = [self._cycle.view_until_ms]
        if self.settings.has_noop:
            timers.append(self._noop_ms + self.settings.noop_interval_ms)
        return min((timer for timer in timers if timer is not None), default=None)

    def pump(self, now_ms: int, bytes_max: int) -> list[ProducerPush]:
        self._now_ms = now_ms
        self._cycle.close_old_views(now_ms)  # Keeps I2.
        pushes: list[ProducerPush] = []
        room_bytes = min(bytes_max, self._room_bytes)
        if room_bytes > 0:
            pushes = self._cycle.pump(now_ms, room_bytes)
            size_bytes = self._cycle.pushed_bytes - self._pushed_bytes
            self._pushed_bytes += size_bytes
            if self.settings.buffer_bytes:
                self._unacknowledged_bytes += size_bytes
        if self.settings.has_noop and now_ms >= self._noop_ms + self.settings.noop_interval_ms:
            self._noop_ms = now_ms
            pushes.append(Noop())
        return pushes

    @property
    def _room_bytes(self) -> int:
        """Keeps I1."""
        if not self.settings.buffer_bytes:
            return 1 << 62
        return self.settings.buffer_bytes - self._unacknowledged_bytes

    def close(self) -> None:
        self._cycle.close()

    def stats(self) -> dict[str, int]:
        """By the names of R-R: what, the partition or "all", and the connection's own name."""
        cycle = self._cycle
        found = {
            "streams": len(cycle.streams),
            "cycles": cycle.cycles,
            "barriers": len(cycle.barriers),
            "pushed_bytes": self._pushed_bytes,
            "unacknowledged_bytes": self._unacknowledged_bytes,
        }
        named = {f"{what}:all:{self.name}": value for what, value in found.items()}
        for number, stream in cycle.streams.items():
            suffix = f"{number}:{self.name}"
            named[f"sent_seq:{suffix}"] = stream.sent
            named[f"documents_sent:{suffix}"] = stream.documents_sent
            named[f"lag:{suffix}"] = max(0, high_of(stream.partition) - stream.sent)
        for number, ack in self.acks.items():
            named[f"complete_seq:{number}:{self.name}"] = ack.complete
            named[f"persisted_seq:{number}:{self.name}"] = ack.persisted
        return named
