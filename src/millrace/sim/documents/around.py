"""What the partitions of a simulated node live on (`server/partitions/surroundings.py`)."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from millrace.server.partitions.surroundings import Listener
from millrace.sim.documents.lines import DialledLine
from millrace.sim.schedule import MS
from millrace.types import NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.node import DocumentsNode

EPOCH_US = 1_700_000_000_000_000  # When virtual time begins, since 1970.


class SimTimer:
    __slots__ = ("_call", "_is_over", "_node", "_number")

    def __init__(self, node: "DocumentsNode", delay_ms: int, call: Callable[[], None]) -> None:
        self._node = node
        self._call = call
        self._is_over = False
        self._number = node.later(delay_ms * MS, self._ring)

    def _ring(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._call()

    def cancel(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._node.world.schedule.cancel(self._number)


class SimAround:
    """For one life of a node."""

    def __init__(self, node: "DocumentsNode") -> None:
        self._node = node
        self._rng = Random(f"{node.world.seed}/around/{node.node}/{node.life}")

    @property
    def node(self) -> NodeId:
        return self._node.node

    @property
    def lease(self) -> int:
        return self._node.lease

    def now_us(self) -> int:
        return EPOCH_US + self._node.clock_us()

    def now_ms(self) -> int:
        return self._node.world.schedule.now_us // MS

    def later(self, delay_ms: int, call: Callable[[], None]) -> SimTimer:
        return SimTimer(self._node, delay_ms, call)

    def draw(self) -> int:
        return self._rng.getrandbits(62) + 1

    def dial(self, node: NodeId, listener: Listener) -> DialledLine:
        return DialledLine(self._node, self._node.world.node(node), listener)
