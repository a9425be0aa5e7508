"""A simulated cluster and its users, made from one seed.

Two phases.  In the first anything goes that the seed's shape allows, and every event is checked
for safety.  Then the faults stop, all but some nodes come back, and everything that was begun must
end within a bounded time: that is liveness, and whoever is stuck must say why.
"""

from contextlib import ExitStack

import msgspec

from millrace.core.commit.record import is_stream_log
from millrace.core.procedure import Note
from millrace.core.projection import Projection, choose_chain
from millrace.core.repair import FillPolicy
from millrace.limits import READ_BUFFER_BLOCKS_MAX
from millrace.meta.contract import Entry
from millrace.meta.keys import COMMITS, EPOCHS, NODES, PROJECTIONS
from millrace.sim import knobs
from millrace.sim.atlas import Atlas
from millrace.sim.commit import knobs as commit_knobs
from millrace.sim.commit.ledger import CommitLedger
from millrace.sim.commit.part import CommitPart
from millrace.sim.commit.shape import CommitShape
from millrace.sim.commit.verdict import check_commits, what_is_missing_of_commits
from millrace.sim.faults import Nemesis
from millrace.sim.ledger import Ledger
from millrace.sim.metadata import Metadata
from millrace.sim.network import Network
from millrace.sim.node import Node
from millrace.sim.office import Operator, Trimmer
from millrace.sim.process import Process
from millrace.sim.reader import Reader
from millrace.sim.schedule import MS, SECOND
from millrace.sim.sequenced import knobs as sequenced_knobs
from millrace.sim.sequenced.ledger import SequencedLedger
from millrace.sim.sequenced.part import SequencedPart
from millrace.sim.sequenced.shape import SequencedShape
from millrace.sim.sequenced.verdict import check_sequenced, what_is_missing_of_sequenced
from millrace.sim.shape import Family, Shape, draw
from millrace.sim.stage import Stage
from millrace.sim.trace import Listener
from millrace.sim.verdict import check_end, what_is_missing
from millrace.sim.violation import Violation
from millrace.sim.writer import Writer
from millrace.types import LogId, NodeId, NodeInfo

CLIENTS_FROM = 100
HEAL_US = 120 * SECOND
POLL_US = 200 * MS
DISK_BYTES = 1_000_000_000

_OF_CHAINS = (Family.OPERATOR, Family.BLACKOUT)


