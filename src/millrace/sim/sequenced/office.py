"""The people of sequenced logs: who makes them, who trims them, who knows how nodes are."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.core.epochs import EpochRecord, NodesetChange, metadata_log_of, ranges
from millrace.core.messages import Activate, ChangeNodeset, Trimmed, TrimSequenced
from millrace.core.procedure import (
    Ask,
    ClusterView,
    Failure,
    ListNodes,
    Procedure,
    ReadNodesetChanges,
    ask_all,
)
from millrace.core.replication import Replication, can_replicate
from millrace.core.sequenced.arranging import Scene, Wish, arrange, wish_for
from millrace.core.sequenced.nodesets import METADATA_NODES, choose_nodeset
from millrace.core.sequenced.preferred import preferred_sequencer
from millrace.core.sequenced.rebuilt import unfinished
from millrace.core.statuses import NodeStatusEntry, StatusReason, came, drain, gone, rebuilt
from millrace.lsn import show
from millrace.meta.keys import EPOCHS, NODES, STATUSES
from millrace.server.status_keeping import finished_for
from millrace.sim.driver import Driver
from millrace.sim.part import LogRegistrar, LogTrimmer
from millrace.sim.schedule import MS
from millrace.types import (
    NO_NODE,
    AuthoritativeStatus,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    NodeInfo,
)

if TYPE_CHECKING:
    from millrace.sim.world import World

_PRESENT = AuthoritativeStatus.FULLY_AUTHORITATIVE
METADATA_COPIES = 3


class Registrar(LogRegistrar):
    """Does what an operator and the keeper do about sequenced logs."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "reg")
        self.driver: Driver
        self._disks_lost: Counter[NodeId] = Counter()

    def on_start(self) -> None:
        self.driver = Driver(self)
        self._keep()

    def _keep(self) -> None:
        """A log whose sequencer is gone gets another, whether anybody appends or not."""
        self.later(self.world.shape.keeper_ms * MS, self._keep)
        self.driver.perform(ListNodes(), self._viewed)

    def _viewed(self, view: ClusterView | Failure) -> None:
        if isinstance(view, Failure):
            return
        self._note_absent(view)
        if self.world.sequenced.shape.is_arranged:
            self._arrange(view)
            self._end_drains(view)
        for log in self.world.sequenced.log_ids:
            record = self.world.sequenced.ledger.truth(log).record
            if record.epoch and record.sequencer in view.live:
                self.activate(log, record.sequencer)  # It may have been restarted.
            elif record.epoch:
                node = preferred_sequencer(log, view.nodes, view.live)
                if node is not None:
                    self.activate(log, node, (record.sequencer,))

    def _note_absent(self, view: ClusterView) -> None:
        """Who is away may come back with its disk: readers and recoveries wait for it."""
        entries = self.world.sequenced.status_entries()
        for node in [info.id for info in view.nodes]:
            if self.world.sequenced.shape.is_rebuilt:
                self._note_disk(node, entries.get(node), node in view.live)
                continue
            status = entries[node].status if node in entries else _PRESENT
            if status is _PRESENT and node not in view.live:
                self._set_status(node, AuthoritativeStatus.UNAVAILABLE, StatusReason.GONE)
            elif status is AuthoritativeStatus.UNAVAILABLE and node in view.live:
                self._set_status(node, _PRESENT, StatusReason.RETURNED)

    def _note_disk(self, node: NodeId, entry: NodeStatusEntry | None, is_live: bool) -> None:
        """As a node and its keeper do it; who is empty looks after itself (`standing.py`)."""
        disk = self._disk(node)
        self._changed(node, came(entry, disk, disk, 0) if is_live else gone(entry, disk, 0))

    def _set_status(self, node: NodeId, status: AuthoritativeStatus, reason: StatusReason) -> None:
        self.world.count(f"status.{status.value}")
        before = self.world.sequenced.status_entries().get(node)
        if before is not None and before.is_draining:
            if before.status is AuthoritativeStatus.AUTHORITATIVE_EMPTY:
                return  # It holds nothing that could be lost, and stays so.
            self.write_status(node, msgspec.structs.replace(before, status=status, reason=reason))
            return
        self.write_status(node, NodeStatusEntry(status, reason=reason))

    def write_status(self, node: NodeId, entry: NodeStatusEntry) -> None:
        self.world.metadata.put(STATUSES.key(node), STATUSES.encode(entry), -1)

    # -- Growing and shrinking ------------------------------------------------------------------

    def add_node(self, node: NodeId) -> None:
        info = NodeInfo(node, f"node{node}:1", self.world.locations[node])
        self.world.metadata.put(NODES.key(node), NODES.encode(info), 0)

    def drain(self, node: NodeId) -> None:
        changed = drain(self.world.sequenced.status_entries().get(node), "", 0)
        if changed is not None:
            self.write_status(node, changed)

    def _arrange(self, view: ClusterView) -> None:
        """As the keeper does it, without waiting for more to come."""
        scene = Scene(view, self.world.sequenced.status_entries())
        for log in self.world.sequenced.log_ids:
            metadata = self.world.sequenced.ledger.truth(metadata_log_of(log)).record
            if not self._move(arrange(metadata, wish_for(metadata, None), scene), view):
                self.driver.perform(ReadNodesetChanges(log), partial(self._arrange_log, log, scene))

    def _arrange_log(
        self, log: LogId, scene: Scene, changes: tuple[NodesetChange, ...] | Failure
    ) -> None:
        record, shape = self.world.sequenced.ledger.truth(log).record, self.world.sequenced.shape
        if not isinstance(changes, Failure):
            old = ranges(changes, record)[:-1]
            wish = Wish(shape.replication, shape.nodeset_size)
            self._move(arrange(record, wish, scene, old), scene.view)

    def _move(self, change: ChangeNodeset | None, view: ClusterView) -> bool:
        if change is None:
            return False
        sequencer = self.world.sequenced.ledger.truth(change.log).record.sequencer
        preferred = preferred_sequencer(change.log, view.nodes, view.live)
        node = sequencer if sequencer in view.live else preferred
        if node is not None:
            self.world.count("nodeset.wider" if change.wider else "nodeset.moved")
            self.ask(node, change, 5_000, lambda _: None)
        return True

    def _end_drains(self, view: ClusterView) -> None:
        entries = self.world.sequenced.status_entries()
        reports = self.world.sequenced.rebuild_reports()
        storage = [info.id for info in view.nodes]
        for node, entry in entries.items():
            is_whole = entry.is_draining and entry.rebuild and entry.status is _PRESENT
            finished = finished_for(node, entry.rebuild, reports)
            if is_whole and not unfinished(entries, storage, finished):
                emptied = rebuilt(entry, 0)
                assert emptied is not None
                self.world.count("status.authoritative_empty")
                self.write_status(node, emptied)
                self.world.sequenced.nemesis.emptied(node)

    # -- Logs -----------------------------------------------------------------------------------

    def make_log(self, log: LogId, infos: list[NodeInfo]) -> None:
        """Its metadata log and its epochs; the first append finds a sequencer."""
        shape = self.world.sequenced.shape
        live = [info.id for info in infos]
        metadata = metadata_log_of(log)
        copies = Replication.of(min(METADATA_COPIES, len(live) - 1))
        keepers = choose_nodeset(metadata, copies, infos, live, METADATA_NODES)
        self._register(EpochRecord(metadata, Epoch(0), NO_NODE, keepers, copies, Epoch(1)))
        nodeset = choose_nodeset(log, shape.replication, infos, live, shape.nodeset_size)
        assert can_replicate(shape.replication, nodeset, self.world.locations)
        record = EpochRecord(
            log,
            Epoch(0),
            NO_NODE,
            nodeset,
            shape.replication,
            Epoch(1),
            settings=shape.settings,
        )
        self._register(record)

    def _register(self, record: EpochRecord) -> None:
        self.world.metadata.put(EPOCHS.key(record.log), EPOCHS.encode(record), 0)

    def lost_disk(self, node: NodeId) -> None:
        """What a node does itself that comes back with an empty disk, before it serves."""
        if not self.world.sequenced.shape.is_rebuilt:
            self._set_status(node, AuthoritativeStatus.UNDERREPLICATION, StatusReason.WIPED)
            return
        former = self._disk(node)
        self._disks_lost[node] += 1
        entry = self.world.sequenced.status_entries().get(node)
        self._changed(node, came(entry, former, self._disk(node), 0))

    def _disk(self, node: NodeId) -> str:
        return f"disk{self._disks_lost[node]}"

    def _changed(self, node: NodeId, changed: NodeStatusEntry | None) -> None:
        if changed is not None:
            self.world.count(f"status.{changed.status.value}")
            self.write_status(node, changed)

    def begin_epoch(self, log: LogId, nodeset: tuple[NodeId, ...]) -> None:
        """An epoch on these nodes that nobody sequences: whoever does next begins another."""
        record = self.world.sequenced.ledger.truth(log).record
        epoch = Epoch(record.epoch + 1)
        is_same = nodeset == record.nodeset
        begun = msgspec.structs.replace(
            record,
            epoch=epoch,
            sequencer=NO_NODE,
            nodeset=nodeset,
            since=record.since if is_same else epoch,
            is_recorded=record.is_recorded and is_same,
            changes=record.changes + 1,
        )
        self.world.metadata.put(EPOCHS.key(log), EPOCHS.encode(begun), -1)

    def activate(self, log: LogId, node: NodeId, suspects: tuple[NodeId, ...] = ()) -> None:
        self.ask(node, Activate(log, suspects), 5_000, lambda _: None)


