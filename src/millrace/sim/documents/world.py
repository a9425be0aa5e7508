"""A simulated cluster that holds one bucket, and its users, made from one seed.

Two phases, as in the other worlds.  First anything goes that the seed's shape allows, and every
event is checked for safety.  Then the faults stop, everybody comes back, and within a bounded time
every partition has a master, whole replicas, and followers that have all of it: who is stuck must
say why.  At the end all that anybody has is compared.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.core.documents.document import PartitionId
from millrace.core.documents.failing_over import CannotReason
from millrace.core.documents.map import BucketAttributes, BucketRecord
from millrace.core.documents.placement import Copies, place
from millrace.core.documents.seats import new_bucket
from millrace.core.procedure import Note
from millrace.meta.contract import Entry
from millrace.meta.keys import BUCKETS, NODES
from millrace.sim.documents import knobs
from millrace.sim.documents.faults import DocumentsNemesis
from millrace.sim.documents.follower import Follower
from millrace.sim.documents.keeper import KeeperProcess
from millrace.sim.documents.ledger import DocumentsLedger
from millrace.sim.documents.lines import LineNetwork
from millrace.sim.documents.node import DocumentsNode
from millrace.sim.documents.shape import DocumentsShape, draw
from millrace.sim.documents.verdict import check_end, what_is_missing
from millrace.sim.documents.writer import DocumentsWriter
from millrace.sim.metadata import Metadata
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.stage import Stage
from millrace.sim.trace import Listener
from millrace.sim.violation import Violation
from millrace.types import NO_NODE, NodeId, NodeInfo

CLIENTS_FROM = 100
BUCKET_ID = 1
HEAL_US = 120 * SECOND
POLL_US = 100 * MS
FORCE_AFTER_US = 5 * SECOND
GIVE_UP_AFTER_US = 20 * SECOND
BATCH_BYTES = 4_000


@contextmanager
def _silence() -> Iterator[None]:
    """Nodes log what befalls them; here that is what they are for."""
    logger = logging.getLogger("millrace")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


class DocumentsWorld(Stage):
    shape: DocumentsShape
    network: LineNetwork

    def __init__(
        self,
        seed: int | str,
        listener: Listener | None = None,
        shape: DocumentsShape | None = None,
    ) -> None:
        super().__init__(seed, listener)
        self.shape = shape = shape or draw(self.seed)
        self.block_bytes_max = BATCH_BYTES
        self.record = self.first_record = self._new_bucket()
        self.ledger = DocumentsLedger(self)
        self.nemesis = DocumentsNemesis(self, shape.troubles)
        self.network = LineNetwork(self, self.seed, shape.delay_us)
        self.metadata = self.add(Metadata(self))
        self.nodes = [self.add(DocumentsNode(self, NodeId(at + 1))) for at in range(shape.nodes)]
        self.keepers = [
            self.add(KeeperProcess(self, CLIENTS_FROM + at, f"keeper{at + 1}"))
            for at in range(shape.keepers)
        ]
        self.writers = [
            self.add(DocumentsWriter(self, CLIENTS_FROM + 10 + at, f"w{at + 1}"))
            for at in range(shape.writers)
        ]
        self.followers = [
            self.add(Follower(self, CLIENTS_FROM + 20 + at, f"f{at + 1}"))
            for at in range(shape.followers)
        ]
        self.is_healed = False

    def _new_bucket(self) -> BucketRecord:
        shape = self.shape
        attributes = BucketAttributes(
            shape.partitions,
            shape.replicas,
            memory_bytes=shape.memory_bytes,
            purge_after_s=shape.purge_after_s,
        )
        nodes = [NodeId(at + 1) for at in range(shape.nodes)]
        nobody = [Copies(NO_NODE)] * shape.partitions
        wanted = place(nodes, {}, shape.replicas, nobody)
        return new_bucket(BUCKET_ID, "b", attributes, wanted, 0)

    def node(self, number: NodeId) -> DocumentsNode:
        return self.nodes[number - 1]

    def everybody(self) -> list[Process]:
        return list(self.processes.values())

    def entry_set(self, key: str, entry: Entry) -> None:
        if key.startswith(BUCKETS.prefix):
            self.record = BUCKETS.decode(entry)
            self.ledger.record_set(self.record)

    def noted(self, process: str, note: Note) -> None:
        for name in ("reason", "event"):
            if name in note.fields:
                self.count(f"note.{note.event}.{note.fields[name]}")

    # -- Phases ---------------------------------------------------------------------------------

    def run(self) -> None:
        with knobs.turned(self.seed), _silence():
            self._found()
            self._start_clients()
            self.nemesis.begin()
            self.let_pass(self.shape.chaos_us)
            self._heal()
            self._settle()
            self._check_end()

    def _start_clients(self) -> None:
        for client in (*self.writers, *self.followers):
            client.start()

    def _missing(self) -> str | None:
        return what_is_missing(self)

    def _check_end(self) -> None:
        check_end(self)

    def _found(self) -> None:
        self.metadata.start()
        for node in self.nodes:
            info = NodeInfo(node.node, f"node{node.node}:1")
            self.metadata.put(NODES.key(info.id), NODES.encode(info), 0)
            node.start()
        self.metadata.put(BUCKETS.key(self.record.name), BUCKETS.encode(self.record), 0)
        for keeper in self.keepers:
            keeper.start()

    def _heal(self) -> None:
        self.trace.add(self.schedule.now_us, "world", "heals")
        self.is_healed = True
        self.nemesis.stop()
        for writer in self.writers:
            writer.is_stopping = True

    def _settle(self) -> None:
        """Everything ends, or somebody says why it does not."""
        is_probed = False
        healed_us = self.schedule.now_us
        while True:
            self.let_pass(POLL_US)
            missing = self._missing()
            if missing is None and is_probed:
                return
            if missing is None:
                is_probed = True
                self._probe()
            elif self.schedule.now_us > healed_us + FORCE_AFTER_US:
                self._force(self.schedule.now_us > healed_us + GIVE_UP_AFTER_US)
            if self.schedule.now_us > healed_us + HEAL_US:
                raise Violation("liveness", f"{HEAL_US // SECOND} s after the faults: {missing}")

    def _force(self, is_given_up: bool) -> None:
        """An operator takes what is left.  A copy with an unfinished undo, whose master is lost
        like all the others, is never promoted (U2): it is thrown away in the end."""
        for keeper in self.keepers:
            for number, why in list(keeper.stuck.items()):
                keeper.force(number)
                if is_given_up and why.reason is CannotReason.UNDO_PENDING:
                    self._throw_away(number)

    def _throw_away(self, number: PartitionId) -> None:
        self.ledger.is_given_up(number)
        for node in self.nodes:
            partition = node.partition(number)
            if partition is not None and partition.has_undo:
                self.count("operator.threw_away")
                node.crash()
                node.wipe()
                node.start()

    def _probe(self) -> None:
        """All partitions still work."""
        for number in range(self.shape.partitions):
            self.writers[number % len(self.writers)].probe(PartitionId(number))
