"""A client in a scenario: runs the real procedures, one effect at a time.

A reconfiguration that an append asks for runs inside it, so a client's steps show both.
"""

from typing import Any, Final, assert_never

from millrace.codec import blocks
from millrace.core import procedure as p
from millrace.core.append import Append
from millrace.core.projection import Projection
from millrace.core.reconfigure import Change, reconfigure
from millrace.scenario import words as w
from millrace.scenario.cluster import Cluster
from millrace.scenario.procedure_words import show_result, show_suspects
from millrace.types import Token

EFFECTS_MAX: Final = 1_000  # More than any scenario that ends.
_LATER: Final = object()  # The answer comes when an inner procedure returns.


class Client:
    """One client: its copy of the projection, and what it is doing, innermost last."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.requests = 0
        self.projection = cluster.projection
        self.append: Append | None = None
        self._cluster = cluster
        self._stack: list[p.Procedure[Any]] = []
        self._effect: p.Effect | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._stack)

    def next_token(self) -> Token:
        self.requests += 1
        return Token(self.number, self.requests)

    def begin(self, running: p.Procedure[Any]) -> None:
        self._stack.append(running)
        self._advance(None)

    def step(self) -> None:
        """Perform the effect that is due."""
        assert self._effect is not None
        answer = self._perform(self._effect)
        if answer is not _LATER:
            self._advance(answer)

    def run(self) -> None:
        for _ in range(EFFECTS_MAX):
            if not self._stack:
                return
            self.step()
        raise AssertionError(f"client {self.name} makes no end")

    def fail(self) -> None:
        """The client dies: what it was doing stays undone."""
        for running in reversed(self._stack):
            running.close()
        self._stack.clear()

    def deadline(self) -> None:
        """Time is up: whatever runs inside ends, the operation itself is told."""
        while len(self._stack) > 1:
            self._stack.pop().close()
        try:
            self._effect = self._stack[0].throw(p.DeadlinePassed())
        except StopIteration as stop:
            self._returned(stop.value)

    def _advance(self, answer: Any) -> None:
        """Send the answer in; skip what needs nobody else."""
        while self._stack:
            try:
                self._effect = self._stack[-1].send(answer)
            except StopIteration as stop:
                answer = stop.value
                self._returned(answer)
                continue
            if not isinstance(self._effect, p.Note):
                return
            self._cluster.say(f"{self.name} notes {self._effect.event}")
            answer = None

    def _returned(self, result: Any) -> None:
        self._stack.pop()
        if isinstance(result, Projection):
            self.projection = result
        if not self._stack:
            self._cluster.say(f"{self.name}: {show_result(result)}")

    def _perform(self, effect: p.Effect) -> Any:
        match effect:
            case p.Ask(node, message):
                return self._cluster.ask(self.name, node, message)
            case p.AskAll(asks):
                return [self._cluster.ask(self.name, ask.node, ask.message) for ask in asks]
            case p.Pause(ms):
                self._cluster.say(f"{self.name} waits {ms} ms")
                return None
            case p.ReadProjection():
                return self._cluster.read_projection(self.name)
            case p.ReplaceProjection(projection, expected):
                return self._cluster.replace_projection(self.name, projection, expected)
            case p.Refresh():
                return self.refresh()
            case p.ListNodes():
                return self._cluster.view()
            case p.Reconfigure():
                return self._reconfigure(effect)
            case p.Note():
                raise AssertionError("notes are never due")
            case (
                p.ReadEpochs()
                | p.ReplaceEpochs()
                | p.ReadCommits()
                | p.ReplaceCommits()
                | p.ReadBucket()
                | p.ReplaceBucket()
                | p.ReadNodesetChanges()
                | p.AppendNodesetChange()
                | p.ReadStatuses()
                | p.RenewRebuilds()
            ):
                raise AssertionError("a chain has no epoch store")
            case _:
                assert_never(effect)

    def refresh(self) -> Projection | p.Failure:
        read = self._cluster.read_projection(self.name)
        if isinstance(read, p.Failure):
            return read
        assert read[0] is not None
        self.projection = read[0]
        return read[0]

    def _reconfigure(self, effect: p.Reconfigure) -> Any:
        suspects = show_suspects(effect.suspects)
        self._cluster.say(f"{self.name} reconfigures: {effect.reason.value}{suspects}")
        change = Change(w.LOG, effect.reason, effect.suspects, only_from=effect.seen.epoch)
        self.begin(reconfigure(change, self.next_token(), blocks.junk))
        return _LATER
