"""What the partitions of a node need of the world around them.

`node_documents.py` gives them sockets and the event loop, `sim/documents/` virtual ones.
"""

from collections.abc import Callable
from typing import Protocol

from millrace.core.documents.messages import (
    ConsumerNotice,
    ConsumerRequest,
    ProducerAnswer,
    ProducerPush,
)
from millrace.types import NodeId


class Timer(Protocol):
    def cancel(self) -> None: ...


class Listener(Protocol):
    """Whoever follows a change stream over a connection."""

    def opened(self) -> None: ...

    def answered(self, ticket: int, answer: ProducerAnswer) -> None: ...

    def pushed(self, push: ProducerPush, size_bytes: int) -> None:
        """`size_bytes` is what flow control counts of it."""

    def closed(self, why: str) -> None:
        """It was lost, or never came to be; nothing follows."""


class Line(Protocol):
    """A consumer's connection to the producer of a node.  Keep-alives are answered by it."""

    def ask(self, request: ConsumerRequest, ticket: int) -> None: ...

    def tell(self, notice: ConsumerNotice) -> None: ...

    def close(self) -> None:
        """The listener hears nothing any more."""


class Outlet(Protocol):
    """A producer's connection to a consumer."""

    @property
    def is_writable(self) -> bool: ...

    def answer(self, request: ConsumerRequest, answer: ProducerAnswer) -> None: ...

    def push(self, pushes: list[ProducerPush]) -> None: ...

    def close(self) -> None: ...


class Surroundings(Protocol):
    @property
    def node(self) -> NodeId: ...

    @property
    def lease(self) -> int:
        """Under which the cluster certainly takes this node for alive; 0: perhaps it does not.
        Another number says that meanwhile it may have been taken for dead."""

    def now_us(self) -> int:
        """Microseconds since 1970."""

    def now_ms(self) -> int:
        """A clock that never goes back."""

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """0: after the present event."""

    def draw(self) -> int:
        """63 bits by chance, not 0."""

    def dial(self, node: NodeId, listener: Listener) -> Line:
        """Connect to a node's documents port; the listener hears whether that worked, never
        from inside the call."""
