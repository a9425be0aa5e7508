"""A consumer of changes that is no replica: an application with a store of its own.

The decisions are those of `PartitionConsumer` with `RingBacking`.  Here they are carried out, one
after the other, in the time that an application takes for them, and a crash comes in between any
two: what was processed is not taken back, where it stands may be older, and the ring buffer names
all that may have been processed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millrace.core.documents.consumer import ConsumerPhase, PartitionConsumer
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
from millrace.core.documents.document import NO_SEQ, Document, PartitionId, Seq
from millrace.core.documents.messages import ProducerAnswer, ProducerPush, StreamRequest
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.ring_buffer import RingBuffer
from millrace.sim.documents.follower_lines import FollowerLine, FollowerLines
from millrace.sim.documents.histories import check_forward
from millrace.sim.documents.lines import LineProcess
from millrace.sim.schedule import MS

if TYPE_CHECKING:
    from millrace.sim.documents.node import DocumentsNode
    from millrace.sim.documents.world import DocumentsWorld

STATE_KEPT_SHARE = 0.5  # Of batches after which it is written down where the application stands.
WRITE_US = 300

Job = tuple[int, Callable[[], None]]  # How long it takes, and what it does.


class FollowerDisk:
    """What an application has of one partition, through all its lives."""

    def __init__(self, entries_max: int) -> None:
        self.ring = RingBuffer(entries_max)
        self.state = FollowerState()
        self.documents: dict[bytes, Document] = {}

    def replace(self, state: FollowerState, ring: RingBuffer) -> None:
        self.state = state
        self.ring = copy_of(ring)

    def process(self, documents: Sequence[Document]) -> None:
        for document in documents:
            if document.is_deleted:
                self.documents.pop(document.key, None)
            else:
                self.documents[document.key] = document


def copy_of(ring: RingBuffer) -> RingBuffer:
    copied = RingBuffer(ring.entries_max, ring.floor)
    copied.add_many(ring.entries)
    return copied


class CountedRing(RingBacking):
    def __init__(self, world: "DocumentsWorld", ring: RingBuffer, state: FollowerState) -> None:
        super().__init__(ring, state)
        self._world = world

    def keys_above(self, start: Seq) -> list[bytes] | None:
        keys = super().keys_above(start)
        if keys is None:
            self._world.count("follower.below_its_ring")
        return keys


class FollowedPartition:
    """In one life of its follower."""

    def __init__(self, owner: "Follower", number: PartitionId, disk: FollowerDisk) -> None:
        self.number = number
        self.disk = disk
        self.backing = CountedRing(owner.world, copy_of(disk.ring), disk.state)
        self.consumer = PartitionConsumer(number, self.backing, owner.now_ms())
        self.line: FollowerLine | None = None
        self.stream = 0  # The opaque of its pushes.
        self.streams = 0  # How many were requested: who waits for something may have lost it.
        self._owner = owner
        self._jobs: deque[Job] = deque()
        self._is_working = False
        self._timer_ms: int | None = None

    @property
    def is_streaming(self) -> bool:
        return self.consumer.phase is ConsumerPhase.STREAMING

    @property
    def is_whole(self) -> bool:
        """What the application has is one complete snapshot, and nothing else."""
        is_idle = not self._jobs and not self._is_working
        return is_idle and self.backing.undo is None and self.is_at_end_of_snapshot

    @property
    def is_at_end_of_snapshot(self) -> bool:
        ring = self.backing.ring
        return max(self.backing.seen, ring.last) <= self.backing.snapshot

    @property
    def is_settled(self) -> bool:
        return self.is_streaming and not self._jobs and not self._is_working

    def tick(self) -> None:
        self.perform(self.consumer.tick(self._owner.now_ms()))

    def _rang(self, timer_ms: int) -> None:
        if self._timer_ms == timer_ms:
            self._timer_ms = None
            self.tick()

    def failed(self, why: str) -> None:
        self.stream, self.line = 0, None
        self.perform(self.consumer.failed(self._owner.now_ms(), why))

    def pushed(self, line: FollowerLine, push: ProducerPush, opaque: int, size_bytes: int) -> None:
        if line is self.line and opaque == self.stream:
            self.perform(self.consumer.pushed(push, self._owner.now_ms()))
        self._do(0, partial(line.processed, size_bytes))

    def perform(self, effects: Sequence[ConsumerEffect]) -> None:
        for effect in effects:
            self._take(effect)
        timer_ms = self.consumer.next_timer_ms
        if timer_ms is not None and timer_ms != self._timer_ms:
            self._timer_ms = timer_ms
            delay_ms = max(1, timer_ms - self._owner.now_ms())
            self._owner.later(delay_ms * MS, self._rang, timer_ms)

    def _take(self, effect: ConsumerEffect) -> None:
        think_us = self._owner.think_us()
        match effect:
            case Ask():
                self._ask(effect)
            case KeepEntries(entries):
                self._do(think_us, partial(self.disk.ring.add_many, entries))
            case Deliver(documents, after):
                self._do(think_us, partial(self._process, documents))
                if self._owner.rng.random() < STATE_KEPT_SHARE:
                    self._do(WRITE_US, partial(self._keep, after))
            case Undo(documents, missing):
                self._do(think_us, partial(self._undo, documents, missing))
            case ForgetAll():
                self._owner.world.count("follower.forgot_all")
                self._do(think_us, self.disk.documents.clear)
            case Persist(number):
                self._do(WRITE_US, partial(self._persist, number))
            case ReloadMap(detail):
                self._owner.world.count(f"reload.{detail.split(':')[0].split(' ')[0]}")
                self._owner.lines.reload_map()

    def _ask(self, ask: Ask) -> None:
        self.stream = 0
        line = self._owner.lines.to_source(self.number)
        self.line = line
        if line is None or not line.is_open:
            self.failed("there is no connection yet")
            return
        opaque = line.put(ask.request, partial(self._answered, ask.number))
        if isinstance(ask.request, StreamRequest):
            self.stream = opaque
            self.streams += 1

    def _answered(self, number: int, answer: ProducerAnswer) -> None:
        self.perform(self.consumer.answered(number, answer, self._owner.now_ms()))

    # -- One after the other --------------------------------------------------------------------

    def _do(self, time_us: int, work: Callable[[], None]) -> None:
        self._jobs.append((time_us, work))
        if not self._is_working:
            self._next()

    def _next(self) -> None:
        self._is_working = bool(self._jobs)
        if self._jobs:
            time_us, work = self._jobs.popleft()
            self._owner.later(time_us, self._work, work)

    def _work(self, work: Callable[[], None]) -> None:
        work()
        self._next()

    def _process(self, documents: Sequence[Document]) -> None:
        self.disk.process(documents)
        if self.line is not None:
            self._owner.world.nemesis.saw_delivery(self._owner, self.line.node)

    def _keep(self, state: FollowerState) -> None:
        self.disk.state = state

    def _undo(self, documents: Sequence[Document], missing: Sequence[bytes]) -> None:
        self.disk.process(documents)
        for key in missing:
            self.disk.documents.pop(key, None)
        self._owner.world.count("follower.undone")

    def _persist(self, number: int) -> None:
        check_forward(self._owner.name, self.disk.state.log, self.backing.log)
        self.disk.replace(self.backing.state(), self.backing.ring)
        self.perform(self.consumer.persisted(number, self._owner.now_ms()))


class Follower(LineProcess):
    def __init__(self, world: "DocumentsWorld", number: int, name: str) -> None:
        super().__init__(world, number, name)
        entries_max = world.shape.ring_entries
        self.disks = [FollowerDisk(entries_max) for _ in range(world.shape.partitions)]
        self.followed: list[FollowedPartition] = []
        self.prefers: DocumentsNode | None = None  # Whom it asks for the map in its next life.
        self.lines: FollowerLines

    def on_start(self) -> None:
        super().on_start()
        self.lines = FollowerLines(self)
        self.followed = [
            FollowedPartition(self, PartitionId(at), disk) for at, disk in enumerate(self.disks)
        ]
        self.lines.begin()
        for followed in self.followed:
            followed.tick()

    def now_ms(self) -> int:
        return self.world.schedule.now_us // MS

    def think_us(self) -> int:
        return int(2 * self.rng.random() * self.world.shape.follower_us)

    def explain(self) -> list[str]:
        return [
            f"{self.name}: {followed.consumer.explain()}; its ring begins above "
            f"{max(NO_SEQ, followed.disk.ring.floor)}"
            for followed in self.followed
        ]
