"""The sequenced logs of a world, with all who use them; in a world of chain logs there are none."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord
from millrace.core.replication import Authority, authority, can_replicate
from millrace.core.sequenced.rebuilt import may_hold_alone, suspects, unfinished
from millrace.core.statuses import NodeStatusEntry, statuses_of
from millrace.lsn import epoch_of
from millrace.meta.keys import NODES, REBUILDS, STATUSES, RebuildId, RebuildReport
from millrace.server.status_keeping import finished_for
from millrace.sim.part import Part
from millrace.sim.schedule import MS
from millrace.sim.seeds import LogKind
from millrace.sim.sequenced.faults import SequencedNemesis
from millrace.sim.sequenced.ledger import SequencedLedger
from millrace.sim.sequenced.office import Registrar, SequencedTrimmer
from millrace.sim.sequenced.reader import SequencedReader
from millrace.sim.sequenced.shape import SequencedShape, draw
from millrace.sim.sequenced.surroundings import entries_of, reports_of
from millrace.sim.sequenced.truth import LogTruth
from millrace.sim.sequenced.writer import SequencedWriter
from millrace.types import AuthoritativeStatus, LogId, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

LOGS_FROM = 11
NUMBERS_FROM = 130


class SequencedPart(Part[SequencedWriter, SequencedReader]):
    def __init__(self, world: "World", kind: LogKind, shape: SequencedShape | None = None) -> None:
        self._world = world
        self.shape = shape or draw(world.seed)
        super().__init__(self.shape, kind.has_sequenced, LOGS_FROM)
        self.ledger = SequencedLedger(world)
        # Chains would want to grow onto them as well.
        self.spares = self.shape.spares if self.has_logs and not kind.has_chains else 0
        self.registrar: Registrar = Registrar(world, NUMBERS_FROM)
        self.trimmer = SequencedTrimmer(world, NUMBERS_FROM + 1)
        self.nemesis: SequencedNemesis = SequencedNemesis(
            world, self.shape.troubles if self.has_logs else ()
        )

    def make_clients(self) -> tuple[list[SequencedWriter], list[SequencedReader]]:
        world, shape = self._world, self.shape
        writers = [
            SequencedWriter(world, NUMBERS_FROM + 10 + at, f"sw{at + 1}")
            for at in range(shape.writers)
        ]
        readers = [
            SequencedReader(world, NUMBERS_FROM + 20 + at, f"sr{at + 1}")
            for at in range(shape.readers)
        ]
        return writers, readers

    def stop(self) -> None:
        """What a sequencer has forgotten is told when its epoch is over."""
        super().stop()
        if not self._world.is_calm:
            for log in self.log_ids:
                self.registrar.begin_epoch(log, self.ledger.truth(log).record.nodeset)

    def end_of(self, log: LogId) -> Lsn:
        return Lsn(self.ledger.truth(log).acked_last + 1)

    # -- What may be destroyed ------------------------------------------------------------------

    def loses_disk(self, node: "Node") -> None:
        if self.has_logs:
            self.ledger.loses_disk(node)
            self.registrar.lost_disk(node.node)

    def dirtied(self, node: "Node", log: LogId) -> None:
        """The store lost blocks that it had acknowledged from memory."""
        if log in self.ledger.logs:
            self.ledger.logs[log].lossy.add(node.node)

    def may_lose_disk(self, node: "Node") -> bool:
        """Less than a copyset has lost anything, and each block keeps another good copy."""
        if self.shape.is_arranged and not self.can_do_without(node.node):
            return False
        return all(
            self.keeps_copies(log, truth, {node.node})
            and not can_replicate(
                truth.record.replication, truth.lossy | {node.node}, self._world.locations
            )
            for log, truth in self.ledger.logs.items()
        )

    def owns(self, log: LogId) -> bool:
        return log in self.ledger.logs

    def may_rot(self, node: "Node", log: LogId) -> bool:
        return self.keeps_copies(log, self.ledger.truth(log), {node.node})

    def rots(self, node: "Node", log: LogId, first: Lsn) -> None:
        self.ledger.loses_block(node.node, log, first)

    def stored_logs(self) -> list[LogId]:
        """Logs in the stores of nodes whose blocks may rot."""
        return self.log_ids

    def may_lose_memory(self, node: "Node") -> bool:
        return all(
            self.keeps_copies(log, truth, {node.node})
            for log, truth in self.ledger.logs.items()
            if self._is_volatile(node, log)
        )

    def _is_volatile(self, node: "Node", log: LogId) -> bool:
        stored = node.disk.logs.get(log)
        opened = node.store.opened(log) if node.is_up else None
        return (stored is not None and stored.is_volatile) or (
            opened is not None and opened.is_marked
        )

    def keeps_copies(self, log: LogId, truth: LogTruth, nodes: Collection[NodeId]) -> bool:
        """Without these nodes every block that matters has a good copy left, on a node that is
        asked for it: one that was emptied may still have its copies, and readers pass it over, as
        they soon will one that is drained."""
        empty = AuthoritativeStatus.AUTHORITATIVE_EMPTY
        emptied = {node for node, status in self.statuses().items() if status is empty}
        gone = emptied.union(nodes, self.drained())
        return all(
            not set(self.ledger.survivors(log, block)) <= gone
            for block in truth.blocks.values()
            if truth.matters(block) and block.kept.intersection(nodes)
        )

    def may_stay_away(self, node: "Node", gone: Collection[int]) -> bool:
        """The log can be read and written when the nodes that are gone never come back."""
        away = {*gone, node.number, *self.drained()}
        live = [one for one in self._world.nodes if one.number not in away]
        return all(
            self._works_with(truth, [one.node for one in live])
            and not any(_is_recovery_held_up(one, log, truth) for one in live)
            for log, truth in self.ledger.logs.items()
        )

    def _works_with(self, truth: LogTruth, live: list[NodeId]) -> bool:
        # A node that is away cannot say that it lost something.
        lost = dict.fromkeys(truth.lossy & set(live), AuthoritativeStatus.UNDERREPLICATION)
        locations, statuses = self._world.locations, self.statuses() | lost
        return all(
            can_replicate(one.replication, set(one.nodeset) & set(live), locations)
            and authority(one.replication, one.nodeset, locations, statuses, live)
            is not Authority.NONE
            for one in (*truth.records, self._grown(truth))
        )

    def _grown(self, truth: LogTruth) -> EpochRecord:
        """As the nodeset may be soon: who was added may be about to join, dead or not."""
        joining = set(self.registered()) - self.drained()
        nodeset = tuple(sorted({*truth.record.nodeset, *joining}))
        return msgspec.structs.replace(truth.record, nodeset=nodeset)

    def statuses(self) -> dict[NodeId, AuthoritativeStatus]:
        return statuses_of(self.status_entries())

    def without_vote(self) -> set[NodeId]:
        lost = AuthoritativeStatus.UNDERREPLICATION
        return {node for node, status in self.statuses().items() if status is lost}

    def registered(self) -> list[NodeId]:
        now_ms = self._world.schedule.now_us // MS
        listed, _ = self._world.metadata.state.list(NODES.prefix, now_ms)
        return [NODES.id_of(entry.key) for entry in listed]

    def drained(self) -> set[NodeId]:
        return {node for node, entry in self.status_entries().items() if entry.is_draining}

    def can_do_without(self, node: NodeId) -> bool:
        """Whether the others that take copies can take those of every log.  One that lost its disk
        is not counted on: here nobody gives it back what it had."""
        left = {*self.registered()} - self.drained() - self.without_vote() - {node}
        return all(
            can_replicate(truth.record.replication, left, self._world.locations)
            for truth in self.ledger.logs.values()
        )

    def rebuild_reports(self) -> dict[RebuildId, RebuildReport]:
        now_ms = self._world.schedule.now_us // MS
        return reports_of(self._world.metadata.state.list(REBUILDS.prefix, now_ms)[0])

    def unrebuilt(self, node: NodeId, entry: NodeStatusEntry) -> Collection[NodeId]:
        """Who must have given away what the node lost, or come back, before it is rebuilt."""
        entries, nodes = self.status_entries(), self.registered()
        finished = finished_for(node, entry.rebuild, self.rebuild_reports())
        missing = unfinished(entries, nodes, finished)
        doubtful = suspects(node, entries, nodes, finished)
        spans = [
            EpochRange(record.epoch, record.epoch, record.nodeset, record.replication)
            for truth in self.ledger.logs.values()
            for record in truth.records
        ]
        is_doubtful = doubtful and may_hold_alone(doubtful, spans, self._world.locations)
        return missing or (doubtful if is_doubtful else ())

    def status_entries(self) -> dict[NodeId, NodeStatusEntry]:
        now_ms = self._world.schedule.now_us // MS
        return entries_of(self._world.metadata.state.list(STATUSES.prefix, now_ms)[0])


def _is_recovery_held_up(node: "Node", log: LogId, truth: LogTruth) -> bool:
    """It waits for everybody who may have a sound copy of a block that is damaged here."""
    rotten = node.disk.rotten.get(log, ())
    return any(epoch_of(first) > truth.record.clean for first in rotten)
