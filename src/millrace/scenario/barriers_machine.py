"""Machine `barriers`: the cookies of one connection, while its partitions are streamed in turn.

Beside the real one runs the test that the seed's text has, so that a file can show where they part.
"""

from collections import deque
from collections.abc import Callable

from millrace.core.documents.barriers import Barriers, Marker
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import StreamStatus
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.text import Words


class BarriersMachine(Machine):
    name = "barriers"

    def __init__(self) -> None:
        self._partitions = 1
        self._cycles = 0
        self._next = 0  # The partition that is streamed, or will be.
        self._is_streaming = False
        self._barriers = Barriers()
        self._given: deque[Marker] = deque()  # Not yet returned by the seed's test.

    def settings(self) -> list[Setting]:
        return [Setting("partitions N", self._set_partitions)]

    def commands(self) -> list[Command]:
        actions: list[tuple[str, Callable[[Words], list[str]]]] = [
            ("cookie TEXT", self._add),
            ("begin", self._begin),
            ("finish", self._finish),
            ("skip", self._skip),
            ("idle", self._become_idle),
            ("waiting", self._show_waiting),
        ]
        return [Command(usage, run) for usage, run in actions]

    def _set_partitions(self, words: Words) -> None:
        self._partitions = words.number("a number of partitions")

    def _add(self, words: Words) -> list[str]:
        cookie = words.take("a cookie")
        partition = self._next if self._is_streaming else self._next - 1
        status = self._barriers.add(cookie, self._cycles, partition)
        if status is not StreamStatus.OK:
            return [f"refused {status.name.lower()}"]
        self._given.append(Marker(cookie, self._cycles, partition))
        return [f"marked cycles {self._cycles} partition {partition}"]

    def _begin(self, words: Words) -> list[str]:
        if self._is_streaming:
            words.fail(f"partition {self._next} is being streamed: finish it first")
        self._is_streaming = True
        return []

    def _finish(self, words: Words) -> list[str]:
        if not self._is_streaming:
            words.fail("nothing is being streamed: begin first")
        return self._leave()

    def _skip(self, words: Words) -> list[str]:
        """The next partition has no changes."""
        if self._is_streaming:
            words.fail(f"partition {self._next} is being streamed: finish it first")
        return self._leave()

    def _leave(self) -> list[str]:
        self._is_streaming = False
        self._next += 1
        returned = self._barriers.reached(self._cycles, PartitionId(self._next))
        if self._next == self._partitions:
            self._cycles, self._next = self._cycles + 1, 0
            returned += self._barriers.reached(self._cycles, PartitionId(self._next))
        while self._given and self._is_past(self._given[0]):
            self._given.popleft()
        place = f"cycles {self._cycles} next {self._next}"
        return [place, *(f"return {cookie}" for cookie in returned)]

    def _is_past(self, marker: Marker) -> bool:
        """The seed: "if the number of cycles and the next partition are greater"."""
        return self._cycles > marker.cycles and self._next > marker.partition

    def _become_idle(self, words: Words) -> list[str]:
        if self._is_streaming:
            words.fail(f"partition {self._next} is being streamed: finish it first")
        self._given.clear()
        return [f"return {cookie}" for cookie in self._barriers.return_all()]

    def _show_waiting(self, words: Words) -> list[str]:
        as_written = " ".join(marker.cookie for marker in self._given) or "none"
        return [f"waiting {len(self._barriers)}, as written {as_written}"]