class SequencedTrimmer(LogTrimmer):
    """Trims what some reader has read: a slower one finds its position gone."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "cut")
        self.driver: Driver

    def on_start(self) -> None:
        self.driver = Driver(self)
        self._wait()

    def _wait(self) -> None:
        self.later(int((50 + self.rng.random() * 400) * MS), self._trim)

    def _trim(self) -> None:
        if self.is_stopping:
            return
        sequenced = self.world.sequenced
        log = self.rng.choice(sequenced.log_ids)
        truth = sequenced.ledger.truth(log)
        read = sorted(lsn for lsn in truth.values if lsn <= truth.released)
        if not read:
            self._wait()
            return
        end = Lsn(self.rng.choice(read[: 1 + len(read) // 2]) + int(self.rng.random() * 2))
        truth.trim_end = max(truth.trim_end, end)
        self.trace(f"trims log {log} up to {show(end)}")
        nodes = sorted({node for record in truth.records for node in record.nodeset})
        self.driver.start(trim(log, end, nodes), self._trimmed)

    def _trimmed(self, is_done: bool) -> None:
        self.world.count("sequenced.trim_done" if is_done else "sequenced.trim_partly")
        self._wait()


def trim(log: LogId, end: Lsn, nodes: list[NodeId]) -> Procedure[bool]:
    answers = yield from ask_all([Ask(node, TrimSequenced(log, end)) for node in nodes])
    return all(isinstance(answer, Trimmed) for answer in answers)
