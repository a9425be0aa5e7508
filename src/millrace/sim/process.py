"""A simulated process: it lives, dies, sleeps, has a clock, and asks others.

What runs in one life never reaches the next: timers and arrivals carry the life they belong to.
A paused process does nothing; what reached it meanwhile happens when it goes on, in order.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from millrace.core.messages import Message
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.sim.network import Connection
from millrace.sim.schedule import MS
from millrace.types import NodeId

if TYPE_CHECKING:
    from millrace.sim.stage import Stage

Answered = Callable[[Answer], None]


class _Pending:
    __slots__ = ("answered", "connection", "timer")

    def __init__(self, answered: Answered, timer: int) -> None:
        self.answered = answered
        self.timer = timer
        self.connection = 0  # 0: not sent yet.


class Process:
    def __init__(self, world: "Stage", number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.name = name
        self.life = 0
        self.is_up = False
        self.is_silent = False  # Died without a word: the machine is off.
        self.is_paused = False
        self.clock_skew_us = 0
        self.rng = Random(f"{world.seed}/process/{number}")
        self._waiting: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._peers: dict[int, Connection] = {}
        self._dialling: dict[int, list[tuple[Message, int]]] = {}
        self._pending: dict[int, _Pending] = {}
        self._requests = 0

    # -- Life -----------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.is_up
        self.life += 1
        self.is_up = True
        self.is_silent = False
        self.trace("started")
        self.on_start()

    def crash(self, *, is_silent: bool = False) -> None:
        """Everything in memory is gone.  The system closes a dead process's connections, unless
        the machine died with it."""
        if not self.is_up:
            return
        self.trace("crashed silently" if is_silent else "crashed")
        self.is_up = False
        self.is_silent = is_silent
        self.is_paused = False
        for connection in self.world.network.connections():
            if self in connection.ends and connection.lives[connection.end_of(self)] == self.life:
                self.world.network.close(connection, self, is_silent=is_silent)
        self._waiting.clear()
        self._peers.clear()
        self._dialling.clear()
        self._pending.clear()
        self.on_crash()

    def pause(self) -> None:
        if self.is_up and not self.is_paused:
            self.trace("paused")
            self.is_paused = True

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.trace("goes on")
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for life, call, args in waiting:
            self.wake(life, call, *args)

    def wake(self, life: int, call: Callable[..., None], *args: Any) -> None:
        """Run something in a life of this process, now or when it goes on."""
        if life != self.life or not self.is_up:
            return
        if self.is_paused:
            self._waiting.append((life, call, args))
        else:
            call(*args)

    def later(self, delay_us: int, call: Callable[..., None], *args: Any) -> int:
        return self.world.schedule.after(delay_us, self.wake, self.life, call, *args)

    def clock_us(self) -> int:
        return self.world.schedule.now_us + self.clock_skew_us

    def trace(self, what: str) -> None:
        self.world.trace.add(self.world.schedule.now_us, self.name, what)

    def on_start(self) -> None: ...

    def on_crash(self) -> None: ...

    # -- Being asked ----------------------------------------------------------------------------

    def received(
        self, connection: Connection, request: int, is_answer: bool, message: Message
    ) -> None:
        if is_answer:
            pending = self._pending.get(request)
            if pending is not None and pending.connection == connection.number:
                self._answer(request, message)
        elif connection.ends[0] is self:
            self.pushed(connection, message)
        else:
            self.asked(connection, request, message)

    def asked(self, connection: Connection, request: int, message: Message) -> None: ...

    def pushed(self, connection: Connection, message: Message) -> None: ...

    def writable(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None:
        peer = connection.peer_of(self).number
        if self._peers.get(peer) is connection:
            del self._peers[peer]
        lost = [
            request
            for request, pending in self._pending.items()
            if pending.connection == connection.number
        ]
        for request in lost:
            self._answer(request, Failure(FailureKind.LOST, "the connection broke"))
        self.on_closed(connection)

    def on_closed(self, connection: Connection) -> None: ...

    # -- Asking ---------------------------------------------------------------------------------

    def ask(self, node: NodeId | int, message: Message, timeout_ms: int, done: Answered) -> None:
        """`done` is never called before this returns."""
        self._requests += 1
        request = self._requests
        delay_us = (timeout_ms or self.world.shape.ask_ms) * MS
        timer = self.later(delay_us, self._timed_out, request)
        self._pending[request] = _Pending(done, timer)
        self._put(node, message, request)

    def tell(self, node: NodeId | int, message: Message) -> None:
        """One way; dropped when there is no connection."""
        connection = self._peers.get(node)
        if connection is not None:
            self.world.network.send(connection, self, message, 0, False)

    def _put(self, node: int, message: Message, request: int) -> None:
        connection = self._peers.get(node)
        if connection is not None:
            self._pending[request].connection = connection.number
            self.world.network.send(connection, self, message, request, False)
            return
        waiting = self._dialling.get(node)
        if waiting is not None:
            waiting.append((message, request))
            return
        target = self.world.processes.get(node)
        if target is None:
            failure = Failure(FailureKind.UNKNOWN_NODE, f"node {node} is not registered")
            self.later(0, self._answer, request, failure)
            return
        self._dialling[node] = [(message, request)]
        self.world.network.dial(self, target, lambda made: self._dialled(node, made))

    def _dialled(self, node: int, connection: Connection | None) -> None:
        waiting = self._dialling.pop(node)
        if connection is None:
            for _, request in waiting:
                if request in self._pending:
                    self._answer(request, Failure(FailureKind.CONNECT, f"node {node} is away"))
            return
        self._peers[node] = connection
        for message, request in waiting:
            if request in self._pending:
                self._pending[request].connection = connection.number
                self.world.network.send(connection, self, message, request, False)

    def _timed_out(self, request: int) -> None:
        pending = self._pending.pop(request, None)
        if pending is None:
            return
        kind = FailureKind.TIMED_OUT if pending.connection else FailureKind.CONNECT
        self.world.count("ask.timed_out")
        pending.answered(Failure(kind, "no answer in time"))

    def _answer(self, request: int, answer: Answer) -> None:
        pending = self._pending.pop(request, None)
        if pending is not None:
            self.world.schedule.cancel(pending.timer)
            pending.answered(answer)

    @property
    def asks_made(self) -> int:
        return self._requests

    @property
    def asks_waiting(self) -> int:
        return len(self._pending)
