"""A simulated cluster and its users, made from one seed.

Two phases.  In the first anything goes that the seed's shape allows, and every event is checked
for safety.  Then the faults stop, all but some nodes come back, and everything that was begun must
end within a bounded time: that is liveness, and whoever is stuck must say why.
"""

from collections import Counter
from typing import TypeVar

from millrace.core.projection import Projection, choose_chain
from millrace.core.repair import FillPolicy
from millrace.limits import READ_BUFFER_BLOCKS_MAX
from millrace.meta.keys import NODES
from millrace.sim import knobs
from millrace.sim.atlas import Atlas
from millrace.sim.faults import Nemesis
from millrace.sim.ledger import Ledger
from millrace.sim.metadata import Metadata
from millrace.sim.network import Network
from millrace.sim.node import Node
from millrace.sim.office import Operator, Trimmer
from millrace.sim.process import Process
from millrace.sim.reader import Reader
from millrace.sim.schedule import MS, SECOND, Schedule
from millrace.sim.shape import Shape, draw
from millrace.sim.trace import Listener, Trace
from millrace.sim.verdict import check_end, what_is_missing
from millrace.sim.violation import Violation
from millrace.sim.writer import Writer
from millrace.types import LogId, NodeId, NodeInfo

CLIENTS_FROM = 100
HEAL_US = 120 * SECOND
POLL_US = 200 * MS
DISK_BYTES = 1_000_000_000
EVENTS_MAX = 400_000

P = TypeVar("P", bound=Process)


class World:
    def __init__(
        self, seed: int | str, shape: Shape | None = None, listener: Listener | None = None
    ) -> None:
        self.seed = seed
        self.shape = shape or draw(seed)
        self.schedule = Schedule()
        self.trace = Trace(listener)
        self.counters: Counter[str] = Counter()
        self.ledger = Ledger(self)
        self.processes: dict[int, Process] = {}
        self.disk_bytes = DISK_BYTES
        self.block_bytes_max = 1_000 + self.shape.records_max * (self.shape.value_bytes_max + 100)
        self.network = Network(self, seed, self.shape.delay_us)
        self.blocks_waiting_max = READ_BUFFER_BLOCKS_MAX
        self.log_ids = [LogId(number + 1) for number in range(self.shape.logs)]
        self.metadata = self._add(Metadata(self))
        self.nodes = [self._add(Node(self, NodeId(at + 1))) for at in range(self.shape.nodes)]
        self.operator = self._add(Operator(self, CLIENTS_FROM))
        self.trimmer = self._add(Trimmer(self, CLIENTS_FROM + 1))
        self.writers = [
            self._add(Writer(self, CLIENTS_FROM + 10 + at, f"w{at + 1}"))
            for at in range(self.shape.writers)
        ]
        self.readers = [
            self._add(Reader(self, CLIENTS_FROM + 20 + at, f"r{at + 1}", FillPolicy(wait_ms)))
            for at, wait_ms in enumerate(self.shape.fill_wait_ms)
        ]
        self.nemesis = Nemesis(self)
        self.is_healed = False
        self.keeper_said = "no keeper said anything"

    def _add(self, process: P) -> P:
        self.processes[process.number] = process
        return process

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def node(self, number: NodeId) -> Node:
        return self.nodes[number - 1]

    def people(self) -> list[Process]:
        """Whoever can be paused: everyone but the repository."""
        return [*self.nodes, *self.writers, *self.readers]

    def everybody(self) -> list[Process]:
        return [self.metadata, *self.nodes, *self.writers, *self.readers, self.operator]

    def projection(self, log: LogId) -> Projection:
        return self.ledger.truth(log).projections[-1]

    # -- Phases ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation, or whatever else the cores let out."""
        with knobs.turned(self.seed):
            self._run()

    def _run(self) -> None:
        self._found()
        for client in (*self.writers, *self.readers):
            client.start()
        if self.shape.trims:
            self.trimmer.start()
        self.nemesis.begin()
        self._let_pass(self.shape.chaos_us)
        self._heal()
        self._settle()
        check_end(self)

    def _found(self) -> None:
        self.metadata.start()
        infos = [
            NodeInfo(node.node, f"node{node.node}:1", f"r.d.c.w.k{node.node}")
            for node in self.nodes
        ]
        for info in infos:
            self.metadata.state.set(NODES.key(info.id), NODES.encode(info), 0, 0, 0)
        for node in self.nodes:
            node.start()
        self.operator.start()
        live = [node.node for node in self.nodes]
        self._let_pass(100 * MS)
        for log in self.log_ids:
            chain = choose_chain(log, self.shape.replication, infos, live)
            self.operator.make_log(log, chain, self.shape.replication)
        deadline_us = self.schedule.now_us + 10 * SECOND
        while len(self.operator.created) < len(self.log_ids):
            assert self.schedule.now_us < deadline_us, "the logs were never made"
            self._let_pass(10 * MS)

    def _let_pass(self, time_us: int) -> None:
        self.schedule.run(self.schedule.now_us + time_us, self._may_go_on)

    def _may_go_on(self) -> bool:
        if self.schedule.events > EVENTS_MAX:
            raise Violation("G13", f"more than {EVENTS_MAX} events: somebody is busy for nothing")
        return True

    def _heal(self) -> None:
        self.trace.add(self.schedule.now_us, "world", "heals")
        self.is_healed = True
        self.nemesis.stop()
        atlas = Atlas(self)
        nodes_left = len(self.nodes)
        for node in self.nodes:
            is_spared = node.rng.random() < 0.7 or self.shape.is_calm
            if is_spared or nodes_left <= self.shape.replication or not atlas.may_lose_disk(node):
                continue
            node.crash(is_silent=True)
            nodes_left -= 1
            atlas.gone.add(node.number)
            self.count("heal.left_dead")
        for writer in self.writers:
            writer.is_stopping = True
        self.trimmer.is_stopping = True
        for reader in self.readers:
            reader.policy = FillPolicy(50)
        if self.shape.seals_for_good:
            self.operator.seal_for_good(self.log_ids[0])

    def _settle(self) -> None:
        """Everything ends, or somebody says why it does not."""
        probes = False
        deadline_us = self.schedule.now_us + HEAL_US
        while True:
            self._let_pass(POLL_US)
            missing = what_is_missing(self)
            if missing is None and probes:
                return
            if missing is None:
                probes = True
                for at, writer in enumerate(self.writers):
                    writer.append(self.log_ids[at % len(self.log_ids)])
            if self.schedule.now_us > deadline_us:
                raise Violation("liveness", f"{HEAL_US // SECOND} s after the faults: {missing}")
