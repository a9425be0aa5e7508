"""The people of the cluster: one who makes logs and changes chains, one who trims.

Their procedures are what the command line does: every step is safe at any time, so they need no
knowledge of what else goes on.
"""

from typing import TYPE_CHECKING

from millrace.core.messages import Refusal, Refused, Trim, Trimmed
from millrace.core.procedure import Failure, Procedure, Refresh, ask
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.reconfigure import Change, create
from millrace.sim.driver import Driver
from millrace.sim.process import Process
from millrace.sim.schedule import MS
from millrace.types import Epoch, LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.world import World

TRIM_ATTEMPTS_MAX = 5


class Operator(Process):
    world: "World"

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "op")
        self.driver: Driver
        self.created: list[LogId] = []

    def on_start(self) -> None:
        self.driver = Driver(self)

    def make_log(self, log: LogId, chain: tuple[NodeId, ...], replication: int) -> None:
        def made(result: Projection | Failure) -> None:
            assert isinstance(result, Projection), f"log {log} was not made: {result}"
            self.created.append(log)

        self.driver.start(create(log, chain, replication, self.driver.proposer()), made)

    def change(self, change: Change) -> None:
        self.driver.change(change, lambda _: None)

    def reseal(self, log: LogId) -> None:
        self.change(Change(log, ReconfigureReason.OPERATOR))

    def remove(self, log: LogId, node: NodeId) -> None:
        self.change(Change(log, ReconfigureReason.OPERATOR, remove=frozenset({node})))

    def seal_for_good(self, log: LogId) -> None:
        self.change(Change(log, ReconfigureReason.SEALED, seal_for_good=True))


class Trimmer(Process):
    """Trims what some reader has read: a slower one finds its position gone."""

    world: "World"

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "trim")
        self.driver: Driver
        self.is_stopping = False

    def on_start(self) -> None:
        self.driver = Driver(self)
        self._wait()

    def _wait(self) -> None:
        self.later(int((50 + self.rng.random() * 400) * MS), self._trim)

    def _trim(self) -> None:
        if self.is_stopping:
            return
        log = self.rng.choice(self.world.log_ids)
        truth = self.world.ledger.truth(log)
        read_end = max(reader.positions[log] for reader in self.world.readers)
        end = Lsn(truth.trim_end + int(self.rng.random() * (read_end - truth.trim_end + 1)))
        if self.rng.random() < 0.2:
            # Somebody who does not know the newest trim point: nothing must come of it.
            end = Lsn(1 + int(self.rng.random() * truth.trim_end))
        truth.trim_end = max(truth.trim_end, end)
        self.trace(f"trims log {log} up to {end}")
        self.driver.start(trim(log, end), self._trimmed)

    def _trimmed(self, is_done: bool) -> None:
        self.world.count("trim.done" if is_done else "trim.given_up")
        self._wait()


def trim(log: LogId, end: Lsn) -> Procedure[bool]:
    """Tell every member of the chain, whatever the chain is when they hear it."""
    for _ in range(TRIM_ATTEMPTS_MAX):
        projection: Projection | Failure = yield Refresh(log, Epoch(0))
        if isinstance(projection, Failure):
            continue
        trimmed = 0
        for node in projection.chain:
            answer = yield from ask(node, Trim(log, projection.epoch, end))
            if isinstance(answer, Trimmed):
                trimmed += 1
            elif isinstance(answer, Refused) and answer.reason is Refusal.EPOCH:
                break
        if trimmed == len(projection.chain):
            return True
    return False
