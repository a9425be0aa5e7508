"""Who waits until a mutation is safe, at one partition on one node (R-H).

A wait names a failover id and a seq.  It is over when so much of that history has got to where the
condition says.  Seqs elide one another: "some seq above has arrived" says nothing of a document
that was written again in the same snapshot.  So copies count by complete snapshots, in
memory and on disk (U6).

A wait never outlives what it is about.  When the partition gets another role, or its history
another id, all who wait are told: their mutation may be lost, or safe; they have to read it.

  I1  All waits of the heaps are of the id and the role that were seen last.  New ones are compared
      when they are looked at first.
  I2  What a replica acknowledged under another failover id does not count.
  I3  At most WAITS_MAX wait; more are refused when they come.
  I4  Who is told, or has been forgotten, leaves places in the heaps: no more than those of the open
      waits and STALE_MAX.
"""

from collections.abc import Collection
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

from millrace.core.documents.document import NO_SEQ, FailoverId, PartitionState, Seq
from millrace.core.documents.partition import Partition
from millrace.types import NodeId

WAITS_MAX: Final = 16_384  # Of one partition.
WAIT_MS_DEFAULT: Final = 30_000
WAIT_MS_MAX: Final = 600_000  # Who wants to wait longer asks again.
STALE_MAX: Final = 64  # Deadlines of waits that are over, beyond those of the waits that are not.


class Durability(Enum):
    """What is waited for.  The first two are about the node that is asked, master or replica."""

    ARRIVED = "arrived"
    PERSISTED = "persisted"
    MAJORITY = "majority"  # In memory on most copies, the master's among them.
    MAJORITY_AND_PERSIST_ON_MASTER = "majority_and_persist_on_master"
    PERSIST_TO_MAJORITY = "persist_to_majority"


class WaitOutcome(Enum):
    OK = "ok"
    WRONG_ID = "wrong_id"  # Another history: read the document, and perhaps write it again.
    NOT_MY_PARTITION = "not_my_partition"  # Reload the map.
    TIMED_OUT = "timed_out"


OF_ANY_COPY: Final = frozenset({Durability.ARRIVED, Durability.PERSISTED})

Ticket = TypeVar("Ticket")


class Ack(msgspec.Struct, frozen=True):
    """What a replica has: complete snapshots up to these seqs."""

    id: FailoverId
    complete: Seq
    persisted: Seq


class Wait(msgspec.Struct, Generic[Ticket]):
    ticket: Ticket
    id: FailoverId
    seq: Seq
    condition: Durability
    deadline_ms: int


