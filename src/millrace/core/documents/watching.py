"""What the keeper does about a bucket when it looks at it: pure decisions, one look at a time.

A look compares the bucket's record with what the nodes say, and names the seats to change, the
orders to send and the copies to make.  It does not matter what was done before, or by whom: what
differs is put right, and what an earlier keeper left unfinished looks like any other difference.

| what is seen                                             | what is done                          |
|----------------------------------------------------------|---------------------------------------|
| a node has heard of a higher term                        | the term is raised above it           |
| the master's node is gone, lost the partition, unclean   | the seat is fenced                    |
| a fenced seat                                            | a master is chosen (`failing_over.py`)|
| somebody pending, and nobody moves the partition         | undone                                |
| a node is not what the seat says                         | it is told                            |
| a copy that the seat does not name                       | dropped (I2)                          |
| a replica whose node is gone for long, or too few        | a copy is made elsewhere              |
| more replicas than wanted, caught up                     | one leaves the seat                   |

  I1  The record was read before the nodes were asked, and before it was looked who lives: a node
      that a seat calls master has had its copy, and its lease, since before.
  I2  A copy is dropped, and a replica leaves, only when those that stay have all that the master
      had when this was first wanted: until then a failover may need it.
  I3  A seat gets no master while the one that an operator deposed may serve its clients still: it
      lives, and has not said that it heard.  Only force does without its word.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from millrace.core.documents.document import FailoverId, PartitionId, PartitionState, Seq
from millrace.core.documents.failing_over import (
    CannotFailOver,
    CannotReason,
    Promote,
    PromoteReason,
    decide,
)
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.rebalance import Move
from millrace.core.documents.seats import (
    copies_counted,
    fenced,
    is_chosen,
    is_doubtful,
    is_settled,
    moved,
    order_for,
    promoted,
    raised,
    undone,
    voters,
    wanted_state,
)
from millrace.core.documents.settling import Hosted, SeatChange, SeatReason
from millrace.core.messages.documents import HostedPartition, PartitionOrder
from millrace.core.replication import Locations, Scope, domain_of
from millrace.types import NO_NODE, NodeId

PATIENCE_MS: Final = 5_000  # For holders that live and do not answer a fence.
REPLACE_AFTER_MS: Final = 30_000  # A restart takes less, and needs no copying.

CopiesSeen = Mapping[NodeId, HostedPartition]
NO_COPIES: Final[CopiesSeen] = {}


class Surroundings(msgspec.Struct, frozen=True):
    """`usable` nodes live, and may get copies.  An operator wants to do without those that are
    `left_out`: they are told what was decided, and have no say in it.  `lives` are as in
    ClusterView."""

    live: frozenset[NodeId]
    usable: frozenset[NodeId]
    locations: Locations = {}
    left_out: frozenset[NodeId] = frozenset()
    lives: Mapping[NodeId, int] = {}

    @property
    def heard(self) -> frozenset[NodeId]:
        """Whose word counts."""
        return self.live - self.left_out


class Plan(msgspec.Struct):
    changes: dict[PartitionId, SeatChange] = {}
    orders: dict[NodeId, list[PartitionOrder]] = {}
    moves: list[Move] = []
    stuck: dict[PartitionId, CannotFailOver] = {}


class BucketWatch:
    """What a keeper remembers of a bucket between looks; losing it costs time alone."""

    def __init__(
        self, patience_ms: int = PATIENCE_MS, replace_after_ms: int = REPLACE_AFTER_MS
    ) -> None:
        self._patience_ms = patience_ms
        self._replace_after_ms = replace_after_ms
        self._missed_since_ms: dict[NodeId, int] = {}
        self._fenced_since_ms: dict[tuple[PartitionId, int], int] = {}  # By term.
        self._marks: dict[tuple[PartitionId, int], Seq] = {}  # The master's high, by term (I2).
        self._hosts: dict[PartitionId, frozenset[NodeId]] = {}
        self.seats: tuple[Seat, ...] = ()  # As they stood before it was looked who lives.

    def look(
        self,
        record: BucketRecord,
        around: Surroundings,
        hosted: Hosted,
        ids: Iterator[FailoverId],
        now_ms: int,
        moving: Collection[PartitionId] = (),
        forced: Collection[PartitionId] = (),
        is_rebalancing: bool = False,
    ) -> Plan:
        """`ids` are drawn, never used before.  `moving` are being moved by procedures that run; an
        operator wants a master of the `forced` at any price.  While a rebalance runs it alone says
        who has copies."""
        seen = by_partition(hosted)
        self._remember(record, around, hosted, seen, now_ms)
        plan = Plan()
        load = Counter(node for seat in record.seats for node in seat.holders)
        for at, seat in enumerate(record.seats):
            number = PartitionId(at)
            copies = seen.get(number, NO_COPIES)
            change = None if number in moving else _passed(seat, copies)
            if change is None and seat.active == NO_NODE:
                force = number in forced
                answer = self._choose(record, number, around, hosted, copies, now_ms, force)
                change = _promotion(seat, answer, ids)
                if isinstance(answer, CannotFailOver):
                    plan.stuck[number] = answer
            elif change is None:
                change = _trouble(seat, around, hosted, copies, number in moving)
            is_quiet = change is None and number not in moving and not is_rebalancing
            if is_quiet and _is_master_settled(seat, copies):
                change = self._surplus(record, number, around, copies, now_ms)
                if change is None:
                    plan.moves += self._restore(record, number, around, load, now_ms)
            if change is not None:
                plan.changes[number] = change
        plan.orders = self.orders(record, hosted, {*moving, *plan.changes})
        return plan

    def orders(
        self, record: BucketRecord, hosted: Hosted, besides: Collection[PartitionId] = ()
    ) -> dict[NodeId, list[PartitionOrder]]:
        """What to tell whom, so that all are what the seats say."""
        orders: dict[NodeId, list[PartitionOrder]] = {}
        seen = by_partition(hosted)
        for at, seat in enumerate(record.seats):
            number = PartitionId(at)
            if number in besides and seat.active != NO_NODE:
                continue  # Whoever moves it tells them; of a fenced one nobody else would.
            copies = seen.get(number, NO_COPIES)
            for node in dict.fromkeys((*seat.holders, *copies)):
                copy = copies.get(node)
                if node not in hosted or not hosted[node].is_warm:
                    continue
                if is_settled(seat, node, copy) or is_doubtful(seat, node, copy):
                    continue
                is_stray = wanted_state(seat, node) is None
                if not is_stray or self._is_safe(number, seat, copies, voters(seat)):
                    order = order_for(record, number, node, copy)
                    orders.setdefault(node, []).append(order)
        return orders

    def _remember(
        self,
        record: BucketRecord,
        around: Surroundings,
        hosted: Hosted,
        seen: Mapping[PartitionId, CopiesSeen],
        now_ms: int,
    ) -> None:
        told = {node for node, bucket in hosted.items() if bucket.is_warm}
        named = {node for seat in record.seats for node in seat.holders}
        missed, fences, marks = self._missed_since_ms, self._fenced_since_ms, self._marks
        self._missed_since_ms = {n: missed.get(n, now_ms) for n in named if n not in around.live}
        self._fenced_since_ms, self._marks = {}, {}
        for at, seat in enumerate(record.seats):
            number = PartitionId(at)
            term = (number, seat.term)
            copies = seen.get(number, NO_COPIES)
            if seat.active == NO_NODE:
                self._fenced_since_ms[term] = fences.get(term, now_ms)
            elif _is_master_settled(seat, copies):
                self._marks[term] = marks.get(term, copies[seat.active].high)
            # Those that did not answer may have a copy still; who answered has told.
            untold = self._hosts.get(number, frozenset()) - told
            self._hosts[number] = (frozenset(copies) | untold) & around.live

    def _choose(
        self,
        record: BucketRecord,
        number: PartitionId,
        around: Surroundings,
        hosted: Hosted,
        copies: CopiesSeen,
        now_ms: int,
        force: bool,
    ) -> Promote | CannotFailOver:
        seat = record.seat(number)
        if not force and _may_serve(seat, around, hosted, copies):
            return still_serves(seat.deposed)
        answered = {node for node, copy in copies.items() if copy.term == seat.term}
        silent = ((set(seat.holders) | self._hosts[number]) & around.heard) - answered
        waited_ms = now_ms - self._fenced_since_ms[(number, seat.term)]
        if waited_ms >= self._patience_ms:
            silent = set()
        heard = {node: copy for node, copy in copies.items() if node in around.heard}
        counted = copies_counted(seat, record.attributes)
        answer = decide(seat, counted, heard, silent)
        if not force or isinstance(answer, Promote) or answer.reason is CannotReason.WAITING:
            return answer
        return decide(seat, counted, heard, force=True)

    def _is_gone(self, node: NodeId, now_ms: int) -> bool:
        since_ms = self._missed_since_ms.get(node)
        return since_ms is not None and now_ms - since_ms >= self._replace_after_ms

    def _is_safe(
        self, number: PartitionId, seat: Seat, copies: CopiesSeen, staying: Collection[NodeId]
    ) -> bool:
        """Keeps I2."""
        mark = self._marks.get((number, seat.term))
        if mark is None or seat.pending != NO_NODE:
            return False
        return all(
            node in copies
            and copies[node].log.newest == seat.id
            and not copies[node].has_undo
            and copies[node].complete >= mark
            for node in staying
        )

    def _surplus(
        self,
        record: BucketRecord,
        number: PartitionId,
        around: Surroundings,
        copies: CopiesSeen,
        now_ms: int,
    ) -> SeatChange | None:
        seat = record.seat(number)
        if len(seat.replicas) <= record.attributes.replicas:
            return None

        def worth(node: NodeId) -> tuple[bool, bool, int]:
            complete = copies[node].complete if node in copies else 0
            return not self._is_gone(node, now_ms), node in around.usable, complete

        leaving = min(seat.replicas, key=worth)
        staying = tuple(node for node in seat.replicas if node != leaving)
        if not self._is_safe(number, seat, copies, (seat.active, *staying)):
            return None
        after = moved(seat, seat.active, staying)
        return SeatChange(seat, after, SeatReason.SURPLUS, f"node {leaving} is not needed")

    def _restore(
        self,
        record: BucketRecord,
        number: PartitionId,
        around: Surroundings,
        load: Counter[NodeId],
        now_ms: int,
    ) -> list[Move]:
        """A copy in place of one that is gone, or that was never made."""
        seat = record.seat(number)
        gone = [node for node in seat.replicas if self._is_gone(node, now_ms)]
        present = [node for node in seat.replicas if node not in gone]
        free = around.usable - set(seat.holders)
        if len(present) >= record.attributes.replicas or not free:
            return []
        home = domain_of(seat.active, Scope.RACK, around.locations)

        def rank(node: NodeId) -> tuple[bool, bool, int, NodeId]:
            """Nodes that the bucket is on already come first: the others may be kept from it."""
            is_home = domain_of(node, Scope.RACK, around.locations) == home
            return node not in load, is_home, load[node], node

        newcomer = min(free, key=rank)
        load[newcomer] += 1
        stay = [node for node in seat.replicas if node not in gone[:1]]
        return [Move(number, seat.active, (*stay, newcomer), newcomer)]


def by_partition(hosted: Hosted) -> dict[PartitionId, dict[NodeId, HostedPartition]]:
    seen: dict[PartitionId, dict[NodeId, HostedPartition]] = {}
    for node, bucket in hosted.items():
        if bucket.is_warm:
            for copy in bucket.partitions:
                seen.setdefault(copy.number, {})[node] = copy
    return seen


def _is_master_settled(seat: Seat, copies: CopiesSeen) -> bool:
    master = copies.get(seat.active)
    is_active = master is not None and master.state is PartitionState.ACTIVE
    return is_active and is_settled(seat, seat.active, master)


def still_serves(node: NodeId) -> CannotFailOver:
    detail = (
        f"node {node}, its master before, lives and has not said that it stopped: it is waited for "
        "until its lease is over, unless forced"
    )
    return CannotFailOver(CannotReason.STILL_SERVES, detail)


def _may_serve(seat: Seat, around: Surroundings, hosted: Hosted, copies: CopiesSeen) -> bool:
    """Whether the master that was deposed may not know it yet.  Keeps I3."""
    if seat.deposed not in around.live:
        return False
    copy = copies.get(seat.deposed)
    if copy is not None:
        return copy.term < seat.term
    return seat.deposed not in hosted  # One that lost its copy, or is loading it, serves nothing.


def _passed(seat: Seat, copies: CopiesSeen) -> SeatChange | None:
    highest = max((copy.term for copy in copies.values()), default=0)
    if highest <= seat.term:
        return None
    return SeatChange(seat, raised(seat, highest), SeatReason.TERM_PASSED)


def _promotion(
    seat: Seat, answer: Promote | CannotFailOver, ids: Iterator[FailoverId]
) -> SeatChange | None:
    if isinstance(answer, CannotFailOver):
        return None
    is_founded_anew = answer.reason is PromoteReason.STARTS_EMPTY
    after = promoted(seat, answer.node, next(ids), is_founded_anew)
    return SeatChange(seat, after, SeatReason.PROMOTED, answer.reason.value)


def _trouble(
    seat: Seat, around: Surroundings, hosted: Hosted, copies: CopiesSeen, is_moving: bool
) -> SeatChange | None:
    """What makes a seat with a master another one."""
    if seat.active not in around.live:
        return SeatChange(seat, fenced(seat), SeatReason.MASTER_GONE)
    bucket = hosted.get(seat.active)
    if bucket is None or not bucket.is_warm:
        return None  # It lives: it will answer.
    master = copies.get(seat.active)
    if is_doubtful(seat, seat.active, master):
        is_unused = master is not None and not master.log.entries and is_chosen(seat, master)
        reason = SeatReason.MASTER_LOST if master is None else SeatReason.MASTER_UNCLEAN
        return SeatChange(seat, fenced(seat, is_unused), reason)
    if is_moving:
        return None
    if seat.pending != NO_NODE or seat.is_handover:
        return SeatChange(seat, undone(seat), SeatReason.ABANDONED)
    return None
