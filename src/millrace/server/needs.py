"""What sequencers need of their process.

A node gives them its sockets and its clock, the simulator virtual ones.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from millrace.core.effects import Ticket
from millrace.core.messages import Message
from millrace.core.procedure import Answer, Procedure
from millrace.types import NodeId

T = TypeVar("T")


class Surroundings(Protocol):
    def now_ms(self) -> int: ...

    def draw(self, count: int) -> int:
        """A number of 0..count-1."""

    def locations(self) -> Mapping[NodeId, str]: ...

    def disabled(self) -> frozenset[NodeId]:
        """Nodes that should get no new copies, by their statuses."""

    def ask(
        self, node: NodeId, message: Message, timeout_ms: int, done: Callable[[Answer], None]
    ) -> None: ...

    def tell(self, node: NodeId, message: Message) -> None: ...

    def later(self, ms: int, call: Callable[[], None]) -> None:
        """Call after so long; with 0 as soon as what is at hand is done."""

    def run(self, procedure: Procedure[T], timeout_ms: int, done: Callable[[T], None]) -> None: ...

    def answer(self, ticket: Ticket, message: Message) -> None: ...