class Waits(Generic[Ticket]):
    def __init__(self) -> None:
        self._open: dict[int, Wait[Ticket]] = {}  # By number, in the order of asking.
        self._numbers: dict[Ticket, int] = {}  # Of those that are open.
        self._fresh: list[int] = []  # Not looked at yet.
        self._by_seq: dict[Durability, list[tuple[Seq, int]]] = {kind: [] for kind in Durability}
        self._deadlines: list[tuple[int, int]] = []
        self._acks: dict[NodeId, Ack] = {}
        self._number = 0
        self._id = FailoverId(0)
        self._is_master = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to look although nothing has changed; it may be earlier than needed."""
        return self._deadlines[0][0] if self._deadlines else None

    def add(
        self, ticket: Ticket, id: FailoverId, seq: Seq, condition: Durability, deadline_ms: int
    ) -> bool:
        """False: too many wait.  It is answered by a later `look`, even if it is over already.
        Tickets differ."""
        if len(self._open) >= WAITS_MAX:
            return False
        self._number += 1
        self._open[self._number] = Wait(ticket, id, seq, condition, deadline_ms)
        self._numbers[ticket] = self._number
        self._fresh.append(self._number)
        heappush(self._deadlines, (deadline_ms, self._number))
        return True

    def forget(self, ticket: Ticket) -> None:
        """Nobody wants to know any more; it may be over already."""
        number = self._numbers.pop(ticket, None)
        if number is not None:
            del self._open[number]
            self._tidy()

    def replica_acked(self, node: NodeId, id: FailoverId, complete: Seq, persisted: Seq) -> None:
        """The newest word of a replica counts, even if it is less than the one before."""
        self._acks[node] = Ack(id, complete, persisted)

    def keep_replicas(self, nodes: Collection[NodeId]) -> None:
        """Only these are copies."""
        self._acks = {node: ack for node, ack in self._acks.items() if node in nodes}

    def look(
        self, partition: Partition, copies: int, now_ms: int
    ) -> list[tuple[Ticket, WaitOutcome]]:
        """Those that are over, each once.  `copies` is how many the partition is to have."""
        ended: list[tuple[Ticket, WaitOutcome]] = []
        if not self._open:
            return ended
        self._end_outdated(partition, ended)
        self._take_fresh(partition, ended)
        for condition, heap in self._by_seq.items():
            if heap:
                reached = self._reached(condition, partition, copies)
                while heap and heap[0][0] <= reached:
                    self._end(heappop(heap)[1], WaitOutcome.OK, ended)
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            self._end(heappop(self._deadlines)[1], WaitOutcome.TIMED_OUT, ended)
        self._tidy()
        return ended

    def _end_outdated(self, partition: Partition, ended: list[tuple[Ticket, WaitOutcome]]) -> None:
        """Keeps I1."""
        is_master = partition.state is PartitionState.ACTIVE
        id = partition.log.newest
        is_gone = is_master != self._is_master or partition.state is PartitionState.DEAD
        if is_gone or id != self._id:
            outcome = WaitOutcome.NOT_MY_PARTITION if is_gone else WaitOutcome.WRONG_ID
            for heap in self._by_seq.values():
                for _, number in heap:
                    self._end(number, outcome, ended)
                heap.clear()
        self._is_master = is_master
        self._id = id

    def _take_fresh(self, partition: Partition, ended: list[tuple[Ticket, WaitOutcome]]) -> None:
        for number in self._fresh:
            wait = self._open.get(number)
            if wait is None:
                continue  # Forgotten.
            is_asked_rightly = self._is_master or wait.condition in OF_ANY_COPY
            if partition.state is PartitionState.DEAD or not is_asked_rightly:
                self._end(number, WaitOutcome.NOT_MY_PARTITION, ended)
            elif wait.id != self._id:
                self._end(number, WaitOutcome.WRONG_ID, ended)
            else:
                heappush(self._by_seq[wait.condition], (wait.seq, number))
        self._fresh.clear()

    def _reached(self, condition: Durability, partition: Partition, copies: int) -> Seq:
        """Up to which seq the condition holds."""
        acks = [ack for ack in self._acks.values() if ack.id == self._id]  # Keeps I2.
        on_disk = partition.persisted_complete
        majority = copies // 2 + 1
        match condition:
            case Durability.ARRIVED:
                return partition.complete
            case Durability.PERSISTED:
                return on_disk
            case Durability.PERSIST_TO_MAJORITY:
                return _held_by(majority, [on_disk, *(ack.persisted for ack in acks)])
            case _:
                arrived = [partition.complete, *(ack.complete for ack in acks)]
                reached = _held_by(majority, arrived)
                is_disk_wanted = condition is Durability.MAJORITY_AND_PERSIST_ON_MASTER
                return min(reached, on_disk) if is_disk_wanted else reached

    def _end(
        self, number: int, outcome: WaitOutcome, ended: list[tuple[Ticket, WaitOutcome]]
    ) -> None:
        wait = self._open.pop(number, None)
        if wait is not None:
            self._numbers.pop(wait.ticket, None)
            ended.append((wait.ticket, outcome))

    def _tidy(self) -> None:
        """Keeps I4."""
        if len(self._deadlines) <= 2 * len(self._open) + STALE_MAX:
            return
        self._deadlines = [(wait.deadline_ms, number) for number, wait in self._open.items()]
        heapify(self._deadlines)
        self._fresh = [number for number in self._fresh if number in self._open]
        for condition, heap in self._by_seq.items():
            left = [entry for entry in heap if entry[1] in self._open]
            heapify(left)
            self._by_seq[condition] = left


def _held_by(count: int, seqs: list[Seq]) -> Seq:
    """The seq that so many of them have reached."""
    return sorted(seqs, reverse=True)[count - 1] if len(seqs) >= count else NO_SEQ
