"""The replicas of a bucket on this node, following their masters: one connection to each master,
and one more for each partition that is being moved here.

The decisions are those of `PartitionConsumer`; here they are carried out.  What was applied is
acknowledged twice: its bytes to flow control, and how far a replica is, in memory and on disk, to
whoever waits at the master for a majority.

  I1  A partition follows one master at a time; whatever arrives from another is not listened to.
  I2  A connection on which nothing was heard for SILENT_MS is given up, and any that is lost is
      made again while a partition wants it, after DIAL_MS_FIRST up to DIAL_MS_MAX.
  I3  While the disk is far behind, flow control stops the master: nothing is acknowledged to it.
  I4  A partition that is being moved here has a line of its own: a snapshot is sent whole before
      the next partition's, and all that it has would hold up what the others are sent.
  I5  A line that no partition needs any more is closed.
  I6  A line is to a bucket of this id (`hosting.py`, I3).  A master that does not have it is asked
      again, as I2 says: it will get it, or else this node loses its own.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from millrace.core.documents.change_stream import ChangeSource
from millrace.core.documents.consumer import ConsumerPhase, PartitionConsumer
from millrace.core.documents.consumer_effects import Ask, ConsumerEffect, Persist
from millrace.core.documents.document import PartitionId, PartitionState
from millrace.core.documents.messages import (
    Answered,
    BufferAck,
    Changes,
    CloseStream,
    ConsumerRequest,
    Control,
    Open,
    ProducerAnswer,
    ProducerPush,
    SeqAck,
    SeqAdvanced,
    SnapshotMarker,
    StreamEnd,
    StreamStatus,
)
from millrace.core.documents.partition import Partition
from millrace.core.documents.replica import ReplicaBacking, ack_of
from millrace.server.partitions.flusher import Flusher
from millrace.server.partitions.surroundings import Line, Surroundings, Timer
from millrace.types import NO_NODE, NodeId

BUFFER_BYTES: Final = 16 << 20
ACK_BYTES: Final = BUFFER_BYTES // 4
QUEUED_BYTES_MAX: Final = 64 << 20  # Of all replicas of the bucket, before the master is stopped.
NOOP_S: Final = "1"
SILENT_MS: Final = 4_000
LOOK_MS: Final = 1_000
DIAL_MS_FIRST: Final = 50
DIAL_MS_MAX: Final = 2_000
NO_TICKET: Final = 0  # Whatever the answer is, nobody waits for it.
OPEN_TICKET: Final = -1
OPENED: Final = Answered(StreamStatus.OK)

logger = logging.getLogger("millrace")


class Followed(ChangeSource, Protocol):
    """The bucket, as its followers see it."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    def replica_bytes_queued(self) -> int: ...


class Following:
    def __init__(self, bucket: Followed, flusher: Flusher, around: Surroundings) -> None:
        self._bucket = bucket
        self._flusher = flusher
        self._around = around
        self._masters: dict[NodeId, MasterLine] = {}
        self._of: dict[PartitionId, MasterLine] = {}

    def follow(self, partition: Partition, master: NodeId) -> None:
        """NO_NODE: nobody.  Keeps I1 and I5."""
        before = self._of.pop(partition.number, None)
        if before is not None:
            before.remove(partition.number)
        if master != NO_NODE:
            line = self._of[partition.number] = self._line_to(master, partition)
            line.add(partition)
        if before is not None and before.is_idle:
            before.close()
            if self._masters.get(before.master) is before:
                del self._masters[before.master]

    def _line_to(self, master: NodeId, partition: Partition) -> "MasterLine":
        """Keeps I4."""
        if partition.state is PartitionState.PENDING:
            return MasterLine(self._bucket, self._flusher, self._around, master)
        line = self._masters.get(master)
        if line is None:
            line = MasterLine(self._bucket, self._flusher, self._around, master)
            self._masters[master] = line
        return line

    def changed(self, number: PartitionId) -> None:
        """The partition has more, in memory or on disk."""
        line = self._of.get(number)
        if line is not None:
            line.acknowledge(number)

    def explain(self, number: PartitionId) -> str:
        line = self._of.get(number)
        return "it follows nobody" if line is None else line.explain(number)

    def close(self) -> None:
        for line in {*self._masters.values(), *self._of.values()}:
            line.close()
        self._masters.clear()
        self._of.clear()


