"""What a sequencer lives on, with a clock of its own: a test says what nodes answer."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from millrace.types import NodeId


class VirtualSurroundings:
    """Procedures are not run: `results` are theirs, in order."""

    def __init__(self, nodes: tuple[NodeId, ...], results: list[Any]) -> None:
        self.clock_ms = 1_000
        self.order = itertools.count()
        self.results = results
        self._nodes = nodes
        self._timers: list[tuple[int, int, Callable[[], None]]] = []

    def now_ms(self) -> int:
        return self.clock_ms

    def locations(self) -> Mapping[NodeId, str]:
        return dict.fromkeys(self._nodes, "")

    def later(self, ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.clock_ms + ms, next(self.order), call))

    def run(self, procedure: Any, timeout_ms: int, done: Callable[[Any], None]) -> None:
        procedure.close()
        result = self.results.pop(0)
        self.later(0, lambda: done(result))

    def pass_ms(self, ms: int) -> None:
        end_ms = self.clock_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            self.clock_ms, _, call = heapq.heappop(self._timers)
            call()
        self.clock_ms = end_ms