class World(Stage):
    shape: Shape

    def __init__(
        self,
        seed: int | str,
        shape: Shape | None = None,
        listener: Listener | None = None,
        sequenced_shape: SequencedShape | None = None,
        commit_shape: CommitShape | None = None,
    ) -> None:
        super().__init__(seed, listener)
        self.ledger = Ledger(self)
        self.sequenced = SequencedPart(self, self.kind, sequenced_shape)
        self.commits = CommitPart(self, self.kind, commit_shape)
        self.parts = (self.sequenced, self.commits)
        self.shape = shape or self._shape()
        self.disk_bytes = DISK_BYTES
        self.block_bytes_max = 1_000 + self.shape.records_max * (self.shape.value_bytes_max + 100)
        self.network = Network(self, self.seed, self.shape.delay_us)
        self.blocks_waiting_max = READ_BUFFER_BLOCKS_MAX
        has_chains = self.kind.has_chains
        self.log_ids = [LogId(at + 1) for at in range(self.shape.logs if has_chains else 0)]
        self.metadata = self.add(Metadata(self))
        self.nodes = [self.add(Node(self, NodeId(at + 1))) for at in range(self.shape.nodes)]
        self.locations = {node.node: self._location(node.node) for node in self.nodes}
        self.operator = self.add(Operator(self, CLIENTS_FROM))
        self.trimmer = self.add(Trimmer(self, CLIENTS_FROM + 1))
        self.writers = [
            self.add(Writer(self, CLIENTS_FROM + 10 + at, f"w{at + 1}"))
            for at in range(self.shape.writers if has_chains else 0)
        ]
        self.readers = [
            self.add(Reader(self, CLIENTS_FROM + 20 + at, f"r{at + 1}", FillPolicy(wait_ms)))
            for at, wait_ms in enumerate(self.shape.fill_wait_ms if has_chains else ())
        ]
        for part in self.parts:
            for process in part.people():
                self.add(process)
        self.nemesis = Nemesis(self)
        self.is_healed = False
        self.keeper_said = "no keeper said anything"

    def _shape(self) -> Shape:
        """That of the seed; sequenced logs want nodes to choose from."""
        shape = draw(self.seed)
        nodes = self.sequenced.shape.nodes if self.kind.has_sequenced else shape.nodes
        replication = min(nodes, shape.replication)
        families = shape.families
        if not self.kind.has_chains:
            families = tuple(one for one in families if one not in _OF_CHAINS)
        return msgspec.structs.replace(
            shape, nodes=nodes, replication=replication, families=families
        )

    def _location(self, node: NodeId) -> str:
        racks = len(self.nodes) + 1
        if self.kind.has_sequenced:
            racks = self.sequenced.shape.racks
        elif self.kind.has_commits:
            racks = self.commits.shape.racks
        return f"r.d.c.w.k{node % racks}"

    def node(self, number: NodeId) -> Node:
        return self.nodes[number - 1]

    def people(self) -> list[Process]:
        """Whoever can be paused: everyone but the repository."""
        return [*self.nodes, *self.clients()]

    def clients(self) -> list[Process]:
        parts = [client for part in self.parts for client in part.clients]
        return [*self.writers, *self.readers, *parts]

    def everybody(self) -> list[Process]:
        return [self.metadata, *self.nodes, *self.clients(), self.operator]

    def ledger_of(self, log: LogId | None) -> Ledger | SequencedLedger | CommitLedger:
        """Who knows the truth about a log; its metadata log is a sequenced one."""
        if log is not None and (is_stream_log(log) or log in self.commits.ledger.logs):
            return self.commits.ledger
        return self.sequenced.ledger if log in self.sequenced.ledger.logs else self.ledger

    @property
    def is_calm(self) -> bool:
        return self.shape.is_calm and not any(part.nemesis.has_troubles for part in self.parts)

    @property
    def faults(self) -> int:
        """How often anything was done to the world."""
        struck = self.nemesis.faults + sum(part.nemesis.faults for part in self.parts)
        return struck + self.counters["network.long_delay"]

    def projection(self, log: LogId) -> Projection:
        return self.ledger.truth(log).projections[-1]

    def entry_set(self, key: str, entry: Entry) -> None:
        if key.startswith(PROJECTIONS.prefix):
            self.ledger.projected(PROJECTIONS.decode(entry))
        if key.startswith(EPOCHS.prefix):
            self.sequenced.ledger.epochs_set(EPOCHS.decode(entry))
        if key.startswith(COMMITS.prefix):
            self.commits.ledger.commits_set(COMMITS.decode(entry))

    def noted(self, process: str, note: Note) -> None:
        self.ledger.noted(process, note)

    # -- Phases ---------------------------------------------------------------------------------

    def run(self) -> None:
        with ExitStack() as turned:
            turned.enter_context(knobs.turned(self.seed))
            if self.kind.has_sequenced:
                turned.enter_context(sequenced_knobs.turned(self.seed))
            if self.kind.has_commits:
                turned.enter_context(commit_knobs.turned(self.seed))
            self._run()

    def _run(self) -> None:
        self._found()
        for client in (*self.writers, *self.readers):
            client.start()
        if self.shape.trims and self.log_ids:
            self.trimmer.start()
        for part in self.parts:
            part.begin()
        self.nemesis.begin()
        self.let_pass(self.shape.chaos_us)
        self._heal()
        self._settle()
        check_end(self)
        check_sequenced(self)
        check_commits(self)

    def _found(self) -> None:
        self.metadata.start()
        infos = [
            NodeInfo(node.node, f"node{node.node}:1", self.locations[node.node])
            for node in self.nodes[: len(self.nodes) - self.sequenced.spares]
        ]
        for info in infos:
            self.metadata.state.set(NODES.key(info.id), NODES.encode(info), 0, 0, 0)
        for node in self.nodes:
            node.start()
        self.operator.start()
        live = [node.node for node in self.nodes]
        self.let_pass(100 * MS)
        for log in self.log_ids:
            chain = choose_chain(log, self.shape.replication, infos, live)
            self.operator.make_log(log, chain, self.shape.replication)
        deadline_us = self.schedule.now_us + 10 * SECOND
        while len(self.operator.created) < len(self.log_ids):
            assert self.schedule.now_us < deadline_us, "the logs were never made"
            self.let_pass(10 * MS)
        for part in self.parts:
            part.found(infos)

    def _heal(self) -> None:
        self.trace.add(self.schedule.now_us, "world", "heals")
        self.is_healed = True
        self.nemesis.stop()
        for part in self.parts:
            part.stop()
        atlas = Atlas(self)
        nodes_left = len(self.nodes)
        for node in self.nodes:
            is_spared = node.rng.random() < 0.7 or self.is_calm
            if is_spared or nodes_left <= self.shape.replication or not atlas.may_stay_away(node):
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
        if self.shape.seals_for_good and self.log_ids:
            self.operator.seal_for_good(self.log_ids[0])

    def _settle(self) -> None:
        """Everything ends, or somebody says why it does not."""
        probes = False
        deadline_us = self.schedule.now_us + HEAL_US
        while True:
            self.let_pass(POLL_US)
            missing = (
                what_is_missing(self)
                or what_is_missing_of_sequenced(self)
                or what_is_missing_of_commits(self)
            )
            if missing is None and probes:
                return
            if missing is None:
                probes = True
                self._probe()
            if self.schedule.now_us > deadline_us:
                raise Violation("liveness", f"{HEAL_US // SECOND} s after the faults: {missing}")

    def _probe(self) -> None:
        """All logs still work."""
        for at, writer in enumerate(self.writers):
            writer.begin_append(self.log_ids[at % len(self.log_ids)])
        for part in self.parts:
            part.probe()
