"""Keepers, moves, crashes and streams in any order: what was acknowledged by a majority stays, and
no failover id ever has two masters at once.

Each seed is one run of random events.  Two nodes of four may be away at a time, and procedures are
played effect by effect, so that everything happens in the middle of everything else.
"""

from random import Random
from typing import Any

import pytest

from millrace.core.documents.calmness import CALM_MS, Calm
from millrace.core.documents.document import PartitionId
from millrace.core.documents.moving import move
from millrace.core.documents.placement import Copies
from millrace.core.documents.rebalance import Move
from millrace.core.documents.tending import Tended, Tending, tend
from millrace.core.documents.watching import BucketWatch
from millrace.core.procedure import Pause, Procedure
from millrace.types import NO_NODE, NodeId
from tests.core.documents.seat_cluster import ACTIVE, DEAD, NAME, SeatCluster, nodes

RUNS = 20
SEEDS_PER_RUN = 25
STEPS = 250
NODES = nodes(1, 2, 3, 4)
P0 = PartitionId(0)
EVENTS = {
    "write": 12,
    "flush": 6,
    "stream": 24,
    "stop": 1,
    "restart": 3,
    "lose_lease": 1,
    "renew_lease": 2,
    "begin_round": 4,
    "keep": 20,
    "begin_move": 3,
    "go_on_moving": 20,
    "forget_the_mover": 0.2,
}


class Running:
    """A procedure under way: the next effect is performed when its turn comes."""

    def __init__(self, procedure: Procedure[Any]) -> None:
        self._procedure = procedure
        self._effect: Any = procedure.send(None)

    def step(self, cluster: SeatCluster) -> bool:
        """Whether there is more to do."""
        # A pause is no more than a turn of the others.
        answer = None if isinstance(self._effect, Pause) else cluster.perform(self._effect)
        try:
            self._effect = self._procedure.send(answer)
        except StopIteration as stop:
            self.result: Any = stop.value
            return False
        return True


