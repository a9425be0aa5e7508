"""A simulated node's own part in its rebuilding, as `server/standing.py` has it: once it has got
back what it lost, or others have it, it counts again."""

from typing import TYPE_CHECKING

from millrace.core.procedure import Answer, Ask, Procedure, ask_all
from millrace.core.statuses import NodeStatusEntry, emptied, rebuilt, refilled
from millrace.server.standing import names, seals_of
from millrace.sim.schedule import MS
from millrace.types import AuthoritativeStatus

if TYPE_CHECKING:
    from millrace.sim.node import Node

ROUND_US = 200 * MS


class Standing:
    """For one life of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def begin(self) -> None:
        node = self._node
        node.later(ROUND_US, self.begin)
        mine = node.board.mine
        if node.board.is_closed or mine is None:
            return
        if mine.is_refillable and not node.world.sequenced.unrebuilt(node.node, mine):
            node.board.is_closed = True  # So that what it holds does not change in between.
            is_named = names(node.store, node.node)
            self._seal_and_become(mine, (refilled if is_named else rebuilt)(mine, 0))
        elif mine.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY:
            self._seal_and_become(mine, emptied(mine, 0))  # Of its new disk nothing was given away.

    def _seal_and_become(self, mine: NodeStatusEntry, changed: NodeStatusEntry | None) -> None:
        def sealed(_: object) -> None:
            sequenced = self._node.world.sequenced
            if changed is not None and sequenced.status_entries().get(self._node.node) == mine:
                self._node.trace(f"is {changed.status.value}: {changed.reason}")
                self._node.world.count(f"status.{changed.reason}")
                sequenced.registrar.write_status(self._node.node, changed)
            self._node.board.update(sequenced.status_entries())
            self._node.board.is_closed = False

        self._node.driver.start(self._take_seals(), sealed)

    def _take_seals(self) -> Procedure[list[Answer]]:
        me = self._node.node
        records = [truth.record for truth in self._node.world.sequenced.ledger.logs.values()]
        seals = [Ask(me, seal) for seal in seals_of(me, records)]
        return (yield from ask_all(seals))
