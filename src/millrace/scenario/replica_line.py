"""A replica's connection to its master, carried out one thing at a time.

The replica's consumer says what it wants next; nothing of that happens before somebody asks for it.
"""

from collections import deque

from millrace.core.documents.consumer import ConsumerPhase, PartitionConsumer
from millrace.core.documents.consumer_effects import Ask, ConsumerEffect, Persist, ReloadMap
from millrace.core.documents.messages import (
    Changes,
    FailoverLogGot,
    ProducerPush,
)
from millrace.core.documents.replica import ReplicaBacking
from millrace.core.documents.rollback import Place, Refuse, find_start
from millrace.scenario import document_speech as speech
from millrace.scenario.document_server import DocumentServer
from millrace.scenario.document_words import FIRST_PARTITION as PARTITION

PLENTY_BYTES = 1 << 30
ONE_CHANGE_BYTES = 1  # A producer sends at least one.


class ReplicaLine:
    def __init__(self, follower: DocumentServer, leader: DocumentServer, now_ms: int) -> None:
        self.follower = follower
        self.leader = leader
        self._now_ms = now_ms
        self._backing = ReplicaBacking(follower.partitions[PARTITION], follower)
        self._consumer = PartitionConsumer(PARTITION, self._backing, now_ms)
        name = f"replica:{follower.name}"
        # A master that hands over is dead, and sends the rest.
        self._producer = leader.open_producer(name, "active,dead", now_ms)
        self._wanted: deque[ConsumerEffect] = deque(self._consumer.tick(now_ms))

    @property
    def has_wishes(self) -> bool:
        return bool(self._wanted)

    @property
    def is_streaming(self) -> bool:
        return self._consumer.phase is ConsumerPhase.STREAMING

    def close(self) -> None:
        self._producer.close()
        self._consumer.stop()
        self._wanted.clear()

    def explain(self) -> str:
        return self._consumer.explain()

    # -- What the consumer wants --------------------------------------------------------------

    def step(self) -> list[str]:
        """Carries out the next thing."""
        effect = self._wanted.popleft()
        match effect:
            case Ask():
                return self._ask(effect)
            case Persist(number, step):
                written = self.follower.flush(PARTITION)
                self._wanted += self._consumer.persisted(number, self._now_ms)
                return [f"{written} ({step.value})"]
            case ReloadMap():
                return [f"{self.follower.name} reloads the map"]
        raise AssertionError(f"a replica does not ask for {effect}")

    def _ask(self, ask: Ask) -> list[str]:
        mine, theirs = self.follower.name, self.leader.name
        place = self._backing.place
        answer = self._producer.handle(ask.request, self._now_ms)
        assert answer is not None
        self._wanted += self._consumer.answered(ask.number, answer, self._now_ms)
        shown = [
            f"{mine} -> {theirs} {speech.show_question(ask.request)}",
            f"{theirs} -> {mine} {speech.show_answer(answer)}",
        ]
        if isinstance(answer, FailoverLogGot):
            shown.append(f"{mine} {show_comparison(answer, place)}")
        return shown

    # -- What the producer pushes -------------------------------------------------------------

    def deliver(self, count: int | None) -> list[str]:
        """So many changes, or all that there are."""
        pushed: list[ProducerPush] = []
        left = PLENTY_BYTES if count is None else count
        bytes_max = PLENTY_BYTES if count is None else ONE_CHANGE_BYTES
        while left > 0 and self.is_streaming and self._producer.wants_to_pump:
            for push in self._producer.pump(self._now_ms, bytes_max):
                if isinstance(push, speech.OfPartition):
                    pushed.append(push)
                    self._wanted += self._consumer.pushed(push, self._now_ms)
                left -= len(push.documents) if isinstance(push, Changes) else 0
        prefix = f"{self.leader.name} -> {self.follower.name}"
        return [f"{prefix} {speech.show_push(push)}" for push in speech.join_changes(pushed)]


def show_comparison(answer: FailoverLogGot, place: Place) -> str:
    found = find_start(answer.log, place, answer.high, answer.purged)
    if isinstance(found, Refuse):
        return f"refuses {found.reason.value}"
    return f"starts at {found.seq} {found.reason.value}"
