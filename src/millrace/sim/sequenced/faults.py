"""The nemesis of sequenced logs: their sequencers, nodesets and copies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from millrace.core.replication import can_replicate
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.sequenced.shape import Trouble
from millrace.sim.troubles import TroubleNemesis
from millrace.types import Block, Epoch, LogId, NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

AWAY_US = 1_500 * MS  # Longer than it takes others to begin another epoch.
COMMITTED_US = 20 * MS  # Longer than most disks need for a commit.
LOOK_US, LOOKS_MAX = 2 * MS, 1_000  # For somebody to be sealed.


@dataclass(slots=True)
class Mute:
    """The sequencer of a log is to die when a block has overtaken another."""

    log: LogId
    has_begun: bool = False


class SequencedNemesis(TroubleNemesis[Trouble]):
    def __init__(self, world: "World", troubles: tuple[Trouble, ...]) -> None:
        super().__init__(world, "sequenced-nemesis", troubles)
        self._straggler: LogId | None = None  # Where the next block is to have one copy only.
        self._mute: Mute | None = None
        self._strikes: dict[Trouble, Callable[[], bool]] = {
            Trouble.SEQUENCER_KILLED: self._kill_sequencer,
            Trouble.SEQUENCER_MUTED: self._mute_sequencer,
            Trouble.SEQUENCER_DESERTED: self._desert_sequencer,
            Trouble.SEQUENCER_OUTLIVED: self._outlive_sequencer,
            Trouble.STRAGGLER: self._leave_straggler,
            Trouble.RECOVERY_KILLED: self._kill_recovery,
            Trouble.ACTIVATED: self._activate,
            Trouble.NODESET_CHANGED: self._change_nodeset,
            Trouble.SLOW_NODE: self._slow_node,
            Trouble.COPIES_LOST: self._lose_copies,
            Trouble.NODE_ADDED: self._add_node,
            Trouble.NODE_DRAINED: self._drain_node,
            Trouble.DISK_REPLACED: self._replace_disk,
        }

    @property
    def strikes(self) -> Mapping[Trouble, Callable[[], bool]]:
        return self._strikes

    @property
    def trouble_us(self) -> int:
        return self._world.sequenced.shape.trouble_us

    # -- Sequencers -----------------------------------------------------------------------------

    @property
    def has_muted(self) -> bool:
        """More appends now are worth more than later on."""
        return self._mute is not None and self._mute.has_begun

    def _sequencer(self, log: LogId) -> "Node | None":
        number = self._world.sequenced.ledger.truth(log).record.sequencer
        node = self._world.node(number) if number else None
        return node if node is not None and node.is_up else None

    def _any_log(self) -> LogId:
        return self._rng.choice(self._world.sequenced.log_ids)

    def _kill_sequencer(self) -> bool:
        """With it some of its connections, and the blocks that are under way on them."""
        node = self._sequencer(self._any_log())
        for connection in self._world.network.connections():
            if connection.ends[0] is node and self._rng.random() < 0.5:
                self._world.network.reset(connection)
        return self._kill(node)

    def _leave_straggler(self) -> bool:
        self._straggler = self._any_log()
        return True

    def stored(self, node: NodeId, block: Block) -> None:
        """A copy of a block is on its way to a disk."""
        sequencer, holder = self._sequencer(block.log), self._world.node(node)
        if self._is_stopped or sequencer is None or sequencer is holder:
            return
        truth = self._world.sequenced.ledger.truth(block.log)
        if block.log == self._straggler and truth.blocks[block.first].held == {node}:
            # It shall be the only one, and its node away while the epoch is recovered.
            self._straggler = None
            self._world.count("trouble.straggler_left")
            self._world.schedule.after(0, self._cut_off, sequencer)
            self._world.schedule.after(COMMITTED_US, self._take_away, holder)
        mute = self._mute
        if mute is None or block.log != mute.log:
            return
        if not mute.has_begun:
            self._begin_mute(mute, sequencer, truth.blocks[block.first].copysets[-1])
        elif truth.overtakes(block.first, sequencer.node):
            self._mute = None
            self._world.count("trouble.block_overtaken")
            self._world.schedule.after(0, self._cut_off, sequencer, AWAY_US)

    def _take_away(self, node: "Node") -> None:
        self._kill(node, AWAY_US)

    def _cut_off(self, node: "Node", least_us: int = MS) -> None:
        for connection in self._world.network.connections():
            if node in connection.ends:
                self._world.network.reset(connection)
        self._kill(node, least_us)

    def _kill_recovery(self) -> bool:
        """One whose earlier epochs are not clean yet."""
        log = self._any_log()
        record = self._world.sequenced.ledger.truth(log).record
        is_recovering = record.clean + 1 < record.epoch
        return is_recovering and self._kill(self._sequencer(log))

    def _mute_sequencer(self) -> bool:
        """A copyset hears nothing of it, so that later blocks are stored and earlier ones are not,
        but perhaps by itself; then it dies.  For as long as no block overtakes another this is
        tried again, mostly."""
        if self._mute is None:
            self._mute = Mute(self._any_log())
        return True

    def _begin_mute(self, mute: Mute, node: "Node", copyset: tuple[NodeId, ...]) -> None:
        network = self._world.network
        deaf = [one for one in map(self._world.node, copyset) if one is not node]
        for one in deaf:
            network.block(node, one)
        mute.has_begun = True

        def end() -> None:
            for one in deaf:
                network.unblock(node, one)
            mute.has_begun = False
            if self._mute is mute and self._rng.random() < 0.1:
                self._mute = None
                self._cut_off(node)

        self._lasts(5 * MS, 300 * MS, end)

    def _desert_sequencer(self) -> bool:
        """Clients and the repository lose it, storage nodes do not: it goes on beside the next."""
        node = self._sequencer(self._any_log())
        if node is None:
            return False
        others: list[Process] = [self._world.metadata, *self._world.sequenced.writers]
        others += [one for one in self._world.nodes if one is not node and self._rng.random() < 0.2]
        return self._desert(node, others)

    def _outlive_sequencer(self) -> bool:
        """It does not hear of the next, and its clients do not either: what they append is kept
        out of the log by those who were sealed, also when they have been started again."""
        log = self._any_log()
        node = self._sequencer(log)
        successors = [one for one in self._world.nodes if one is not node and one.is_up]
        if node is None or not successors:
            return False
        successor = self._rng.choice(successors)
        some = [one for one in self._world.sequenced.writers if self._rng.random() < 0.5]
        self._desert(node, [self._world.metadata, successor, *some], AWAY_US)
        self._world.sequenced.registrar.activate(log, successor.node, (node.node,))
        epoch = self._world.sequenced.ledger.truth(log).record.epoch
        spared = node, successor
        self._world.schedule.after(LOOK_US, self._restart_sealed, log, epoch, spared, LOOKS_MAX)
        return True

    def _restart_sealed(
        self, log: LogId, epoch: Epoch, spared: tuple["Node", ...], looks: int
    ) -> None:
        if self._is_stopped or not looks:
            return
        sealed = self._world.sequenced.ledger.sealed_by(log, epoch)
        nodes = [one for one in map(self._world.node, sealed) if one not in spared and one.is_up]
        if not nodes:
            again = log, epoch, spared, looks - 1
            self._world.schedule.after(LOOK_US, self._restart_sealed, *again)
            return
        self._world.count("trouble.sealed_restarted")
        for node in nodes:
            if not node.is_paused:
                node.stop()
                self._lasts(MS, 50 * MS, partial(self._start, node))

    def _activate(self) -> bool:
        """An epoch that nobody sequences: somebody has to begin another."""
        log = self._any_log()
        nodeset = self._world.sequenced.ledger.truth(log).record.nodeset
        self._world.sequenced.registrar.begin_epoch(log, nodeset)
        self._ask_to_take_over(log)
        return True

    def _change_nodeset(self) -> bool:
        log = self._any_log()
        record = self._world.sequenced.ledger.truth(log).record
        nodes = [node.node for node in self._world.nodes]
        size = self._rng.randrange(record.replication.copies, len(nodes) + 1)
        nodeset = tuple(sorted(self._rng.sample(nodes, size)))
        locations = self._world.locations
        if nodeset == record.nodeset or not can_replicate(record.replication, nodeset, locations):
            return False
        self._world.sequenced.registrar.begin_epoch(log, nodeset)
        self._ask_to_take_over(log)
        return True

    def _ask_to_take_over(self, log: LogId) -> None:
        node = self._rng.choice(self._world.nodes).node
        self._world.sequenced.registrar.activate(log, node)

    # -- Nodes ----------------------------------------------------------------------------------

    def _add_node(self) -> bool:
        known = self._world.sequenced.registered()
        spares = [node.node for node in self._world.nodes if node.node not in known]
        if not spares:
            return False
        self._world.sequenced.registrar.add_node(self._rng.choice(spares))
        return True

    def emptied(self, number: NodeId) -> None:
        """Nobody needs the node any more: mostly it is switched off, for good."""
        node = self._world.node(number)
        is_wanted = self._rng.random() < 0.8 and not self._is_stopped
        if is_wanted and self._world.nemesis.atlas.may_crash(node):
            self._world.count("trouble.node_removed")
            node.crash(is_silent=self._rng.random() < 0.5)

    def _drain_node(self) -> bool:
        sequenced = self._world.sequenced
        left = sorted({*sequenced.registered()} - sequenced.drained())
        node = self._rng.choice(left)
        if self._world.log_ids or not sequenced.can_do_without(node):
            return False
        self._world.node(node).trace("is drained")
        sequenced.registrar.drain(node)
        return True

    def _replace_disk(self) -> bool:
        """A node is away until it has an empty disk, sometimes another as well, and mostly somebody
        takes over meanwhile: what was on its way to them is stored without them."""
        world, atlas = self._world, self._world.nemesis.atlas
        lost = world.sequenced.without_vote()
        spared = lost if self._rng.random() < 0.8 else ()  # They are rebuilt, mostly.
        able = [one for one in world.nodes if one.node not in spared and atlas.may_lose_disk(one)]
        if not able or world.log_ids:
            return False
        for node in self._rng.sample(able, min(len(able), self._rng.choice((1, 1, 2)))):
            node.crash(is_silent=self._rng.random() < 0.5)
            self._lasts(MS, AWAY_US, partial(self._wipe, node))
        return True

    def _wipe(self, node: "Node") -> None:
        if self._is_stopped or node.is_up or not self._world.nemesis.atlas.may_lose_disk(node):
            self._start(node)
            return
        node.wipe()
        self._lasts(AWAY_US, AWAY_US + 2 * SECOND, partial(self._start, node))
        if self._rng.random() < 0.8:
            self._ask_to_take_over(self._any_log())

    def _lose_copies(self) -> bool:
        """A whole copyset loses its disks; metadata logs survive, since nothing else would."""
        world, sequenced = self._world, self._world.sequenced
        log = self._any_log()
        truth = sequenced.ledger.truth(log)
        acked = [block for block in truth.blocks.values() if block.is_acked]
        if not acked or world.log_ids:
            return False
        nodes = sequenced.ledger.survivors(log, self._rng.choice(acked))
        if not nodes or not self._may_lose(nodes):
            return False
        for number in nodes:
            node = world.node(number)
            node.crash(is_silent=self._rng.random() < 0.5)
            node.wipe()
            self._lasts(MS, 2 * SECOND, lambda node=node: self._start(node))  # type: ignore[misc]
        return True

    def _may_lose(self, nodes: list[NodeId]) -> bool:
        sequenced = self._world.sequenced
        return all(
            sequenced.keeps_copies(log, truth, nodes)
            for log, truth in sequenced.ledger.logs.items()
            if log not in sequenced.log_ids
        )
