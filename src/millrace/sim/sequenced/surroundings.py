"""What the sequencers of a simulated node live on: its virtual network, clock and procedures."""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, TypeVar

from millrace.core.effects import Ticket
from millrace.core.messages import Message, MetaEntry, Release, Store
from millrace.core.procedure import Answer, Failure, FailureKind, Procedure
from millrace.core.statuses import NodeStatusEntry
from millrace.meta.contract import Entry
from millrace.meta.keys import REBUILDS, STATUSES, RebuildId, RebuildReport
from millrace.sim.schedule import MS
from millrace.types import NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node

T = TypeVar("T")


class SimulatedSurroundings:
    """For one life of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._world = node.world
        self._rng = Random(f"{node.world.seed}/sequencing/{node.node}/{node.life}")

    def now_ms(self) -> int:
        return self._world.schedule.now_us // MS

    def draw(self, count: int) -> int:
        return self._rng.randrange(count)

    def locations(self) -> Mapping[NodeId, str]:
        return self._world.locations

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None:
        self._tells(message)
        if node == self._node.node:
            done = self._once(done, timeout_ms)
        self._node.ask(node, message, timeout_ms, done)

    def _once(self, done: Callable[[Answer], None], timeout_ms: int) -> Callable[[Answer], None]:
        """What a node says to itself takes no network, and its disk may be slow all the same."""
        is_heard = False

        def hear(answer: Answer) -> None:
            nonlocal is_heard
            if not is_heard:
                is_heard = True
                done(answer)

        late = Failure(FailureKind.TIMED_OUT, "the node did not answer itself in time")
        self._node.later(timeout_ms * MS, hear, late)
        return hear

    def tell(self, node: NodeId, message: Message) -> None:
        self._tells(message)
        if node == self._node.node:
            self._node.tell_myself(message)
        else:
            self._node.tell(node, message)

    def _tells(self, message: Message) -> None:
        if isinstance(message, Store | Release):
            self._world.sequenced.ledger.released(self._node.node, message)

    def later(self, ms: int, call: Callable[[], None]) -> None:
        self._node.later(ms * MS or 1, call)

    def run(self, procedure: Procedure[T], timeout_ms: int, done: Callable[[T], None]) -> None:
        self._node.driver.start(procedure, done, timeout_ms * MS)

    def answer(self, ticket: Ticket, message: Message) -> None:
        self._node.answer(*ticket, message)

    def disabled(self) -> frozenset[NodeId]:
        return self._node.board.disabled


def entries_of(listed: Iterable[Entry | MetaEntry]) -> dict[NodeId, NodeStatusEntry]:
    """The statuses of nodes, as the repository has them."""
    return {STATUSES.id_of(one.key): STATUSES.decode(_entry(one)) for one in listed}


def reports_of(listed: Iterable[Entry | MetaEntry]) -> dict[RebuildId, RebuildReport]:
    """What donors say of their work."""
    return {REBUILDS.id_of(one.key): REBUILDS.decode(_entry(one)) for one in listed}


def _entry(one: Entry | MetaEntry) -> Entry:
    return Entry(one.key, one.value, one.version, one.lease)
