"""A rebalance as the repository holds it, and the moves that are left of it.

Somebody asks for one by writing on which nodes the bucket should be; the keeper writes down what is
wanted of each partition, and from then on compares the map with it.  What is left to do is not
written anywhere: it is the difference, so that another keeper goes on where this one stopped.

  I1  A move brings at most one new copy into a partition, and takes its final place by one change
      of the seat.
  I2  After the moves of a partition, in order, its seat is as wanted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketRecord, Seat
from millrace.core.documents.placement import Copies, place
from millrace.core.replication import Locations
from millrace.types import NO_NODE, NodeId

MOVES_PER_NODE: Final = 2  # At once: a node that copies more serves its clients less.
FAILURES_MAX: Final = 8  # Moves undone before a rebalance is given up.


class RebalanceState(StrEnum):
    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # Somebody wanted it to end where it is.


class RebalanceRecord(msgspec.Struct, frozen=True):
    """`moves` is how many there were at the beginning, `done` how many are behind it."""

    nodes: tuple[NodeId, ...]
    state: RebalanceState = RebalanceState.ASKED
    wanted: tuple[Copies, ...] = ()
    moves: int = 0
    done: int = 0
    failures: int = 0  # Moves that were undone, and tried again.
    detail: str = ""  # Why it failed, for people.
    asked_ms: int = 0
    changed_ms: int = 0
    bucket: int = 0  # Its id; 0: whichever has the name.

    @property
    def is_open(self) -> bool:
        return self.state in (RebalanceState.ASKED, RebalanceState.RUNNING)

    def is_of(self, bucket: int) -> bool:
        """One that was asked for while its bucket was deleted stays behind, under a name that may
        be given again."""
        return self.bucket in (0, bucket)


class Move(msgspec.Struct, frozen=True):
    """Bring the partition to `active` and `replicas`.  `newcomer` has no copy yet; NO_NODE: all of
    them have one.  If the master is to be another node, only that one can be the newcomer."""

    partition: PartitionId
    active: NodeId
    replicas: tuple[NodeId, ...]
    newcomer: NodeId = NO_NODE

    @property
    def holders(self) -> tuple[NodeId, ...]:
        return (self.active, *self.replicas)


def copies_of_seat(seat: Seat) -> Copies:
    return Copies(seat.active, seat.replicas)


def plan_moves(seats: Sequence[Seat], wanted: Sequence[Copies]) -> list[Move]:
    """All that is left to do, in a good order: partitions that lack copies first, then such that
    neighbours in the list burden different nodes."""
    by_partition = [
        moves_of(PartitionId(number), seat, copies)
        for number, (seat, copies) in enumerate(zip(seats, wanted, strict=True))
    ]
    urgent = [moves for moves in by_partition if moves and _lacks_copies(moves[0], seats)]
    others = [moves for moves in by_partition if moves and moves not in urgent]
    return [move for moves in (*urgent, *_alternating(others)) for move in moves]


def _lacks_copies(move: Move, seats: Sequence[Seat]) -> bool:
    return len(move.replicas) > len(seats[move.partition].replicas)


def _alternating(by_partition: Iterable[list[Move]]) -> list[list[Move]]:
    """The n-th partition of every target before the next one of any."""
    turns: Counter[NodeId] = Counter()
    turned: list[tuple[int, list[Move]]] = []
    for moves in by_partition:
        target = moves[-1].newcomer or moves[-1].active
        turned.append((turns[target], moves))
        turns[target] += 1
    return [moves for _, moves in sorted(turned, key=lambda each: each[0])]


def moves_of(partition: PartitionId, seat: Seat, wanted: Copies) -> list[Move]:
    """Keeps I1 and I2.  New replicas come first, so that copies are not fewer in between; the one
    that becomes the master last."""
    moves: list[Move] = []
    active, replicas = seat.active, list(seat.replicas)
    for newcomer in (node for node in wanted.replicas if node not in (active, *replicas)):
        goes = next((node for node in replicas if node not in wanted.holders), NO_NODE)
        replicas = [node for node in replicas if node != goes] + [newcomer]
        moves.append(Move(partition, active, tuple(replicas), newcomer))
    if (active, set(replicas)) != (wanted.active, set(wanted.replicas)):
        is_new = wanted.active not in (active, *replicas)
        newcomer = wanted.active if is_new else NO_NODE
        moves.append(Move(partition, wanted.active, wanted.replicas, newcomer))
    return moves


def choose_moves(
    moves: Iterable[Move], running: Collection[Move], seats: Sequence[Seat]
) -> list[Move]:
    """Those to begin now: one for each partition, and no node takes part in too many."""
    burden: Counter[NodeId] = Counter()
    for move in running:
        burden.update(_burdened(move, seats))
    busy = {move.partition for move in running}
    chosen: list[Move] = []
    for move in moves:
        nodes = _burdened(move, seats)
        is_light = all(burden[node] < MOVES_PER_NODE for node in nodes)
        if is_light and move.partition not in busy:
            chosen.append(move)
            burden.update(nodes)
        busy.add(move.partition)  # A partition's moves keep their order.
    return chosen


def _burdened(move: Move, seats: Sequence[Seat]) -> set[NodeId]:
    """Who gives the copy, and who gets it."""
    return {seats[move.partition].active, move.newcomer or move.active} - {NO_NODE}


# -- How one goes on --------------------------------------------------------------------------


def go_on(
    record: RebalanceRecord,
    bucket: BucketRecord,
    usable: Collection[NodeId],
    locations: Locations,
    running: Collection[Move],
    now_ms: int,
) -> tuple[RebalanceRecord, list[Move]]:
    """The record as it should be now, and the moves to begin.  `usable` nodes live, and may get
    copies."""
    if not record.is_open:
        return record, []
    if record.state is RebalanceState.ASKED:
        record = _begun(record, bucket, usable, locations, now_ms)
    trouble = _trouble(record, bucket, usable)
    if trouble:
        return _changed(record, now_ms, state=RebalanceState.FAILED, detail=trouble), []
    left = plan_moves(bucket.seats, record.wanted)
    if not left and not running:
        done = _changed(record, now_ms, state=RebalanceState.DONE, done=record.moves, detail="")
        return done, []
    behind = max(0, record.moves - len(left))
    if behind != record.done:
        record = _changed(record, now_ms, done=behind)
    # One whose master is being chosen has to wait for it.
    able = [move for move in left if bucket.seat(move.partition).active != NO_NODE]
    return record, choose_moves(able, running, bucket.seats)


def undone_once(record: RebalanceRecord, detail: str, now_ms: int) -> RebalanceRecord:
    """A move was undone; it will be tried again."""
    return _changed(record, now_ms, failures=record.failures + 1, detail=detail)


def _begun(
    record: RebalanceRecord,
    bucket: BucketRecord,
    usable: Collection[NodeId],
    locations: Locations,
    now_ms: int,
) -> RebalanceRecord:
    nodes = record.nodes or tuple(sorted(usable))
    current = [copies_of_seat(seat) for seat in bucket.seats]
    able = [node for node in nodes if node in usable]
    if not able:
        return msgspec.structs.replace(record, nodes=nodes)
    wanted = place(able, locations, bucket.attributes.replicas, current)
    moves = len(plan_moves(bucket.seats, wanted))
    state = RebalanceState.RUNNING
    return _changed(record, now_ms, nodes=nodes, state=state, wanted=wanted, moves=moves)


def _trouble(record: RebalanceRecord, bucket: BucketRecord, usable: Collection[NodeId]) -> str:
    missing = [node for node in record.nodes if node not in usable]
    if missing or not record.nodes:
        named = ", ".join(map(str, missing)) or "(none)"
        return f"nodes {named} do not live, or take no copies: repair them, or leave them out"
    if not record.is_of(bucket.id) or len(record.wanted) != len(bucket.seats):
        return "it was planned for another bucket of this name"
    if record.failures > FAILURES_MAX:
        return f"{record.failures} moves were undone, the last one because {record.detail}"
    return ""


def _changed(record: RebalanceRecord, now_ms: int, **fields: object) -> RebalanceRecord:
    return msgspec.structs.replace(record, changed_ms=now_ms, **fields)
