"""A keeper of the bucket: looks at it, changes seats, tells nodes, and moves partitions.

What it does is decided by the real procedures, and so is, in some worlds, when the bucket needs no
look; that there may be two of them at once, or one that died in the middle, is what the
repository's compare-and-set and the terms must bear.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.core.documents.calmness import CALM_MS, Calm
from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.failing_over import CannotFailOver, CannotReason
from millrace.core.documents.failover_request import leave_out
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.moving import Moved, NotMoved, move
from millrace.core.documents.rebalance import Move, choose_moves
from millrace.core.documents.settling import NotChanged
from millrace.core.documents.tending import Tended, Tending, fail_over, tend
from millrace.core.documents.watching import BucketWatch, Surroundings
from millrace.core.procedure import (
    ClusterView,
    DeadlinePassed,
    Failure,
    ListNodes,
    Procedure,
    ReadBucket,
)
from millrace.sim.driver import Driver
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.types import NO_NODE

if TYPE_CHECKING:
    from millrace.sim.documents.world import DocumentsWorld

TEND_US = 6 * SECOND
MOVE_US = 10 * SECOND
_LOST = (CannotReason.ALL_LOST, CannotReason.TOO_FEW_ANSWERS)


class KeeperProcess(Process):
    world: "DocumentsWorld"

    def __init__(self, world: "DocumentsWorld", number: int, name: str) -> None:
        super().__init__(world, number, name)
        self.said = "nothing was done yet"
        self.stuck: dict[PartitionId, CannotFailOver] = {}
        self._driver: Driver
        self._watch: BucketWatch
        self._calm: Calm | None = None
        self._ids = self._draw_ids()
        self._is_looking = False
        self._moves: dict[PartitionId, Move] = {}
        self._forced: set[PartitionId] = set()

    def _draw_ids(self) -> Iterator[FailoverId]:
        while True:
            yield FailoverId(1 + self.rng.getrandbits(48))

    def on_start(self) -> None:
        shape = self.world.shape
        self._driver = Driver(self)
        self._watch = BucketWatch(shape.patience_ms, 2 * shape.lease_ms)
        self._calm = None
        self._is_looking = False
        self._moves = {}
        self._forced = set()
        self.later(int(self.rng.random() * shape.keeper_ms * MS), self._look)

    # -- Rounds -------------------------------------------------------------------------------

    def _look(self) -> None:
        self.later(self.world.shape.keeper_ms * MS, self._look)
        if not self._is_looking:
            self._is_looking = True
            self._driver.perform(ListNodes(), self._viewed)

    def _viewed(self, view: ClusterView | Failure) -> None:
        if isinstance(view, Failure):
            self._is_looking = False
            return
        name, round = self.world.record.name, self._round(view)
        if self.world.shape.knows_calm:
            self._driver.perform(ReadBucket(name), partial(self._listed, round))
        else:
            self._tend(name, round)

    def _listed(self, round: Tending, read: tuple[BucketRecord | None, int] | Failure) -> None:
        record = None if isinstance(read, Failure) else read[0]
        if record is None or self._is_calm(record, round):
            self._is_looking = False
            return
        self._calm = None
        self._tend(record.name, round)

    def _tend(self, name: str, round: Tending) -> None:
        procedure = self._until_late(tend(name, round))
        self._driver.start(procedure, partial(self._tended, round), TEND_US)

    def _is_calm(self, record: BucketRecord, round: Tending) -> bool:
        if self._calm is None or self._forced:
            return False
        is_calm = self._calm.lasts(record, round.around, round.now_ms)
        self.world.count("keeper.calm" if is_calm else "keeper.woken")
        return is_calm

    def _round(self, view: ClusterView) -> Tending:
        around = Surroundings(view.live, view.live, lives=view.lives)
        now_ms = self.world.schedule.now_us // MS
        forced = frozenset(self._forced)
        return Tending(
            self._watch, around, self._ids, now_ms, self._watch.seats, self._moving, forced
        )

    def _moving(self) -> frozenset[PartitionId]:
        return frozenset(self._moves)

    def _until_late(
        self, procedure: Procedure[Tended | NotChanged]
    ) -> Procedure[Tended | NotChanged]:
        try:
            return (yield from procedure)
        except DeadlinePassed:
            return NotChanged("it took too long")

    def _tended(self, round: Tending, tended: Tended | NotChanged) -> None:
        self._is_looking = False
        if isinstance(tended, NotChanged):
            self.said = tended.detail
            return
        self.stuck = tended.plan.stuck
        self._forced.clear()
        for number, why in self.stuck.items():
            self.said = f"partition {number}: {why.reason.value}: {why.detail}"
            self.world.count(f"keeper.{why.reason.value}")
        running = self._moves.values()
        for plan in choose_moves(tended.plan.moves, running, tended.record.seats):
            self.begin_move(plan)
        if tended.is_calm:
            self._calm = Calm(tended.record, round.around, round.now_ms + CALM_MS)

    # -- What operators want ------------------------------------------------------------------

    def force(self, number: PartitionId) -> None:
        """At any price."""
        why = self.stuck.get(number)
        if why is not None and why.reason in _LOST:
            self._forced.add(number)
            self.world.ledger.is_given_up(number)
            self.world.count("keeper.forced")

    def fail_over(self, number: PartitionId) -> None:
        """Another master, or, by chance, any but the one that it has."""
        is_named = self.rng.random() < 0.3
        without = self.world.record.seat(number).active if is_named else NO_NODE

        def viewed(view: ClusterView | Failure) -> None:
            if isinstance(view, Failure):
                return
            round = self._round(view)
            if without != NO_NODE:
                around = leave_out(round.around, without)
                round = msgspec.structs.replace(round, around=around)
                self.world.count("keeper.left_out")
            procedure = fail_over(self.world.record.name, round, lambda record: (number,))
            self._driver.start(self._until_late(procedure), lambda _: None, TEND_US)

        self._driver.perform(ListNodes(), viewed)

    def begin_move(self, plan: Move) -> None:
        if plan.partition in self._moves:
            return
        self._moves[plan.partition] = plan
        self.trace(f"begins {plan}")
        self._driver.start(
            move(self.world.record.name, plan), partial(self._move_ended, plan), MOVE_US
        )

    def _move_ended(self, plan: Move, result: Moved | NotMoved) -> None:
        self._moves.pop(plan.partition, None)
        if isinstance(result, Moved):
            self.world.count("move.done")
        else:
            self.said = f"partition {plan.partition} was not moved: {result.detail}"
            self.world.count(f"move.{result.reason.value}")

    def explain(self) -> str:
        return f"{self.name}: {self.said}; moves {list(self._moves.values())}"
