"""The nemesis of documents: what happens to nodes, disks, lines, keepers and followers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import Seat
from millrace.core.documents.rebalance import Move
from millrace.sim.documents.shape import DocumentsTrouble
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.troubles import Striker
from millrace.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from millrace.sim.documents.follower import Follower
    from millrace.sim.documents.node import DocumentsNode
    from millrace.sim.documents.world import DocumentsWorld

WIPES_MAX = 2  # Of one run: more only show what an operator has to decide.
DELIVERIES_MAX = 3
AWAY_US = 600 * MS
BRIEF_US = 50 * MS
PAUSE_US = 1_200 * MS
UNDO_US = 10 * MS  # Within which a node dies whose undo begins.
SUCCESSOR_US = 300 * MS
RUSH_MAX = 40
RUSHES = 2
LAG_US = 200 * MS
STREAMING_US = 60 * MS
TEMPT_US = 200 * MS
MOVING_US = 200 * MS
DISK_SLOWER_US = 200 * MS
FULL_BYTES = 1


class DocumentsNemesis(Striker[DocumentsTrouble]):
    def __init__(self, world: "DocumentsWorld", troubles: tuple[DocumentsTrouble, ...]) -> None:
        super().__init__(world, "documents-nemesis", troubles)
        self._world = world
        self._wipes = 0
        self._deliveries_killed = 0
        self._is_undo_awaited = DocumentsTrouble.UNDO_KILLED in troubles
        self._is_successor_awaited = False
        self._strikes: dict[DocumentsTrouble, Callable[[], bool]] = {
            DocumentsTrouble.CRASH: lambda: self._kill(self._any_node()),
            DocumentsTrouble.RESTART: self._restart,
            DocumentsTrouble.WIPE: self._wipe,
            DocumentsTrouble.PAUSE: self._pause,
            DocumentsTrouble.STALE_MASTER: self._make_stale,
            DocumentsTrouble.BLOCK: self._block,
            DocumentsTrouble.ONE_WAY: self._block_one_way,
            DocumentsTrouble.RESET: self._reset,
            DocumentsTrouble.SLOW_NODE: self._slow_node,
            DocumentsTrouble.SLOW_DISK: self._slow_disk,
            DocumentsTrouble.FULL_DISK: self._fill_disk,
            DocumentsTrouble.UNDO_KILLED: self._await_undo,
            DocumentsTrouble.MASTER_KILLED: self._kill_master,
            DocumentsTrouble.SUCCESSOR_KILLED: self._await_successor,
            DocumentsTrouble.MOVE: self._move,
            DocumentsTrouble.FAIL_OVER: self._fail_over,
            DocumentsTrouble.KEEPER_CRASH: lambda: self._kill(self._rng.choice(world.keepers)),
            DocumentsTrouble.FOLLOWER_CRASH: self._kill_follower,
            DocumentsTrouble.METADATA: self._slow_metadata,
        }

    @property
    def strikes(self) -> Mapping[DocumentsTrouble, Callable[[], bool]]:
        return self._strikes

    @property
    def trouble_us(self) -> int:
        return self._world.shape.trouble_us

    def _any_node(self) -> "DocumentsNode":
        return self._rng.choice(self._world.nodes)

    def _any_seat(self) -> tuple[PartitionId, Seat]:
        record = self._world.record
        number = PartitionId(self._rng.randrange(len(record.seats)))
        return number, record.seat(number)

    # -- Processes ------------------------------------------------------------------------------

    def _kill(self, process: Process | None, least_us: int = MS, away_us: int = AWAY_US) -> bool:
        if process is None or not process.is_up or self._is_stopped:
            return False
        process.crash(is_silent=self._is_chance(0.5))
        self._lasts(least_us, least_us + away_us, partial(self._start, process))
        return True

    def _restart(self) -> bool:
        node = self._any_node()
        if not node.is_up or node.is_paused:
            return False
        node.stop()
        self._lasts(300 * MS, AWAY_US, node.start_again)
        return True

    def _wipe(self) -> bool:
        node = self._any_node()
        if self._wipes >= WIPES_MAX or not self._kill(node):
            return False
        self._wipes += 1
        node.wipe()
        return True

    def _pause(self) -> bool:
        node = self._any_node()
        if not node.is_up or node.is_paused:
            return False
        node.pause()
        self._lasts(MS, PAUSE_US, node.resume)
        return True

    def _kill_follower(self) -> bool:
        followers = self._world.followers
        return bool(followers) and self._kill(self._rng.choice(followers), away_us=BRIEF_US)

    def _kill_master(self) -> bool:
        """When its copies have missed something for a while: what it has on disk when it comes
        back, perhaps after the next one was chosen, is of a history that is over."""
        number, node = self._any_led()
        if node is None:
            return False
        share = self._rng.choice((0.0, 0.5, 1.0))
        others = [each for each in self._world.nodes if each is not node]
        lag_us = int(self._rng.random() * (LAG_US if share else STREAMING_US))
        lagging = [(node, other) for other in others if self._is_chance(share)]
        self._cut(lagging, lag_us, lag_us + 1)
        self._rush(number, node)
        self._world.schedule.after(lag_us, self._strike_down_silently, node)
        return True

    def _any_led(self) -> "tuple[PartitionId, DocumentsNode | None]":
        number, seat = self._any_seat()
        node = self._world.node(seat.active) if seat.active != NO_NODE else None
        return number, node if node is not None and node.is_up else None

    def _rush(self, number: PartitionId, node: "DocumentsNode") -> None:
        if not self._is_stopped:
            for writer in self._world.writers:
                writer.rush(number, node.node, self._rng.randrange(RUSH_MAX))

    def _strike_down_silently(self, node: "DocumentsNode") -> None:
        for connection in self._world.network.connections():
            if node in connection.ends and self._is_chance(0.5):
                self._world.network.reset(connection)
        self._kill(node, int(self._is_chance(0.7)) * self._deposed_us)

    @property
    def _deposed_us(self) -> int:
        """How long it takes at most until somebody else is chosen."""
        return 2 * self._world.shape.lease_ms * MS

    def saw_delivery(self, follower: "Follower", source: NodeId) -> None:
        """An application has processed changes: of a stale master they are to be undone one day,
        also if it dies before it has written down that it has them."""
        is_stale = self._world.node(source).is_lease_believed
        if is_stale and self._deliveries_killed < DELIVERIES_MAX and self._is_chance(0.1):
            self._deliveries_killed += 1
            self._world.count("trouble.delivery_killed")
            self._world.schedule.after(0, self._strike_down, follower)

    def _await_undo(self) -> bool:
        self._is_undo_awaited = True
        return True

    def saw_undo(self, node: "DocumentsNode", number: PartitionId) -> None:
        """A node rolls a partition back: the undo begins, or a step of it is on disk."""
        if self._is_undo_awaited and not self._is_stopped and self._is_chance(0.5):
            self._is_undo_awaited = False
            self._world.count("trouble.undo_killed_struck")
            master = self._world.record.seat(number).active
            victim = self._world.node(master) if master and self._is_chance(0.5) else node
            self._soon(UNDO_US, victim)

    def saw_fetched(self, number: PartitionId) -> None:
        """An undo has fetched what the stream will show later: the master dies before that."""
        master = self._world.record.seat(number).active
        is_wanted = DocumentsTrouble.UNDO_KILLED in self._troubles and self._is_chance(0.5)
        if is_wanted and master != NO_NODE and not self._is_stopped:
            delay_us = 2 * self._world.shape.disk_us + int(self._rng.random() * UNDO_US)
            self._world.schedule.after(delay_us, self._strike_down, self._world.node(master))

    def _await_successor(self) -> bool:
        self._is_successor_awaited = True
        return True

    def saw_promotion(self, node: "DocumentsNode") -> None:
        if self._is_successor_awaited and not self._is_stopped:
            self._is_successor_awaited = False
            self._world.count("trouble.successor_killed_struck")
            self._soon(SUCCESSOR_US, node)
        for stale in self._world.nodes:
            if stale.is_lease_believed and stale is not node and not self._is_stopped:
                self._world.schedule.after(int(self._rng.random() * TEMPT_US), self._tempt, stale)

    def _soon(self, within_us: int, node: "DocumentsNode") -> None:
        delay_us = int(self._rng.random() ** 2 * within_us)
        self._world.schedule.after(delay_us, self._strike_down, node)

    def _strike(self) -> None:
        if not self._is_stopped:
            self._world.ledger.look_around(self._rng.randrange(self._world.shape.partitions))
        super()._strike()

    def _strike_down(self, process: Process) -> None:
        self._kill(process)

    # -- The network ----------------------------------------------------------------------------

    def _make_stale(self) -> bool:
        """Clients and followers still reach it; those who would depose it do not."""
        number, node = self._any_led()
        if node is None or node.is_lease_believed:
            return False
        others: list[Process] = [self._world.metadata, *self._world.keepers]
        others += [each for each in self._world.nodes if each is not node and self._is_chance(0.3)]
        pairs: list[tuple[Process, Process]] = [(node, other) for other in others]
        least_us = 2 * self._deposed_us
        self._cut(pairs + [(other, node) for other in others], least_us, least_us + AWAY_US)
        node.believe(self._is_chance(0.8))
        self._lasts(least_us, least_us + AWAY_US, partial(node.believe, False))
        for at in range(RUSHES):
            delay_us = int((at + self._rng.random()) * least_us)
            self._world.schedule.after(delay_us, self._rush, number, node)
        if self._is_chance(0.5):
            delay_us = int((0.3 + self._rng.random() * 0.7) * least_us)
            self._world.schedule.after(delay_us, self._rush, number, node)
            delay_us += int(self._rng.random() * STREAMING_US)
            self._world.schedule.after(delay_us, self._restart_follower)
        return True

    def _tempt(self, node: "DocumentsNode") -> None:
        """Whoever follows a stale master is sent to the next one, dies, and comes back with the
        map that the stale one has."""
        for connection in self._world.network.connections():
            if node in connection.ends and self._world.network.is_line(connection):
                self._world.network.reset(connection)
        for follower in self._world.followers:
            follower.prefers = node
        delay_us = int(self._rng.random() * TEMPT_US)
        self._world.schedule.after(delay_us, self._restart_follower)

    def _restart_follower(self) -> None:
        self._kill_follower()

    def _is_chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _two(self) -> tuple[Process, Process]:
        one, other = self._rng.sample(self._world.everybody(), 2)
        return one, other

    def _block(self) -> bool:
        one, other = self._two()
        self._cut([(one, other), (other, one)], 50 * MS, SECOND)
        return True

    def _block_one_way(self) -> bool:
        self._cut([self._two()], 50 * MS, SECOND)
        return True

    def _reset(self) -> bool:
        connections = self._world.network.connections()
        if not connections:
            return False
        self._world.network.reset(self._rng.choice(connections))
        return True

    def _slow_node(self) -> bool:
        slow_us = self._world.network.slow_us
        node = self._any_node()
        if node.number in slow_us:
            return False
        slow_us[node.number] = 20 * self._world.shape.delay_us + 20 * MS

        def fast_again() -> None:
            slow_us.pop(node.number, None)

        self._lasts(200 * MS, 800 * MS, fast_again)
        return True

    def _slow_metadata(self) -> bool:
        metadata = self._world.metadata
        if metadata.slow_us:
            return False
        metadata.slow_us = int(self._rng.random() * 300 * MS)

        def fast_again() -> None:
            metadata.slow_us = 0

        self._lasts(100 * MS, 800 * MS, fast_again)
        return True

    # -- Disks ----------------------------------------------------------------------------------

    def _slow_disk(self) -> bool:
        node = self._any_node()
        if node.slow_us or not node.is_up:
            return False
        node.slow_us = DISK_SLOWER_US
        node.store.write_us += node.slow_us

        def fast_again() -> None:
            node.store.write_us -= node.slow_us
            node.slow_us = 0

        self._lasts(100 * MS, 800 * MS, fast_again)
        return True

    def _fill_disk(self) -> bool:
        disk = self._any_node().disk
        capacity_bytes = disk.capacity_bytes
        if capacity_bytes == FULL_BYTES:
            return False
        disk.capacity_bytes = FULL_BYTES

        def has_room() -> None:
            disk.capacity_bytes = capacity_bytes

        self._lasts(50 * MS, 800 * MS, has_room)
        return True

    # -- Operators ------------------------------------------------------------------------------

    def _move(self) -> bool:
        """To another master among the copies, or to a node that has none."""
        number, seat = self._any_seat()
        keeper = self._rng.choice(self._world.keepers)
        if seat.active == NO_NODE or not seat.replicas or not keeper.is_up:
            return False
        others = [node.node for node in self._world.nodes if node.node not in seat.holders]
        newcomer = self._rng.choice(others) if others and self._is_chance(0.7) else NO_NODE
        goes = self._rng.choice(seat.replicas)
        for _ in range(RUSHES):
            delay_us = int(self._rng.random() * MOVING_US)
            master = self._world.node(seat.active)
            self._world.schedule.after(delay_us, self._rush, number, master)
        if newcomer == NO_NODE:
            rest = tuple(node for node in seat.replicas if node != goes)
            keeper.begin_move(Move(number, goes, (seat.active, *rest)))
        elif self._is_chance(0.5):
            keeper.begin_move(Move(number, newcomer, seat.replicas, newcomer))
        else:
            rest = tuple(node for node in seat.replicas if node != goes)
            keeper.begin_move(Move(number, seat.active, (*rest, newcomer), newcomer))
        return True

    def _fail_over(self) -> bool:
        """Also away from a master that the keeper does not reach, and clients do."""
        keeper = self._rng.choice(self._world.keepers)
        if not keeper.is_up:
            return False
        number, seat = self._any_seat()
        if seat.active != NO_NODE and self._is_chance(0.3):
            self._deafen(number, self._world.node(seat.active))
        keeper.fail_over(number)
        return True

    def saw_deposition(self, number: PartitionId, node: "DocumentsNode") -> None:
        """Nobody has told it yet: perhaps it will not be heard of for a while."""
        if not self._is_stopped and self._is_chance(0.5):
            self._deafen(number, node)

    def _deafen(self, number: PartitionId, master: "DocumentsNode") -> None:
        """Keepers do not reach it, and clients do."""
        cut = [(keeper, master) for keeper in self._world.keepers]
        self._cut(cut, self._deposed_us, 2 * self._deposed_us)
        for at in range(RUSHES):
            self._world.schedule.after(at * self._deposed_us // 2, self._rush, number, master)
