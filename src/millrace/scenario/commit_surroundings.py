"""What one life of a process sees of the others, in scenarios of commit logs: messages are lines of
the file, time is the file's, and nobody draws lots.

I1  Nothing reaches a process any more whose life is over, whatever it had ordered before.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.core.effects import Ticket
from millrace.core.messages import Message
from millrace.core.procedure import Answer, Procedure
from millrace.types import NodeId

if TYPE_CHECKING:
    from millrace.scenario.commit_cluster import CommitCluster

Done = Callable[[Answer], None]
T = TypeVar("T")


class CommitSurroundings:
    def __init__(
        self,
        cluster: "CommitCluster",
        me: NodeId,
        answer: Callable[[Ticket, Message], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = cluster
        self._me = me
        self._is_over = is_over
        self.answer = answer

    def now_ms(self) -> int:
        return self._cluster.now_ms

    def draw(self, count: int) -> int:
        return 0

    def locations(self) -> Mapping[NodeId, str]:
        return {}

    def disabled(self) -> frozenset[NodeId]:
        return frozenset()

    def ask(self, node: NodeId, message: Message, timeout_ms: int, done: Done) -> None:
        self._cluster.send(self._me, node, message, self._while_it_lives(done))

    def tell(self, node: NodeId, message: Message) -> None:
        raise AssertionError("nobody tells anything without asking")

    def later(self, ms: int, call: Callable[[], None]) -> None:
        def due() -> None:
            if not self._is_over():
                call()

        if ms:
            self._cluster.later(ms, due)
        else:
            self._cluster.soon(due)

    def run(self, procedure: Procedure[T], timeout_ms: int, done: Callable[[T], None]) -> None:
        self._cluster.run(self._me, procedure, self._while_it_lives(done))

    def _while_it_lives(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Keeps I1."""
        return lambda result: None if self._is_over() else done(result)