class Keeping:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = SeatCluster([Copies(NODES[0], NODES[1:3])], node_count=4, replicas=2)
        self.cluster.tend()
        self.cluster.replicate()
        self.mover: Running | None = None
        self.keepers: list[Running] = []
        self.begun: dict[Running, Tending] = {}  # Of the first keeper.
        self.calm: Calm | None = None
        self.trace: list[str] = []

    def run(self) -> None:
        names, weights = list(EVENTS), list(EVENTS.values())
        for name in self.random.choices(names, weights, k=STEPS):
            node = self.random.choice(NODES)
            self.trace.append(f"{name} {node}")
            getattr(self, name)(node)
            self.check()
        self.end()

    # -- Clients and streams ------------------------------------------------------------------

    def write(self, node: NodeId) -> None:
        self.cluster.write(self.random.randint(1, 3))

    def flush(self, node: NodeId) -> None:
        for copy in self.cluster.nodes[node].copies.values():
            copy.persisted = len(copy.changes)

    def stream(self, node: NodeId) -> None:
        if self.cluster.nodes[node].is_up and P0 in self.cluster.nodes[node].copies:
            self.cluster.stream(node, P0, self.random.randint(1, 8))

    # -- Failures -----------------------------------------------------------------------------

    def _may_leave(self) -> bool:
        away = [node for node in self.cluster.nodes.values() if not (node.is_up and node.is_live)]
        return len(away) < 2

    def stop(self, node: NodeId) -> None:
        if self._may_leave():
            self.cluster.nodes[node].stop()

    def restart(self, node: NodeId) -> None:
        """Also of a node that nobody has missed yet."""
        is_clean = self.cluster.nodes[node].is_up and self.random.random() < 0.3
        self.cluster.nodes[node].restart(is_clean=is_clean)

    def lose_lease(self, node: NodeId) -> None:
        """It takes no more requests of clients, and its streams go on."""
        if self._may_leave():
            self.cluster.nodes[node].is_live = False

    def renew_lease(self, node: NodeId) -> None:
        held = self.cluster.nodes[node]
        if held.is_up and not held.is_live:
            held.is_live = True
            held.life += 1

    # -- Keepers ------------------------------------------------------------------------------

    def begin_round(self, node: NodeId) -> None:
        """The second of two keepers knows nothing of the first one's moves."""
        if len(self.keepers) >= 2:
            return
        is_first = not self.keepers
        if is_first and self._is_calm():
            return
        self.cluster.now_ms += self.random.choice((100, 6_000))
        known = self.cluster.watch
        if not is_first:
            self.cluster.watch = BucketWatch()
        moving = (lambda: (P0,) if self.mover else ()) if is_first else tuple
        round = self.cluster.tending(moving=moving)
        keeper = Running(tend(NAME, round))
        self.keepers.append(keeper)
        if is_first:
            self.calm = None
            self.begun[keeper] = round
        self.cluster.watch = known

    def _is_calm(self) -> bool:
        """Whatever went on since: then nobody waits for this keeper.  A copy that a late order of
        the other one made may wait until the next look."""
        cluster = self.cluster
        if self.calm is None or not self.calm.lasts(
            cluster.record, cluster.around(), cluster.now_ms
        ):
            return False
        seat = cluster.seat()
        assert cluster.serving() == [seat.active], "a calm bucket has a master"
        assert {node for node, copy in cluster.copies() if copy.is_ordered} >= set(seat.holders)
        return True

    def _ended(self, keeper: Running) -> None:
        self.keepers.remove(keeper)
        round = self.begun.pop(keeper, None)
        tended = keeper.result
        if round is not None and isinstance(tended, Tended) and tended.is_calm:
            self.calm = Calm(tended.record, round.around, round.now_ms + CALM_MS)

    def keep(self, node: NodeId) -> None:
        if self.keepers:
            keeper = self.random.choice(self.keepers)
            for _ in range(self.random.randint(1, 6)):
                if not keeper.step(self.cluster):
                    self._ended(keeper)
                    return

    def begin_move(self, node: NodeId) -> None:
        seat = self.cluster.seat()
        if self.mover is not None or seat.active == NO_NODE:
            return
        holders = self.random.sample(NODES, 3)
        new = [each for each in holders if each not in seat.holders]
        if len(new) <= 1:
            plan = Move(P0, holders[0], tuple(holders[1:]), new[0] if new else NO_NODE)
            self.mover = Running(move(NAME, plan))

    def go_on_moving(self, node: NodeId) -> None:
        for _ in range(self.random.randint(1, 8)):
            if self.mover is not None and not self.mover.step(self.cluster):
                self.mover = None

    def forget_the_mover(self, node: NodeId) -> None:
        self.mover = None

    # -- What holds ---------------------------------------------------------------------------

    def check(self) -> None:
        masters = [
            copy.log.newest
            for node, copy in self.cluster.copies()
            if copy.state is ACTIVE and copy.is_ordered and self.cluster.nodes[node].is_up
        ]
        assert len(masters) == len(set(masters)), "two masters under one id"
        seat = self.cluster.seat()
        for node in self.cluster.serving():
            copy = self.cluster.copy(node)
            if node == seat.active and copy.term == seat.term:
                lost = self.cluster.acknowledged - set(copy.changes)
                assert not lost, f"master {node} lacks {sorted(lost)}"

    def end(self) -> None:
        """When all are back one serves, and the others have what it has."""
        for node in self.cluster.nodes.values():
            if not node.is_up:
                node.restart(is_clean=False)
            node.is_live = True
        for _ in range(5):
            self.cluster.tend(after_ms=6_000)
            self.cluster.replicate()
        (master,) = self.cluster.serving()
        whole = self.cluster.copy(master).changes
        assert master == self.cluster.seat().active
        assert self.cluster.acknowledged <= set(whole)
        for holder in self.cluster.seat().holders:
            assert self.cluster.copy(holder).changes == whole
            assert self.cluster.copy(holder).state is not DEAD


@pytest.mark.parametrize("run", range(RUNS))
def test_nothing_acknowledged_is_lost(run: int) -> None:
    for seed in range(run * SEEDS_PER_RUN, (run + 1) * SEEDS_PER_RUN):
        keeping = Keeping(seed)
        try:
            keeping.run()
        except AssertionError as error:
            last = ", ".join(keeping.trace[-30:])
            raise AssertionError(f"seed {seed}: {error}; it ends with {last}") from error


def test_the_events_do_happen() -> None:
    """Failovers, moves and acknowledgements: else the runs would prove little."""
    reasons: set[object] = set()
    acknowledged = 0
    for seed in range(SEEDS_PER_RUN):
        keeping = Keeping(seed)
        keeping.run()
        acknowledged += len(keeping.cluster.acknowledged)
        reasons |= {note.fields.get("reason") for note in keeping.cluster.notes}
        reasons |= {note.event for note in keeping.cluster.notes}
    wanted = {"master_gone", "master_unclean", "promoted", "abandoned", "partition.moved"}
    assert wanted <= reasons and acknowledged > 20 * SEEDS_PER_RUN
