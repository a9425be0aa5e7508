"""A line of somebody who asks for streams: each answer goes to whoever asked."""

from collections.abc import Callable, Iterable
from typing import Final

from millrace.core.documents.messages import (
    Answered,
    ConsumerRequest,
    Control,
    Open,
    ProducerAnswer,
    ProducerPush,
    StreamStatus,
)
from millrace.sim.documents.lines import DialledLine, LineProcess
from millrace.types import NodeId

BUFFER_BYTES: Final = (1, 500, 100_000)
NOOP_S: Final = "0.5"
OK: Final = Answered(StreamStatus.OK)

Then = Callable[[ProducerAnswer], None]


class AskingLine(DialledLine):
    """It is its own listener: which stream a push is of, only its opaque tells."""

    def __init__(self, owner: LineProcess, node: NodeId) -> None:
        self.node = node
        self.is_open = False
        self._tickets: dict[int, Then] = {}
        self._ticket = 0
        super().__init__(owner, owner.world.node(node), self)

    def greet(self, name: str, bucket: str, controls: Iterable[tuple[str, str]]) -> None:
        self.is_open = True
        self.put(Open(name, bucket), self._greeted)
        for key, value in controls:
            self.put(Control(key, value), ignore)

    def _greeted(self, answer: ProducerAnswer) -> None:
        if answer != OK:
            self.close()
            self.closed(f"the node has nothing of the bucket yet: {answer}")

    def put(self, request: ConsumerRequest, then: Then) -> int:
        """The opaque that pushes of a stream will have."""
        self._ticket += 1
        self._tickets[self._ticket] = then
        self.ask(request, self._ticket)
        return self.last_opaque

    def answered(self, ticket: int, answer: ProducerAnswer) -> None:
        self._tickets.pop(ticket)(answer)

    def pushed(self, push: ProducerPush, size_bytes: int) -> None:
        raise AssertionError("pushes come with their opaque")

    def opened(self) -> None:
        raise NotImplementedError

    def closed(self, why: str) -> None:
        raise NotImplementedError


def ignore(answer: ProducerAnswer) -> None: ...
