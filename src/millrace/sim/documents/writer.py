"""A client that writes, reads and deletes documents, with and without waiting until they are safe.

Some commands at a time, each sent to whoever the map it knows calls the master.  After anything but
a proper answer the map is read again.
"""

from typing import TYPE_CHECKING

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.operations import (
    Command,
    DurabilityLevel,
    OperationStatus,
    Verb,
)
from millrace.core.messages.documents import CarriedOut, CarryOut
from millrace.core.procedure import Answer, Failure, ReadBucket
from millrace.sim.driver import Driver
from millrace.sim.process import Process
from millrace.sim.schedule import MS
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.world import DocumentsWorld

GET_SHARE = 0.15
WAIT_MS = (300, 1_500)
LEVELS = tuple(level for level in DurabilityLevel if level)
AGAIN_US = 50 * MS
RUSH_US = 2 * MS
_DONE = (OperationStatus.OK, OperationStatus.NOT_FOUND, OperationStatus.EXISTS)
_ELSEWHERE = (OperationStatus.NOT_MY_PARTITION, OperationStatus.TEMPORARY_FAILURE)


class DocumentsWriter(Process):
    world: "DocumentsWorld"

    def __init__(self, world: "DocumentsWorld", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.is_stopping = False
        self.commands = 0
        self.probes: list[PartitionId] = []  # To be written to, safely, until that succeeds.
        self.said = "nothing was asked yet"
        self._record: BucketRecord | None = None
        self._driver: Driver
        self._open = 0  # Commands that are not answered yet.

    @property
    def is_idle(self) -> bool:
        return not self._open and not self.probes

    def probe(self, number: PartitionId) -> None:
        self.probes.append(number)

    def on_start(self) -> None:
        self._driver = Driver(self)
        for _ in range(self.world.shape.commands_at_once):
            self._wait()

    def _wait(self) -> None:
        shape = self.world.shape
        is_resting = self.rng.random() < 1 / shape.burst
        mean_us = shape.rest_us if is_resting else shape.think_us
        self.later(1 + int(2 * self.rng.random() * mean_us), self._begin)

    def _begin(self) -> None:
        if self.is_stopping and not self.probes:
            self.later(AGAIN_US, self._begin)
        elif self._record is None:
            self._open += 1
            self._driver.perform(ReadBucket(self.world.record.name), self._read)
        else:
            command = self._probe() if self.probes else self._draw()
            self._send(self._record, command)

    def _read(self, read: tuple[BucketRecord | None, int] | Failure) -> None:
        self._open -= 1
        if not isinstance(read, Failure):
            self._record = read[0]
        self._wait()

    # -- Commands -----------------------------------------------------------------------------

    def _draw(self) -> Command:
        self.commands += 1
        rng, shape = self.rng, self.world.shape
        key = f"k{rng.randrange(shape.keys)}".encode()
        chance = rng.random()
        if chance < GET_SHARE:
            return Command(Verb.GET, key)
        level = rng.choice(LEVELS) if rng.random() < shape.durable_share else DurabilityLevel.NONE
        timeout_ms = rng.choice(WAIT_MS)
        if chance < GET_SHARE + shape.delete_share:
            return Command(Verb.DELETE, key, level=level, timeout_ms=timeout_ms)
        value = f"{self.name}.{self.commands}".encode()
        value += b"." * rng.randrange(shape.value_bytes_max)
        expiry_s = 1 if rng.random() < shape.expiry_share else 0
        return Command(Verb.SET, key, value, expiry_s=expiry_s, level=level, timeout_ms=timeout_ms)

    def rush(self, number: PartitionId, node: NodeId, count: int) -> None:
        """So many changes of one partition in a row, to that node whoever the master is."""
        keys = [
            key
            for key in (f"k{at}".encode() for at in range(self.world.shape.keys))
            if self.world.record.partition_of(key) == number
        ]
        if not count or not keys or not self.is_up:
            return
        self.commands += 1
        key = self.rng.choice(keys)
        is_deletion = self.rng.random() < self.world.shape.delete_share / 2
        value = b"" if is_deletion else f"{self.name}.{self.commands}".encode()
        command = Command(Verb.DELETE if is_deletion else Verb.SET, key, value)
        self._open += 1
        message = CarryOut(self.world.record.id, number, command)
        self.ask(node, message, 0, lambda answer: self._rushed(command, answer))
        self.later(int(self.rng.random() * RUSH_US), self.rush, number, node, count - 1)

    def _rushed(self, command: Command, answer: Answer) -> None:
        self._open -= 1
        self.world.count("rush.answered" if isinstance(answer, CarriedOut) else "rush.unanswered")

    def _probe(self) -> Command:
        """A key of the partition that is to be written to."""
        assert self._record is not None
        at = 0
        while self._record.partition_of(key := f"probe{at}".encode()) != self.probes[0]:
            at += 1
        value = f"{self.name} was here".encode()
        level = DurabilityLevel.PERSIST_TO_MAJORITY
        return Command(Verb.SET, key, value, level=level, timeout_ms=WAIT_MS[0])

    def _send(self, record: BucketRecord, command: Command) -> None:
        number = record.partition_of(command.key)
        master = record.seat(number).active
        if master == NO_NODE:
            self._record = None
            self._wait()
            return
        self._open += 1
        timeout_ms = self.world.shape.ask_ms + (command.timeout_ms if command.level else 0)
        message = CarryOut(record.id, number, command)
        self.ask(master, message, timeout_ms, lambda answer: self._answered(command, answer))

    def _answered(self, command: Command, answer: Answer) -> None:
        self._open -= 1
        if isinstance(answer, CarriedOut):
            status = answer.outcome.status
            self.said = f"{command.verb.name} {command.key!r}: {status.name}"
            self.world.count(f"command.{status.name.lower()}")
            if status in _DONE and self.probes:
                self.probes.pop(0)
            elif status in _ELSEWHERE:
                self._record = None
        else:
            self.said = f"{command.verb.name} {command.key!r}: {answer}"
            self.world.count("command.unanswered")
            self._record = None
        self._wait()
