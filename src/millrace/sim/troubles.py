"""What the nemeses of log kinds have in common: each strikes at random times with troubles of its
own, undoes what lasts, and counts what happened.

They work beside the one of `faults.py`, with generators of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.stage import Stage
    from millrace.sim.world import World

SLOW_FACTOR = 20
SLOW_US_MIN = 40 * MS  # Less is not worth listing a node for.

Undo = Callable[[], None]
T = TypeVar("T", bound=Enum)


def draw_troubles(rng: Random, troubles: tuple[T, ...]) -> tuple[T, ...]:
    """None in a third of the runs, one in another; otherwise each as likely as the seed says."""
    chance = rng.random()
    if chance < 0.33:
        return ()
    if chance < 0.66:
        return (rng.choice(troubles),)
    share = rng.random()
    return tuple(one for one in troubles if rng.random() < share)


class Striker(Generic[T]):
    """Strikes now and then; what it strikes with is for others to say."""

    def __init__(self, stage: "Stage", name: str, troubles: tuple[T, ...]) -> None:
        """`name` is that of its generator."""
        self._stage = stage
        self._troubles = troubles
        self._rng = Random(f"{stage.seed}/{name}")
        self._undos: dict[int, Undo] = {}
        self.faults = 0
        self._is_stopped = True

    @property
    def strikes(self) -> Mapping[T, Callable[[], bool]]:
        """What to do, and whether it could be done."""
        raise NotImplementedError

    @property
    def trouble_us(self) -> int:
        """Mean time between two."""
        raise NotImplementedError

    @property
    def has_troubles(self) -> bool:
        return bool(self._troubles)

    def begin(self) -> None:
        self._is_stopped = False
        if self._troubles:
            self._wait()

    def stop(self) -> None:
        """Undo everything that still lasts."""
        self._is_stopped = True
        for undo in list(self._undos.values()):
            undo()
        self._undos.clear()

    def _wait(self) -> None:
        delay_us = 1 + int(2 * self._rng.random() * self.trouble_us)
        self._stage.schedule.after(delay_us, self._strike)

    def _strike(self) -> None:
        if self._is_stopped:
            return
        trouble = self._rng.choice(self._troubles)
        if self.strikes[trouble]():
            self.faults += 1
            self._stage.count(f"trouble.{trouble.value}")
        self._wait()

    def _lasts(self, least_us: int, most_us: int, undo: Undo) -> None:
        number = self.faults * 1_000 + len(self._undos)
        while number in self._undos:
            number += 1
        self._undos[number] = undo
        delay_us = least_us + int(self._rng.random() ** 2 * (most_us - least_us))
        self._stage.schedule.after(delay_us, self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            undo()

    def _start(self, process: Process) -> None:
        if not process.is_up:
            process.start()

    def _cut(self, pairs: Sequence[tuple[Process, Process]], least_us: int, most_us: int) -> None:
        """Nothing gets from the first of each to the second for a while."""
        network = self._stage.network
        for source, target in pairs:
            network.block(source, target)

        def reunite() -> None:
            for source, target in pairs:
                network.unblock(source, target)

        self._lasts(least_us, most_us, reunite)


class TroubleNemesis(Striker[T]):
    """What those of log kinds may do."""

    def __init__(self, world: "World", name: str, troubles: tuple[T, ...]) -> None:
        super().__init__(world, name, troubles)
        self._world = world

    def _kill(self, node: "Node | None", least_us: int = MS) -> bool:
        if node is None or self._is_stopped or not self._world.nemesis.atlas.may_crash(node):
            return False
        node.crash(is_silent=self._rng.random() < 0.5)
        self._lasts(least_us, least_us + 2 * SECOND, lambda: self._start(node))
        return True

    def _desert(self, node: "Node | None", others: list[Process], least_us: int = MS) -> bool:
        """They lose the node both ways, and the rest of the world does not: it goes on."""
        if node is None:
            return False
        pairs: list[tuple[Process, Process]] = [(node, other) for other in others]
        self._cut(pairs + [(other, node) for other in others], least_us, 4 * SECOND)
        return True

    def _slow_node(self) -> bool:
        slow_us = self._world.network.slow_us
        node = self._rng.choice(self._world.nodes)
        if node.number in slow_us:
            return False
        node.trace("is slow")
        slow_us[node.number] = max(SLOW_FACTOR * self._world.shape.delay_us, SLOW_US_MIN)

        def fast_again() -> None:
            slow_us.pop(node.number, None)

        self._lasts(200 * MS, 3 * SECOND, fast_again)
        return True