class MasterLine:
    """The connection to one master, and the consumers of the partitions that follow it."""

    def __init__(
        self, bucket: Followed, flusher: Flusher, around: Surroundings, master: NodeId
    ) -> None:
        self.master = master
        self._bucket = bucket
        self._flusher = flusher
        self._around = around
        self._consumers: dict[PartitionId, PartitionConsumer] = {}
        self._partitions: dict[PartitionId, Partition] = {}
        self._acked: dict[PartitionId, SeqAck] = {}
        self._line: Line | None = None
        self._is_open = False
        self._why = "it was not dialled yet"
        self._tickets: dict[int, tuple[PartitionConsumer, int]] = {}
        self._last_ticket = 0
        self._unacknowledged_bytes = 0
        self._heard_ms = 0
        self._failures = 0
        self._dial_timer: Timer | None = None
        self._timer: Timer | None = None
        self._timer_ms = 0  # When it rings.

    @property
    def is_idle(self) -> bool:
        return not self._consumers

    def add(self, partition: Partition) -> None:
        now_ms = self._around.now_ms()
        backing = ReplicaBacking(partition, self._bucket)
        consumer = PartitionConsumer(partition.number, backing, now_ms)
        self._consumers[partition.number] = consumer
        self._partitions[partition.number] = partition
        self._acked.pop(partition.number, None)
        if self._is_open:
            self._perform(consumer, consumer.tick(now_ms))
        elif self._line is None and self._dial_timer is None:
            self._dial_timer = self._around.later(0, self._dial)

    def remove(self, number: PartitionId) -> None:
        consumer = self._consumers.pop(number, None)
        self._partitions.pop(number, None)
        if consumer is None:
            return
        consumer.stop()
        if self._is_open and self._line is not None:
            self._line.ask(CloseStream(number), NO_TICKET)

    def close(self) -> None:
        for number in list(self._consumers):
            self.remove(number)
        for timer in (self._dial_timer, self._timer):
            if timer is not None:
                timer.cancel()
        if self._line is not None:
            self._line.close()
        self._line, self._is_open = None, False

    def explain(self, number: PartitionId) -> str:
        said = f"it follows node {self.master}: {self._consumers[number].explain()}"
        return said if self._is_open else f"{said}; no connection: {self._why}"

    # -- The connection -------------------------------------------------------------------------

    def _dial(self) -> None:
        self._dial_timer = None
        if self._line is None and self._consumers:
            self._heard_ms = self._around.now_ms()
            self._line = self._around.dial(self.master, self)

    def opened(self) -> None:
        assert self._line is not None
        self._is_open = True
        self._heard_ms = self._around.now_ms()
        self._unacknowledged_bytes = 0
        self._acked.clear()
        name = f"replica:{self._around.node}"
        self._line.ask(Open(name, self._bucket.name, self._bucket.id), OPEN_TICKET)
        for key, value in (
            ("connection_buffer_size", str(BUFFER_BYTES)),
            ("enable_noop", "true"),
            ("set_noop_interval", NOOP_S),
            ("changes_in_batches", "true"),
            ("states", "active,dead"),  # A master that hands over is dead, and sends the rest.
        ):
            self._line.ask(Control(key, value), NO_TICKET)
        self._tick()

    def closed(self, why: str) -> None:
        """Keeps I2."""
        self._line, self._is_open, self._why = None, False, why
        self._tickets.clear()
        now_ms = self._around.now_ms()
        for consumer in list(self._consumers.values()):
            self._perform(consumer, consumer.failed(now_ms, why))
        if self._consumers and self._dial_timer is None:
            delay_ms = min(DIAL_MS_MAX, DIAL_MS_FIRST << min(self._failures, 8))
            self._failures += 1
            self._dial_timer = self._around.later(delay_ms, self._dial)

    def answered(self, ticket: int, answer: ProducerAnswer) -> None:
        self._heard_ms = self._around.now_ms()
        if ticket == OPEN_TICKET and answer != OPENED and self._line is not None:
            self._line.close()  # Keeps I6.
            self.closed(f"node {self.master} has nothing of the bucket: {answer}")
            return
        waiting = self._tickets.pop(ticket, None)
        if waiting is not None:
            self._failures = 0
            consumer, number = waiting
            self._perform(consumer, consumer.answered(number, answer, self._heard_ms))

    def pushed(self, push: ProducerPush, size_bytes: int) -> None:
        self._heard_ms = self._around.now_ms()
        match push:
            case Changes() | SnapshotMarker() | SeqAdvanced() | StreamEnd():
                consumer = self._consumers.get(push.partition)
                if consumer is not None:
                    self._take(consumer, push)
        self._unacknowledged_bytes += size_bytes
        self._acknowledge_bytes()

    def _take(self, consumer: PartitionConsumer, push: ProducerPush) -> None:
        effects = consumer.pushed(push, self._heard_ms)
        # Of nearly every push nothing is left to do, and to set the timer looks at all partitions.
        if effects or consumer.phase is not ConsumerPhase.STREAMING:
            self._perform(consumer, effects)

    def _acknowledge_bytes(self) -> None:
        """Keeps I3."""
        is_due = self._unacknowledged_bytes >= ACK_BYTES
        if is_due and self._bucket.replica_bytes_queued() <= QUEUED_BYTES_MAX:
            if self._line is not None:
                self._line.tell(BufferAck(self._unacknowledged_bytes))
            self._unacknowledged_bytes = 0

    def acknowledge(self, number: PartitionId) -> None:
        partition = self._partitions[number]
        ack = ack_of(partition)
        if self._is_open and self._line is not None and ack != self._acked.get(number):
            self._acked[number] = ack
            self._line.tell(ack)
        if self._unacknowledged_bytes >= ACK_BYTES:
            self._acknowledge_bytes()

    # -- Carrying out ---------------------------------------------------------------------------

    def _perform(self, consumer: PartitionConsumer, effects: Sequence[ConsumerEffect]) -> None:
        for effect in effects:
            match effect:
                case Ask(number, request):
                    self._ask(consumer, number, request)
                case Persist(number):
                    partition = self._partitions[consumer.number]
                    done = partial(self._persisted, consumer, number)
                    self._flusher.durable(self._bucket.id, partition, done)
                case _:
                    pass  # The keeper tells the node when the master is another one.
        self._set_timer()

    def _ask(self, consumer: PartitionConsumer, number: int, request: ConsumerRequest) -> None:
        if not self._is_open or self._line is None:
            consumer.failed(self._around.now_ms(), self._why)
            return
        self._last_ticket += 1
        self._tickets[self._last_ticket] = consumer, number
        self._line.ask(request, self._last_ticket)

    def _persisted(self, consumer: PartitionConsumer, number: int) -> None:
        if self._consumers.get(consumer.number) is consumer:
            self._perform(consumer, consumer.persisted(number, self._around.now_ms()))

    # -- Time -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if not self._is_open:
            return
        now_ms = self._around.now_ms()
        soonest_ms = now_ms + LOOK_MS
        for consumer in self._consumers.values():
            due_ms = consumer.next_timer_ms
            if due_ms is not None and due_ms < soonest_ms:
                soonest_ms = due_ms
        if self._timer is not None:
            if self._timer_ms <= soonest_ms:
                return
            self._timer.cancel()
        self._timer_ms = max(now_ms + 1, soonest_ms)
        self._timer = self._around.later(self._timer_ms - now_ms, self._rang)

    def _rang(self) -> None:
        self._timer = None
        if not self._is_open or self._line is None:
            return
        if self._around.now_ms() - self._heard_ms >= SILENT_MS:
            self._line.close()
            self.closed(f"node {self.master} said nothing for {SILENT_MS} ms")
            return
        self._tick()

    def _tick(self) -> None:
        now_ms = self._around.now_ms()
        for consumer in list(self._consumers.values()):
            due_ms = consumer.next_timer_ms
            if due_ms is not None and due_ms <= now_ms:
                self._perform(consumer, consumer.tick(now_ms))
        self._set_timer()
